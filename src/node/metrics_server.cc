#include "node/metrics_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/thread.h"
#include "node/metrics_connection.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> Resolve(const ListenAddress& address, const std::string& attempt) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (failed == 0) return AddressList(found, &::freeaddrinfo);
  return Error{ErrorCode::kNotFound, attempt + ": " + ::gai_strerror(failed)};
}

// The first of a host's addresses that can be listened on.
Result<UniqueFd> Listen(const addrinfo* addresses, const std::string& attempt) {
  Error error{ErrorCode::kNotFound, attempt + ": the host has no address"};
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    UniqueFd fd(KeepAwayFromStdio(
        ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol)));
    const int on = 1;  // A node that was restarted gets its port back at once.
    if (fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = ErrnoError(attempt, errno);
  }
  return error;
}

Result<std::string> AddressOf(int fd, const std::string& attempt) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(fd, address, &size) != 0) return ErrnoError(attempt, errno);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int failed = ::getnameinfo(address, size, host.data(), host.size(), port.data(),
                                   port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (failed != 0) return Error{ErrorCode::kUnavailable, attempt + ": " + ::gai_strerror(failed)};
  const bool v6 = storage.ss_family == AF_INET6;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host.data(), v6 ? "]" : "", port.data());
}

}  // namespace

std::optional<ListenAddress> ParseListenAddress(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (host.find_first_not_of("0123456789abcdefABCDEF:.") != host.npos) return std::nullopt;
  } else if (host.find_first_of(":[]") != host.npos) {
    return std::nullopt;  // "::1:9464" could be read in two ways.
  }
  const auto is_visible = [](char c) { return c > ' ' && c < 127; };
  if (host.empty() || !std::all_of(host.begin(), host.end(), is_visible)) return std::nullopt;
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoul(std::string(port)) > 65535) {
    return std::nullopt;
  }
  return ListenAddress{std::string(host), std::string(port)};
}

// Confined to the server's thread.
class MetricsServer::Loop {
 public:
  Loop(int stop, UniqueFd listener, Render render, const Options& options)
      : stop_(stop),
        listener_(std::move(listener)),
        render_(std::move(render)),
        options_(options) {}

  void Run() {
    for (;;) {
      const auto ready = Poll();
      if ((ready[0].revents & POLLIN) != 0) return;
      const Clock::time_point now = Clock::now();
      rendered_.reset();
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        if (ready[kFixed + i].revents != 0) connections_[i].Advance([&] { return Metrics(); });
      }
      std::erase_if(connections_, [&](const HttpConnection& connection) {
        return connection.done() || connection.deadline() <= now;
      });
      if (ready[1].revents != 0) Accept();
    }
  }

 private:
  static constexpr std::size_t kFixed = 2;  // The descriptors before the connections'.
  // How long it waits for descriptors to become free in a process that has none left.
  static constexpr std::chrono::milliseconds kNoDescriptorsPause{100};

  // Sleeps until there is something to do.
  std::vector<pollfd> Poll() {
    const Clock::time_point now = Clock::now();
    const bool accepts = now >= accept_from_;
    std::vector<pollfd> fds{{stop_, POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}};
    std::optional<Clock::time_point> wake;
    if (!accepts) wake = accept_from_;
    for (const HttpConnection& connection : connections_) {
      fds.push_back({connection.fd(), connection.awaited_events(), 0});
      wake = std::min(wake.value_or(connection.deadline()), connection.deadline());
    }
    int timeout = -1;
    if (wake) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*wake - now);
      timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    if (::poll(fds.data(), fds.size(), timeout) < 0) {
      for (pollfd& fd : fds) fd.revents = 0;  // Interrupted.
    }
    return fds;
  }

  void Accept() {
    UniqueFd fd(KeepAwayFromStdio(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
    if (!fd.valid()) {
      const bool short_of =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (short_of) accept_from_ = Clock::now() + kNoDescriptorsPause;
      return;
    }
    if (connections_.size() >= options_.connections_max) connections_.erase(connections_.begin());
    connections_.emplace_back(std::move(fd), Clock::now() + options_.connection_time);
  }

  // One for all who ask at the same time: it costs a hold of the manager's lock.
  std::optional<std::string_view> Metrics() {
    if (!rendered_) rendered_.emplace(render_());
    return *rendered_;
  }

  const int stop_;
  const UniqueFd listener_;
  const Render render_;
  const Options options_;
  std::vector<HttpConnection> connections_;  // Oldest first.
  Clock::time_point accept_from_{};
  std::optional<std::optional<std::string>> rendered_;  // In this round.
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            Render render, const Options& options) {
  const std::string attempt = "listen on metrics_listen \"" + listen + "\"";
  const auto parsed = ParseListenAddress(listen);
  if (!parsed) return Error{ErrorCode::kInvalidArgument, attempt + ": it must be host:port"};
  auto addresses = Resolve(*parsed, attempt);
  if (!addresses.ok()) return std::move(addresses).error();
  auto listener = Listen(addresses.value().get(), attempt);
  if (!listener.ok()) return std::move(listener).error();
  auto address = AddressOf(listener.value().get(), attempt);
  if (!address.ok()) return std::move(address).error();
  UniqueFd stop(KeepAwayFromStdio(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!stop.valid()) return ErrnoError("make the metrics server's eventfd", errno);

  std::unique_ptr<MetricsServer> server(
      new MetricsServer(std::move(stop), std::move(address).value()));
  server->loop_ = std::make_unique<Loop>(server->stop_.get(), std::move(listener).value(),
                                         std::move(render), options);
  auto thread = StartThread("terrace-", "metrics", [loop = server->loop_.get()] { loop->Run(); });
  if (!thread.ok()) return std::move(thread).error();
  server->thread_ = std::move(thread).value();
  return server;
}

MetricsServer::MetricsServer(UniqueFd stop, std::string address)
    : stop_(std::move(stop)), address_(std::move(address)) {}

MetricsServer::~MetricsServer() {
  ::eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

}  // namespace terrace
