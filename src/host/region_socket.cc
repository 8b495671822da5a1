#include "host/region_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

constexpr std::string_view kPrefix = "terrace-host-region/";

struct Address {
  sockaddr_un socket{};
  socklen_t size_bytes = 0;
};

// A leading NUL makes it abstract: the name lives and dies with the socket.
Address AddressOf(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::string path = std::string(1, '\0') + std::string(kPrefix) + name;
  std::memcpy(address.socket.sun_path, path.data(), path.size());
  address.size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return address;
}

Result<UniqueFd> OpenSocket() {
  UniqueFd fd(
      KeepAwayFromStdio(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd.valid()) return ErrnoError("open a socket for host memory", errno);
  return fd;
}

UniqueFd TakePassedDescriptor(msghdr& header) {
  UniqueFd fd;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(part), sizeof(passed));
    fd = UniqueFd(KeepAwayFromStdio(passed));
  }
  return fd;
}

}  // namespace

Result<UniqueFd> ListenForRegion(const std::string& name) {
  auto fd = OpenSocket();
  if (!fd.ok()) return fd;
  const Address address = AddressOf(name);
  const auto* socket = reinterpret_cast<const sockaddr*>(&address.socket);
  if (::bind(fd.value().get(), socket, address.size_bytes) != 0) {
    if (errno == EADDRINUSE) {
      return Error{ErrorCode::kUnavailable, "another process is setting up a region of that name"};
    }
    return ErrnoError("bind its socket", errno);
  }
  if (::listen(fd.value().get(), SOMAXCONN) != 0) return ErrnoError("listen", errno);
  return fd;
}

Result<std::optional<UniqueFd>> ConnectToRegion(const std::string& name) {
  auto fd = OpenSocket();
  if (!fd.ok()) return std::move(fd).error();
  const Address address = AddressOf(name);
  const auto* socket = reinterpret_cast<const sockaddr*>(&address.socket);
  if (::connect(fd.value().get(), socket, address.size_bytes) == 0) {
    return std::optional(std::move(fd).value());
  }
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::optional<UniqueFd>();
  return ErrnoError("connect to its creator", errno);
}

Result<std::optional<UniqueFd>> AcceptForRegion(int listener) {
  UniqueFd fd(
      KeepAwayFromStdio(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  if (fd.valid()) return std::optional(std::move(fd));
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::optional<UniqueFd>();
  return ErrnoError("accept a process", errno);
}

Result<void> SendRegionMessage(int socket, const RegionMessage& message, int memory_fd) {
  iovec piece{const_cast<RegionMessage*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (memory_fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &memory_fd, sizeof(int));
  }
  while (::sendmsg(socket, &header, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return ErrnoError("send", errno);
  }
  return {};
}

Result<std::optional<ReceivedRegionMessage>> ReceiveRegionMessage(int socket) {
  ReceivedRegionMessage received;
  iovec piece{&received.message, sizeof(received.message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    // A reset is told before what the other end sent last; the next call gets that.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0) return ErrnoError("receive", errno);
  if (size == 0) return std::optional<ReceivedRegionMessage>();
  received.memory = TakePassedDescriptor(header);
  const std::size_t whole =
      static_cast<std::size_t>(size) + ((header.msg_flags & MSG_TRUNC) != 0 ? 1 : 0);
  if (auto checked = CheckRegionMessage(received.message, whole); !checked.ok()) {
    return std::move(checked).error();
  }
  return std::optional(std::move(received));
}

bool WaitUntilReadable(int socket, std::chrono::steady_clock::time_point deadline) {
  pollfd wait{socket, POLLIN, 0};
  while (true) {
    const int ready = ::poll(&wait, 1, PollTimeoutMs(deadline));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
  }
}

int PollTimeoutMs(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  constexpr std::int64_t kMostMs = 60'000;
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kMostMs));
}

}  // namespace terrace
