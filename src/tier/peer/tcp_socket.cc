#include "tier/peer/tcp_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"

namespace terrace {
namespace {

// More names at a time are refused: a resolver that hangs must not gather threads.
constexpr int kResolversMax = 16;
std::atomic<int> g_resolvers = 0;  // Relaxed: a number, nothing more.

Result<std::vector<TcpAddress>> Resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("resolve \"{}\": {}", host, ::gai_strerror(failed))};
  }
  std::vector<TcpAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    std::memcpy(&addresses.emplace_back().storage, at->ai_addr, at->ai_addrlen);
    addresses.back().size = at->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

// Shared by who waits and the thread that resolves.
struct Resolution {
  Mutex mutex;
  std::optional<Result<std::vector<TcpAddress>>> result TERRACE_GUARDED_BY(mutex);
};

Result<std::shared_ptr<Resolution>> BeginResolution(const std::string& host, std::uint16_t port) {
  if (g_resolvers.fetch_add(1, std::memory_order_relaxed) >= kResolversMax) {
    g_resolvers.fetch_sub(1, std::memory_order_relaxed);
    return Error{ErrorCode::kUnavailable, "too many names are being resolved"};
  }
  auto resolution = std::make_shared<Resolution>();
  auto thread = StartThread("terrace-peer-", "dn", [resolution, host, port] {
    auto result = Resolve(host, port, 0);
    g_resolvers.fetch_sub(1, std::memory_order_relaxed);
    MutexLock lock(resolution->mutex);
    resolution->result = std::move(result);
  });
  if (!thread.ok()) {
    g_resolvers.fetch_sub(1, std::memory_order_relaxed);
    return std::move(thread).error();
  }
  thread.value().detach();
  return resolution;
}

class TcpDial final : public Dial {
 public:
  TcpDial(std::string host, std::uint16_t port) : host_(std::move(host)), port_(port) {}

  Result<std::optional<UniqueFd>> Next() override {
    if (!resolved_) {
      if (auto resolved = TryResolve(); !resolved.ok()) return std::move(resolved).error();
      if (!resolved_) return std::optional<UniqueFd>();
    }
    while (at_ < addresses_.size()) {
      if (auto fd = Connect(addresses_[at_++])) return fd;
    }
    return Error{ErrorCode::kUnavailable,
                 fmt::format("connect to {}, port {}: {}", host_, port_, why_)};
  }

 private:
  Result<void> TryResolve() {
    if (!resolution_) {
      if (auto numeric = Resolve(host_, port_, AI_NUMERICHOST); numeric.ok()) {
        return Take(std::move(numeric).value());
      }
      auto begun = BeginResolution(host_, port_);
      if (!begun.ok()) return std::move(begun).error();
      resolution_ = std::move(begun).value();
    }
    MutexLock lock(resolution_->mutex);
    if (!resolution_->result) return {};
    if (!resolution_->result->ok()) return resolution_->result->error();
    return Take(resolution_->result->value());
  }
  Result<void> Take(std::vector<TcpAddress> addresses) {
    addresses_ = std::move(addresses);
    resolved_ = true;
    return {};
  }

  std::optional<UniqueFd> Connect(const TcpAddress& address) {
    UniqueFd fd(KeepAwayFromStdio(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    if (fd.valid()) {
      TuneTcp(fd.get());
      const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
      if (::connect(fd.get(), to, address.size) == 0 || errno == EINPROGRESS) return fd;
    }
    why_ = ErrnoError("the last address", errno).message;
    return std::nullopt;
  }

  const std::string host_;
  const std::uint16_t port_;
  std::shared_ptr<Resolution> resolution_;
  bool resolved_ = false;
  std::vector<TcpAddress> addresses_;
  std::size_t at_ = 0;
  std::string why_ = "nobody listens there";
};

std::optional<std::uint16_t> ParsePort(std::string_view offer) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(offer.data(), offer.data() + offer.size(), port);
  if (error != std::errc() || end != offer.data() + offer.size() || port == 0) return std::nullopt;
  return port;
}

class BadOffer final : public Dial {
 public:
  Result<std::optional<UniqueFd>> Next() override {
    return Error{ErrorCode::kInvalidArgument, "the peer offers no port"};
  }
};

}  // namespace

Result<UniqueFd> ListenTcp(const std::string& host, std::uint16_t port) {
  const std::string attempt = fmt::format("listen on {}, port {}", host, port);
  auto addresses = Resolve(host, port, AI_PASSIVE);
  if (!addresses.ok()) return std::move(addresses).error();
  Error error{ErrorCode::kNotFound, attempt + ": the host has no address"};
  for (const TcpAddress& address : addresses.value()) {
    UniqueFd fd(KeepAwayFromStdio(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    const int on = 1;                   // A node that was restarted gets its port back at once.
    if (fd.valid()) TuneTcp(fd.get());  // Inherited by what it accepts.
    if (fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0 &&
        ::listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = ErrnoError(attempt, errno);
  }
  return error;
}

Result<std::uint16_t> PortOf(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return ErrnoError("ask for the port of a socket", errno);
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void TuneTcp(int socket) {
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(socket, level, option, &value, sizeof value);
  };
  // On a fast link bbr, where it is the system's choice, paces itself to half of what cubic moves.
  constexpr std::string_view kCongestion = "cubic";
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kCongestion.data(), kCongestion.size());
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_SNDBUF, 4 << 20);
  set(SOL_SOCKET, SO_RCVBUF, 4 << 20);
  // Who has lost its power says no goodbye.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

std::unique_ptr<Dial> DialTcp(const std::string& host, std::uint16_t port) {
  return std::make_unique<TcpDial>(host, port);
}

std::unique_ptr<Dial> DialTcpOffer(const std::string& host, const std::string& offer) {
  if (const auto port = ParsePort(offer)) return DialTcp(host, *port);
  return std::make_unique<BadOffer>();
}

}  // namespace terrace
