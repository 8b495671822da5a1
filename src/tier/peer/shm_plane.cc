#include "tier/peer/shm_plane.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/hashed_copy.h"
#include "base/same_user.h"
#include "tier/peer/mapped_memory.h"
#include "tier/peer/stream_plane.h"

namespace terrace {
namespace {

constexpr std::string_view kPrefix = "terrace-peer/";
constexpr std::size_t kNameBytes = 16;

struct Address {
  sockaddr_un socket{};
  socklen_t size = 0;
};

// A leading NUL makes it abstract: the name lives and dies with the socket.
Address AddressOf(std::string_view name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::string path = std::string(1, '\0') + std::string(kPrefix) + std::string(name);
  std::memcpy(address.socket.sun_path, path.data(), path.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return address;
}

Result<UniqueFd> OpenSocket() {
  UniqueFd fd(KeepAwayFromStdio(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd.valid()) return ErrnoError("open a socket for peers on this host", errno);
  return fd;
}

// Another one after each start of the machine, the same in all of its containers.
const std::string& BootId() {
  static const std::string id = [] {
    std::string text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
    return text;
  }();
  return id;
}

// The offer: the socket's name, a space, the boot id.
struct Offer {
  std::string_view name, boot_id;
};
std::optional<Offer> ParseOffer(std::string_view text) {
  const std::size_t space = text.find(' ');
  std::array<std::uint8_t, kNameBytes> name{};
  if (space == text.npos || !HexDecode(text.substr(0, space), name)) return std::nullopt;
  return Offer{text.substr(0, space), text.substr(space + 1)};
}

class ShmDial final : public Dial {
 public:
  explicit ShmDial(std::string offer) : offer_(std::move(offer)) {}

  Result<std::optional<UniqueFd>> Next() override {
    const auto offer = ParseOffer(offer_);
    if (!offer) return Error{ErrorCode::kInvalidArgument, "the peer offers no shared memory"};
    if (offer->boot_id != BootId()) {
      return Error{ErrorCode::kUnavailable, "the peer is on another host"};
    }
    auto fd = OpenSocket();
    if (!fd.ok()) return std::move(fd).error();
    const Address address = AddressOf(offer->name);
    const auto* const to = reinterpret_cast<const sockaddr*>(&address.socket);
    if (::connect(fd.value().get(), to, address.size) == 0) {
      return std::optional(std::move(fd).value());
    }
    if (errno == EAGAIN || errno == EINTR) return std::optional<UniqueFd>();  // It is busy.
    return ErrnoError("connect to the peer on this host", errno);
  }

 private:
  const std::string offer_;
};

// The other end sees all host memory: only one of our user may.
Result<void> CheckUser(int socket) {
  auto pid = CheckSameUser(socket);
  if (!pid.ok()) return std::move(pid).error();
  return {};
}

class MappedChunks final : public RemoteChunks {
 public:
  explicit MappedChunks(std::unique_ptr<MappedMemory> memory) : memory_(std::move(memory)) {}

  std::optional<ReadEnd> Begin(const Fetch& fetch) override {
    const auto bytes = memory_->bytes();
    if (fetch.where > bytes.size() || bytes.size() - fetch.where < fetch.slot.size()) {
      return ReadEnd::kCorrupt;
    }
    const std::uint64_t hash =
        CopyHashed(fetch.slot, bytes.subspan(fetch.where, fetch.slot.size()));
    return hash == fetch.record->payload_checksum ? ReadEnd::kOk : ReadEnd::kCorrupt;
  }

 private:
  const std::unique_ptr<MappedMemory> memory_;
};

class ShmDialer final : public PlaneDialer {
 public:
  std::unique_ptr<Dial> Begin(const std::string& /*host*/, const std::string& offer) override {
    return std::make_unique<ShmDial>(offer);
  }
  Result<void> CheckConnection(int socket) override { return CheckUser(socket); }

  Result<std::unique_ptr<RemoteChunks>> Reach(const DataOpened& opened,
                                              UniqueFd descriptor) override {
    const std::size_t size = opened.region_bytes;
    if (!descriptor.valid()) return Error{ErrorCode::kCorrupt, "the peer passes no memory"};
    // A file that shrinks under its mapping would kill this process at its next touch.
    const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
    struct stat file {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor.get(), &file) != 0) {
      return Error{ErrorCode::kCorrupt, "the peer's memory is not sealed against a change of size"};
    }
    if (size == 0 || static_cast<std::uint64_t>(file.st_size) < size) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("the peer's memory has {} bytes, it states {}", file.st_size, size)};
    }
    auto memory = MappedMemory::Map(std::move(descriptor), size);
    if (!memory.ok()) return std::move(memory).error();
    return std::unique_ptr<RemoteChunks>(std::make_unique<MappedChunks>(std::move(memory).value()));
  }
};

Result<std::string> RandomName() {
  std::array<std::uint8_t, kNameBytes> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return ErrnoError("draw a name", errno);
  }
  return HexEncode(bytes);
}

Result<UniqueFd> Listen(const std::string& name) {
  auto fd = OpenSocket();
  if (!fd.ok()) return fd;
  const Address address = AddressOf(name);
  const auto* const at = reinterpret_cast<const sockaddr*>(&address.socket);
  if (::bind(fd.value().get(), at, address.size) != 0 ||
      ::listen(fd.value().get(), SOMAXCONN) != 0) {
    return ErrnoError("listen for peers on this host", errno);
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<DataPlane>> CreateShmPlane(const DataPlaneContext& context) {
  const int memory = context.host->Memory().descriptor;
  if (memory < 0) {
    return Error{ErrorCode::kUnavailable, "host memory cannot be shared: it has no descriptor"};
  }
  if (BootId().empty()) {
    return Error{ErrorCode::kUnavailable, "this host has no /proc/sys/kernel/random/boot_id"};
  }
  // Opened anew, since what is duplicated could be written through.
  UniqueFd descriptor(KeepAwayFromStdio(
      ::open(fmt::format("/proc/self/fd/{}", memory).c_str(), O_RDONLY | O_CLOEXEC)));
  if (!descriptor.valid()) return ErrnoError("open host memory for reading", errno);
  const auto name = RandomName();
  if (!name.ok()) return name.error();
  auto listener = Listen(name.value());
  if (!listener.ok()) return std::move(listener).error();
  auto server = DataServer::Start(std::move(listener).value(),
                                  {.plane = PlaneKind::kSharedMemory,
                                   .payload = DataServerOptions::Payload::kFetched,
                                   .links_max = context.links_max,
                                   .check_connection = CheckUser,
                                   .descriptor = std::move(descriptor)},
                                  *context.host, *context.leases, context.on_event);
  if (!server.ok()) return std::move(server).error();
  server.value()->Open({});
  auto client = DataClient::Start(PlaneKind::kSharedMemory, std::make_unique<ShmDialer>(),
                                  *context.host, context.on_event);
  if (!client.ok()) return std::move(client).error();
  return std::unique_ptr<DataPlane>(
      std::make_unique<StreamPlane>(PlaneKind::kSharedMemory, name.value() + ' ' + BootId(),
                                    std::move(server).value(), std::move(client).value()));
}

}  // namespace terrace
