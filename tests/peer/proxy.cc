#include "tests/peer/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "tests/contract/fake_tier_host.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Kind = Proxy::Fault::Kind;

constexpr std::size_t kPieceMax = 64 << 10;
constexpr std::size_t kHeldMax = 128 << 10;
constexpr milliseconds kDelay{5};
constexpr Proxy::Way kWays[] = {Proxy::Way::kToHolder, Proxy::Way::kToAsker};

sockaddr_in AddressOf(const char* host, std::uint32_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

UniqueFd NewSocket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd.valid() || ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    std::abort();
  }
  return fd;
}

}  // namespace

Proxy::Proxy(std::uint32_t port) : port_(port), listener_(NewSocket()) {
  const sockaddr_in address = AddressOf(kProxyHost, port);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    std::abort();
  }
  thread_ = std::thread([this] { Run(); });
}

Proxy::~Proxy() {
  stopping_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Proxy::Set(const Fault& fault) {
  MutexLock lock(mutex_);
  fault_ = fault;
  happened_ = false;
  counts_[0] = counts_[1] = 0;
}

bool Proxy::happened() const {
  MutexLock lock(mutex_);
  return happened_;
}

std::size_t Proxy::forwarded(Way way) const {
  MutexLock lock(mutex_);
  return counts_[static_cast<std::size_t>(way)];
}

bool Proxy::AwaitForwarded(Way way, std::size_t bytes) const {
  const auto end = Clock::now() + kPatience;
  MutexLock lock(mutex_);
  while (counts_[static_cast<std::size_t>(way)] < bytes) {
    if (!counted_.WaitUntil(mutex_, end)) return false;
  }
  return true;
}

Proxy::Fault Proxy::CurrentFault() const {
  MutexLock lock(mutex_);
  return fault_;
}

std::size_t Proxy::Room(Way way) const {
  if (fault_.kind == Kind::kBlackHole) return 0;
  if (fault_.kind != Kind::kOneWayHole || fault_.way != way) return kPieceMax;
  return std::min(kPieceMax, fault_.after - counts_[static_cast<std::size_t>(way)]);
}

void Proxy::Run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    Wait();
    const Fault fault = CurrentFault();
    Accept();
    if (fault.kind != Kind::kBlackHole) {
      for (Connection& one : connections_) {
        for (const Way way : kWays) {
          if (!one.over) Take(one, way, fault);
        }
        for (const Way way : kWays) {
          if (!one.over) Forward(one, way, fault);
        }
      }
    }
    connections_.remove_if([](const Connection& one) { return one.over; });
  }
}

void Proxy::Accept() {
  for (;;) {
    UniqueFd asker(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!asker.valid()) return;
    UniqueFd holder = NewSocket();
    // What is under way is little: what happens to a node happens before it has sent all.
    const int room = 64 << 10;
    (void)::setsockopt(holder.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    const sockaddr_in address = AddressOf("127.0.0.1", port_);
    if (::connect(holder.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
        errno != EINPROGRESS) {
      continue;
    }
    Connection& added = connections_.emplace_back();
    added.to_holder.from = added.to_asker.to = asker.get();
    added.to_asker.from = added.to_holder.to = holder.get();
    added.asker = std::move(asker);
    added.holder = std::move(holder);
  }
}

// Until there is something to do.
void Proxy::Wait() {
  std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
  bool slow = false;
  {
    MutexLock lock(mutex_);
    slow = fault_.kind == Kind::kSlow;
    for (Connection& one : connections_) {
      for (const Way way : kWays) {
        const Stream& stream = one.Of(way);
        if (!stream.ended && stream.held < kHeldMax && Room(way) > 0) {
          fds.push_back({stream.from, POLLIN, 0});
        }
      }
    }
  }
  ::poll(fds.data(), fds.size(), slow ? 1 : 2);
  if (slow) std::this_thread::sleep_for(milliseconds(1));
}

void Proxy::Take(Connection& connection, Way way, const Fault& fault) {
  Stream& stream = connection.Of(way);
  if (stream.ended || stream.held >= kHeldMax) return;
  std::vector<std::byte> bytes(kPieceMax);
  Kind end = Kind::kNone;
  {
    MutexLock lock(mutex_);
    bytes.resize(Room(way));
    if (bytes.empty()) return;
    const ssize_t got = ::recv(stream.from, bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) return End(connection, Kind::kCut);
    stream.ended = got == 0;
    bytes.resize(static_cast<std::size_t>(got));
    const std::size_t before = counts_[static_cast<std::size_t>(way)];
    const bool hits = fault_.way == way && !happened_ && fault_.after >= before &&
                      fault_.after - before < bytes.size();
    if (hits && fault_.kind == Kind::kFlip) {
      bytes[fault_.after - before] ^= std::byte{0x10};
      happened_ = true;
    } else if (hits && (fault_.kind == Kind::kCut || fault_.kind == Kind::kTruncate)) {
      bytes.resize(fault_.after - before);
      happened_ = true;
      end = fault_.kind;
    }
    counts_[static_cast<std::size_t>(way)] += bytes.size();
  }
  counted_.NotifyAll();
  if (!bytes.empty()) {
    const auto due = Clock::now() + (fault.kind == Kind::kDelay ? kDelay : milliseconds(0));
    stream.held += bytes.size();
    stream.pieces.push_back({due, std::move(bytes)});
  }
  if (end == Kind::kNone) return;
  Forward(connection, way, fault);
  End(connection, end);
}

void Proxy::Forward(Connection& connection, Way way, const Fault& fault) {
  Stream& stream = connection.Of(way);
  while (!stream.pieces.empty() && stream.pieces.front().due <= Clock::now()) {
    auto& bytes = stream.pieces.front().bytes;
    const std::size_t size = fault.kind == Kind::kSlow ? 1 : bytes.size();
    const ssize_t sent = ::send(stream.to, bytes.data(), size, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return;
    if (sent < 0) {
      // Of that the other end hears only through what leads there.
      if (fault.kind != Kind::kOneWayHole || fault.way == way) return End(connection, Kind::kCut);
      stream.pieces.clear();
      stream.held = 0;
      return;
    }
    stream.held -= static_cast<std::size_t>(sent);
    bytes.erase(bytes.begin(), bytes.begin() + sent);
    if (bytes.empty()) stream.pieces.pop_front();
    if (fault.kind == Kind::kSlow) return;
  }
  if (stream.ended && stream.pieces.empty()) End(connection, Kind::kTruncate);
}

void Proxy::End(Connection& connection, Fault::Kind how) {
  connection.over = true;
  if (how != Kind::kCut) return;
  const linger reset{1, 0};
  for (const UniqueFd* fd : {&connection.asker, &connection.holder}) {
    (void)::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
}

}  // namespace terrace::testing
