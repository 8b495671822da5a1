#include "tier/peer/zmq_door.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "tier/peer/tcp_socket.h"

namespace terrace {
namespace {

// Connections that ZeroMQ has not seen yet: they come in after the port became deaf.
constexpr int kBacklog = 31;
constexpr std::size_t kSpare = kBacklog + 1;  // A backlog of n is a queue of n + 1.
constexpr std::chrono::milliseconds kPause{100};
constexpr int kNewsAtOnce = 256;
constexpr char kNewsEndpoint[] = "inproc://terrace-door";

}  // namespace

Result<void> ZmqDoor::Open(zmq::context_t& context, zmq::socket_t& socket, const std::string& host,
                           std::uint16_t port) {
  auto listener = ListenTcp(host, port);
  if (!listener.ok()) return std::move(listener).error();
  listener_ = std::move(listener).value();
  auto bound = PortOf(listener_.get());
  if (!bound.ok()) return std::move(bound).error();
  port_ = bound.value();
  UniqueFd given(KeepAwayFromStdio(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0)));
  if (!given.valid() || !FillSpare() || ::listen(listener_.get(), kBacklog) != 0) {
    return ErrnoError("listen for peers on " + host, errno);
  }
  const int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED | ZMQ_EVENT_DISCONNECTED |
                     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(socket.handle(), kNewsEndpoint, events) != 0) throw zmq::error_t();
  news_ = zmq::socket_t(context, zmq::socket_type::pair);
  news_.set(zmq::sockopt::linger, 0);
  news_.set(zmq::sockopt::rcvhwm, 0);  // ZeroMQ's thread would wait for us.
  news_.connect(kNewsEndpoint);
  socket.set(zmq::sockopt::use_fd, given.get());
  socket.bind("tcp://127.0.0.1:*");  // Means nothing: it has its socket.
  given.Release();
  return {};
}

bool ZmqDoor::Look() {
  const bool more = TakeNews();
  const bool full = inside_.size() > connections_max_;
  if (!deaf_ && !full && !out_of_descriptors_) return more;
  const auto now = std::chrono::steady_clock::now();
  if (!deaf_ || out_of_descriptors_) {
    if (full) ForgetGone();
    if (out_of_descriptors_) {
      Deafen("no descriptors are left");
    } else if (inside_.size() > connections_max_) {
      Deafen("there are too many connections");
    }
    look_again_at_ = now + kPause;
  } else if (now >= look_again_at_) {
    look_again_at_ = now + kPause;
    ForgetGone();
    if (inside_.size() <= connections_max_ / 4 * 3 && FillSpare()) Hear();
  }
  return more;
}

bool ZmqDoor::TakeNews() {
  for (int i = 0; i < kNewsAtOnce; ++i) {
    zmq::message_t event, endpoint;
    if (!news_.recv(event, zmq::recv_flags::dontwait)) return false;
    if (event.more()) static_cast<void>(news_.recv(endpoint, zmq::recv_flags::dontwait));
    std::uint16_t number = 0;
    std::int32_t value = 0;
    if (event.size() < sizeof number + sizeof value) continue;
    std::memcpy(&number, event.data(), sizeof number);
    std::memcpy(&value, static_cast<const char*>(event.data()) + sizeof number, sizeof value);
    On(number, value);
  }
  return true;
}

void ZmqDoor::On(std::uint16_t event, std::int32_t value) {
  switch (event) {
    case ZMQ_EVENT_ACCEPTED:
      inside_.insert(value);
      break;
    case ZMQ_EVENT_DISCONNECTED:
      inside_.erase(value);
      break;
    case ZMQ_EVENT_ACCEPT_FAILED:
      if (value == EMFILE || value == ENFILE || value == ENOBUFS || value == ENOMEM) {
        out_of_descriptors_ = true;
      }
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      OnWrongKeys();
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
        OnWrongKeys();
      } else {
        OnStranger();
      }
      break;
    default:
      // ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: of HTTP, say, ZeroMQ waits in vain for more. And if
      // only one of the two has keys, it may be the other one that hangs up.
      OnStranger();
  }
}

void ZmqDoor::OnStranger() {
  ++strangers_.unknown;
  TERRACE_LOG_WARN_LIMITED(unknown_log_, std::chrono::steady_clock::now(),
                           "peer tier: a caller at port {} is no peer, or only one of the two has "
                           "keys: it did not say what a peer says, or not in time",
                           port_);
}

void ZmqDoor::OnWrongKeys() {
  ++strangers_.wrong_keys;
  TERRACE_LOG_WARN_LIMITED(
      wrong_keys_log_, std::chrono::steady_clock::now(),
      "peer tier: a caller at port {} was not let in: its keys are not this group's", port_);
}

// Those whose end was not told, if there are any.
void ZmqDoor::ForgetGone() {
  std::erase_if(inside_, [&](int fd) {
    const auto port = PortOf(fd);
    return !port.ok() || port.value() != port_;
  });
}

void ZmqDoor::Deafen(const char* why) {
  sock_filter drop_all[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, drop_all};
  (void)::setsockopt(listener_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  if (out_of_descriptors_) TurnAway();
  out_of_descriptors_ = false;
  deaf_ = true;
  ++times_deaf_;
  TERRACE_LOG_WARN_LIMITED(log_, std::chrono::steady_clock::now(),
                           "peer tier: port {} accepts nobody for a while: {}", port_, why);
}

void ZmqDoor::Hear() {
  const int ignored = 0;
  deaf_ =
      ::setsockopt(listener_.get(), SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof ignored) != 0;
}

// Who is in the queue already: ZeroMQ would try for ever to accept it. It may be faster than we
// are, and take the spare ones; that empties the queue, too.
void ZmqDoor::TurnAway() {
  spare_.clear();
  for (std::size_t i = 0; i < kSpare; ++i) {
    const UniqueFd one(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!one.valid()) break;
  }
}

bool ZmqDoor::FillSpare() {
  while (spare_.size() < kSpare) {
    UniqueFd one(KeepAwayFromStdio(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0)));
    if (!one.valid()) return false;
    spare_.push_back(std::move(one));
  }
  return true;
}

}  // namespace terrace
