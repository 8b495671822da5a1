#include "raw_transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/thread.h"

namespace terrace::matrix {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPingBytes = 256;
constexpr int kPatienceMs = 10'000;
constexpr int kLookMs = 100;  // How often a thread looks whether it should end.

Error Failed(const std::string& what, const std::string& why) {
  return {ErrorCode::kUnavailable, what + ": " + why};
}

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Of a socket made here; 0 on failure.
std::uint16_t PortOf(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.sin_port);
}

// Of memory that `bytes` are copied in and out of, round and round.
std::size_t RoomFor(std::size_t bytes, bool huge_pages) {
  const std::size_t page = huge_pages ? std::size_t{2} << 20 : 4096;
  return (kRawRounds * bytes + page - 1) / page * page;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A mapping that ends with this object; null if it could not be made.
struct Mapping {
  Mapping(int descriptor, std::size_t size, int protection, int flags)
      : data(::mmap(nullptr, size, protection, flags, descriptor, 0)), bytes(size) {
    if (data == MAP_FAILED) data = nullptr;
  }
  ~Mapping() {
    if (data != nullptr) ::munmap(data, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* data;
  std::size_t bytes;
};

struct Socket {
  ~Socket() {
    if (socket != nullptr) ::zmq_close(socket);
    if (context != nullptr) ::zmq_ctx_term(context);
  }
  void* context = nullptr;
  void* socket = nullptr;
};

}  // namespace

Result<std::unique_ptr<RawServer>> RawServer::Start(std::size_t bytes, const std::string& pages) {
  const bool huge = pages == "explicit";
  const std::size_t all = RoomFor(bytes, huge);
  std::unique_ptr<RawServer> server(new RawServer(bytes, all));
  const std::string attempt = "serve raw copies";
  server->memory_ =
      UniqueFd(::memfd_create("terrace-matrix", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0U)));
  if (!server->memory_.valid() ||
      ::ftruncate(server->memory_.get(), static_cast<off_t>(all)) != 0) {
    return ErrnoError(attempt, errno);
  }
  void* const mapped = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                              server->memory_.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError(attempt, errno);
  server->mapped_ = static_cast<std::byte*>(mapped);
  std::memset(mapped, 1, all);

  server->context_ = ::zmq_ctx_new();
  server->router_ = ::zmq_socket(server->context_, ZMQ_ROUTER);
  std::array<char, 64> endpoint{};
  std::size_t size = endpoint.size();
  if (::zmq_bind(server->router_, "tcp://127.0.0.1:*") != 0 ||
      ::zmq_getsockopt(server->router_, ZMQ_LAST_ENDPOINT, endpoint.data(), &size) != 0) {
    return Failed(attempt, ::zmq_strerror(::zmq_errno()));
  }
  server->ping_port_ =
      static_cast<std::uint16_t>(std::atoi(std::strrchr(endpoint.data(), ':') + 1));

  server->listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in any = Loopback(0);
  if (!server->listener_.valid() ||
      ::bind(server->listener_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(server->listener_.get(), 1) != 0) {
    return ErrnoError(attempt, errno);
  }
  server->copy_port_ = PortOf(server->listener_.get());
  auto echo = StartThread("matrix-", "echo", [raw = server.get()] { raw->Echo(); });
  if (!echo.ok()) return std::move(echo).error();
  server->echo_ = std::move(echo).value();
  auto sender = StartThread("matrix-", "sender", [raw = server.get()] { raw->SendCopies(); });
  if (!sender.ok()) return std::move(sender).error();
  server->sender_ = std::move(sender).value();
  return server;
}

RawServer::~RawServer() {
  stop_ = true;
  if (echo_.joinable()) echo_.join();
  if (sender_.joinable()) sender_.join();
  if (router_ != nullptr) ::zmq_close(router_);
  if (context_ != nullptr) ::zmq_ctx_term(context_);
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

void RawServer::Echo() {
  while (!stop_) {
    zmq_pollitem_t item{router_, 0, ZMQ_POLLIN, 0};
    if (::zmq_poll(&item, 1, kLookMs) <= 0) continue;
    std::array<char, kPingBytes> who{}, what{};
    const int who_size = ::zmq_recv(router_, who.data(), who.size(), 0);
    const int what_size = ::zmq_recv(router_, what.data(), what.size(), 0);
    if (who_size < 0 || what_size < 0) continue;
    ::zmq_send(router_, who.data(), static_cast<std::size_t>(who_size), ZMQ_SNDMORE);
    ::zmq_send(router_, what.data(), static_cast<std::size_t>(what_size), 0);
  }
}

// To whoever connects: the next part of the memory for each byte that comes.
void RawServer::SendCopies() {
  while (!stop_) {
    pollfd listening{listener_.get(), POLLIN, 0};
    if (::poll(&listening, 1, kLookMs) <= 0) continue;
    const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char order = 0;
    for (std::size_t i = 0; connection.valid() && ::recv(connection.get(), &order, 1, 0) == 1;
         ++i) {
      const std::byte* const from = mapped_ + i % kRawRounds * bytes_;
      for (std::size_t sent = 0; sent < bytes_;) {
        const ssize_t n = ::send(connection.get(), from + sent, bytes_ - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += static_cast<std::size_t>(n);
      }
    }
  }
}

Result<std::vector<double>> RawPing(std::uint16_t port, int count, int gap_ms) {
  Socket dealer;
  dealer.context = ::zmq_ctx_new();
  dealer.socket = ::zmq_socket(dealer.context, ZMQ_DEALER);
  const int none = 0;
  ::zmq_setsockopt(dealer.socket, ZMQ_LINGER, &none, sizeof none);
  ::zmq_setsockopt(dealer.socket, ZMQ_RCVTIMEO, &kPatienceMs, sizeof kPatienceMs);
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(port);
  if (::zmq_connect(dealer.socket, endpoint.c_str()) != 0) {
    return Failed("ping " + endpoint, ::zmq_strerror(::zmq_errno()));
  }
  std::vector<double> seconds;
  const std::array<char, kPingBytes> ping{};
  std::array<char, kPingBytes> pong{};
  for (int i = 0; i <= count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(gap_ms));
    const auto began = Clock::now();
    ::zmq_send(dealer.socket, ping.data(), ping.size(), 0);
    if (::zmq_recv(dealer.socket, pong.data(), pong.size(), 0) != static_cast<int>(pong.size())) {
      return Failed("ping " + endpoint, ::zmq_strerror(::zmq_errno()));
    }
    if (i > 0) seconds.push_back(SecondsSince(began));  // The first one connects.
  }
  return seconds;
}

namespace {

Result<std::vector<double>> CopyMapped(int pid, int descriptor, std::byte* target,
                                       std::size_t bytes, int count, bool huge_pages) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  const UniqueFd memory(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory.valid()) return ErrnoError("map " + path, errno);
  const Mapping source(memory.get(), RoomFor(bytes, huge_pages), PROT_READ,
                       MAP_SHARED | MAP_POPULATE);
  if (source.data == nullptr) return ErrnoError("map " + path, errno);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) % kRawRounds * bytes;
    const auto began = Clock::now();
    std::memcpy(target + at, static_cast<const std::byte*>(source.data) + at, bytes);
    seconds.push_back(SecondsSince(began));
  }
  return seconds;
}

Result<std::vector<double>> CopyOverTcp(std::uint16_t port, std::byte* target, std::size_t bytes,
                                        int count) {
  const UniqueFd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  const std::string attempt = "copy from port " + std::to_string(port);
  if (!connection.valid() ||
      ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
          0) {
    return ErrnoError(attempt, errno);
  }
  const int on = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    std::byte* const to = target + static_cast<std::size_t>(i) % kRawRounds * bytes;
    const auto began = Clock::now();
    if (::send(connection.get(), "x", 1, MSG_NOSIGNAL) != 1) return ErrnoError(attempt, errno);
    for (std::size_t got = 0; got < bytes;) {
      const ssize_t n = ::recv(connection.get(), to + got, bytes - got, 0);
      if (n == 0) return Failed(attempt, "the connection was closed");
      if (n < 0) return ErrnoError(attempt, errno);
      got += static_cast<std::size_t>(n);
    }
    seconds.push_back(SecondsSince(began));
  }
  return seconds;
}

}  // namespace

Result<std::vector<double>> RawCopy(const std::string& plane, int pid, int descriptor,
                                    std::uint16_t port, std::size_t bytes, int count,
                                    const std::string& pages) {
  const bool huge = pages == "explicit";
  const Mapping target(-1, RoomFor(bytes, huge), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (huge ? MAP_HUGETLB : 0));
  if (target.data == nullptr) return ErrnoError("allocate memory to copy into", errno);
  auto* const to = static_cast<std::byte*>(target.data);
  if (plane == "shared_memory") return CopyMapped(pid, descriptor, to, bytes, count, huge);
  if (plane == "tcp") return CopyOverTcp(port, to, bytes, count);
  return Error{ErrorCode::kInvalidArgument, "there is no raw copy for the plane " + plane};
}

}  // namespace terrace::matrix
