#include "tier/peer/zmq_network.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// Messages that wait for a peer that does not read, and from one that nobody reads; beyond it
// sending fails.
constexpr int kQueuedMessagesMax = 256;
constexpr int kLingerMs = 50;        // For a goodbye.
constexpr int kHandshakeMs = 2'000;  // Strangers that say nothing ZeroMQ understands are let go.
// A cut that nobody tells us of is noticed after the second.
constexpr int kHeartbeatMs = 2'000;
constexpr int kHeartbeatTimeoutMs = 6'000;
constexpr char kZapEndpoint[] = "inproc://zeromq.zap.01";
constexpr std::size_t kZapFrames = 7;

std::string Endpoint(const std::string& host, std::uint32_t port) {
  const bool is_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return "tcp://" + (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Error ZmqError(ErrorCode code, const std::string& attempt, const zmq::error_t& error) {
  return {code, attempt + ": " + error.what()};
}

zmq::message_t MessageOf(std::span<const std::uint8_t> bytes) {
  return zmq::message_t(bytes.data(), bytes.size());
}

std::vector<std::uint8_t> BytesOf(const zmq::message_t& message) {
  const auto* data = static_cast<const std::uint8_t*>(message.data());
  return {data, data + message.size()};
}

// A message of ours has one part; one of more is dropped whole. True if there were more.
bool DropsRest(zmq::socket_t& socket, bool more) {
  const bool had_more = more;
  while (more) {
    zmq::message_t rest;
    if (!socket.recv(rest, zmq::recv_flags::dontwait)) break;
    more = rest.more();
  }
  return had_more;
}

}  // namespace

Result<std::unique_ptr<ZmqNetwork>> ZmqNetwork::Create(const ZmqNetworkOptions& options) {
  std::unique_ptr<ZmqNetwork> network(new ZmqNetwork(options));
  if (auto opened = network->Open(); !opened) return std::move(opened).error();
  return network;
}

ZmqNetwork::ZmqNetwork(const ZmqNetworkOptions& options)
    : options_(options),
      ready_(::epoll_create1(EPOLL_CLOEXEC)),
      missed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      door_(options.callers_max) {}

ZmqNetwork::~ZmqNetwork() = default;

Result<void> ZmqNetwork::Open() {
  const std::string endpoint = Endpoint(options_.host, options_.port);
  const std::string attempt = "listen for peers on " + endpoint;
  if (!ready_.valid() || !missed_.valid()) {
    return Error{ErrorCode::kResourceExhausted, attempt + ": no descriptors are left"};
  }
  epoll_event event{.events = EPOLLIN, .data = {.fd = missed_.get()}};
  TERRACE_CHECK(::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, missed_.get(), &event) == 0,
                "an epoll refuses an eventfd");
  try {
    context_.set(zmq::ctxopt::blocky, false);
    if (!options_.public_key.empty()) {
      zap_ = zmq::socket_t(context_, zmq::socket_type::rep);
      zap_.bind(kZapEndpoint);
      Watch(zap_);
    }
    router_ = zmq::socket_t(context_, zmq::socket_type::router);
    router_.set(zmq::sockopt::linger, kLingerMs);
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.set(zmq::sockopt::sndhwm, kQueuedMessagesMax);
    router_.set(zmq::sockopt::rcvhwm, kQueuedMessagesMax);
    router_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(options_.message_bytes_max));
    router_.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
    router_.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
    router_.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
    SetKeys(router_, /*server=*/true);
    if (auto opened = door_.Open(context_, router_, options_.host, options_.port); !opened.ok()) {
      const bool hopeless = opened.error().code == ErrorCode::kNotFound;
      return Error{hopeless ? ErrorCode::kInvalidArgument : opened.error().code,
                   attempt + ": " + opened.error().message};
    }
    Watch(door_.news());
    Watch(router_);
  } catch (const zmq::error_t& error) {
    const bool hopeless = error.num() == EINVAL || error.num() == ENODEV;
    return ZmqError(hopeless ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, attempt,
                    error);
  }
  return {};
}

// Everybody of a group has the same pair, so each knows the key of whoever it calls.
void ZmqNetwork::SetKeys(zmq::socket_t& socket, bool server) {
  if (options_.public_key.empty()) return;
  socket.set(zmq::sockopt::curve_publickey, options_.public_key);
  socket.set(zmq::sockopt::curve_secretkey, options_.secret_key);
  if (server) {
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::zap_domain, "terrace");
  } else {
    socket.set(zmq::sockopt::curve_serverkey, options_.public_key);
  }
}

void ZmqNetwork::Watch(zmq::socket_t& socket) {
  const int fd = socket.get(zmq::sockopt::fd);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw zmq::error_t();
  MayHaveMissed(socket);
}

void ZmqNetwork::Unwatch(zmq::socket_t& socket) {
  ::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, socket.get(zmq::sockopt::fd), nullptr);
}

void ZmqNetwork::MayHaveMissed(zmq::socket_t& socket) {
  if ((socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) KeepReady();
}

void ZmqNetwork::KeepReady() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(missed_.get(), &one, sizeof(one)));  // Full is readable, too.
}

Result<LinkId> ZmqNetwork::Dial(const PeerAddress& address) {
  const std::string endpoint = Endpoint(address.host, address.port);
  const LinkId id(next_link_++);
  try {
    Link link{zmq::socket_t(context_, zmq::socket_type::dealer),
              zmq::socket_t(context_, zmq::socket_type::pair)};
    zmq::socket_t& socket = link.socket;
    socket.set(zmq::sockopt::linger, kLingerMs);
    socket.set(zmq::sockopt::reconnect_ivl, -1);
    socket.set(zmq::sockopt::connect_timeout, static_cast<int>(options_.connect_timeout_ms));
    socket.set(zmq::sockopt::sndhwm, kQueuedMessagesMax);
    socket.set(zmq::sockopt::rcvhwm, kQueuedMessagesMax);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(options_.message_bytes_max));
    socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
    socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
    socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
    socket.set(zmq::sockopt::ipv6, address.host.find(':') != std::string::npos);
    SetKeys(socket, /*server=*/false);
    const std::string monitor = "inproc://terrace-monitor-" + std::to_string(id.value);
    const int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CLOSE_FAILED |
                       ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(socket.handle(), monitor.c_str(), events) != 0) throw zmq::error_t();
    link.monitor.connect(monitor);
    socket.connect(endpoint);
    Link& added = links_.emplace(id, std::move(link)).first->second;
    Watch(added.socket);
    Watch(added.monitor);
  } catch (const zmq::error_t& error) {
    links_.erase(id);
    const bool hopeless = error.num() == EINVAL || error.num() == ENODEV;
    return ZmqError(hopeless ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                    "connect to peer " + endpoint, error);
  }
  return id;
}

void ZmqNetwork::HangUp(LinkId id) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  Unwatch(link->second.socket);
  Unwatch(link->second.monitor);
  zmq_socket_monitor(link->second.socket.handle(), nullptr, 0);
  links_.erase(link);
}

bool ZmqNetwork::Send(LinkId id, std::span<const std::uint8_t> bytes) {
  const auto link = links_.find(id);
  if (link == links_.end()) return false;
  try {
    const bool sent =
        link->second.socket.send(MessageOf(bytes), zmq::send_flags::dontwait).has_value();
    MayHaveMissed(link->second.socket);
    return sent;
  } catch (const zmq::error_t&) {
    return false;
  }
}

bool ZmqNetwork::Reply(const std::string& caller, std::span<const std::uint8_t> bytes) {
  try {
    const auto flags = zmq::send_flags::dontwait | zmq::send_flags::sndmore;
    if (!router_.send(zmq::message_t(caller.data(), caller.size()), flags).has_value())
      return false;
    const bool sent = router_.send(MessageOf(bytes), zmq::send_flags::dontwait).has_value();
    MayHaveMissed(router_);
    return sent;
  } catch (const zmq::error_t&) {
    return false;  // EHOSTUNREACH: it is gone.
  }
}

// Turn by turn: who talks much does not keep the others from being heard.
std::optional<ControlNetwork::Event> ZmqNetwork::Next() {
  std::uint64_t count;
  static_cast<void>(!::read(missed_.get(), &count, sizeof(count)));
  try {
    if (door_.Look()) KeepReady();
    AnswerZap();
    auto link = links_.upper_bound(last_served_);
    for (std::size_t i = 0; i <= links_.size(); ++i) {
      const bool calls = link == links_.end();
      auto event = calls ? NextCall() : NextOf(link->first, link->second);
      last_served_ = calls ? LinkId() : link->first;
      link = calls ? links_.begin() : std::next(link);
      if (event) return event;
    }
  } catch (const zmq::error_t& error) {
    // Only what is ours to get wrong: a closed context, a socket that is none.
    TERRACE_CHECK(error.num() == EINTR, error.what());
  }
  return std::nullopt;
}

std::optional<ControlNetwork::Event> ZmqNetwork::NextCall() {
  for (;;) {
    zmq::message_t caller;
    if (!router_.recv(caller, zmq::recv_flags::dontwait)) return std::nullopt;
    if (!caller.more()) continue;
    zmq::message_t payload;
    if (!router_.recv(payload, zmq::recv_flags::dontwait)) return std::nullopt;
    if (DropsRest(router_, payload.more())) continue;
    return Event{Event::Kind::kCall, {}, caller.to_string(), BytesOf(payload), {}};
  }
}

std::optional<ControlNetwork::Event> ZmqNetwork::NextOf(LinkId id, Link& link) {
  for (;;) {
    zmq::message_t payload;
    // What it said before it went counts.
    if (!link.socket.recv(payload, zmq::recv_flags::dontwait)) break;
    if (DropsRest(link.socket, payload.more())) continue;
    return Event{Event::Kind::kMessage, id, {}, BytesOf(payload), {}};
  }
  if (auto why = TakeLoss(link)) return Event{Event::Kind::kLinkLost, id, {}, {}, std::move(*why)};
  return std::nullopt;
}

std::optional<std::string> ZmqNetwork::TakeLoss(Link& link) {
  std::optional<std::string> why;
  for (;;) {
    zmq::message_t event;
    if (!link.monitor.recv(event, zmq::recv_flags::dontwait)) return why;
    zmq::message_t endpoint;
    if (event.more()) static_cast<void>(link.monitor.recv(endpoint, zmq::recv_flags::dontwait));
    if (event.size() < 6) continue;
    std::uint16_t number;
    std::memcpy(&number, event.data(), sizeof(number));
    switch (number) {
      case ZMQ_EVENT_DISCONNECTED:
        why = "the connection was closed";
        break;
      case ZMQ_EVENT_CLOSED:
      case ZMQ_EVENT_CLOSE_FAILED:
        why = "nobody answers there";
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        why = "the keys of the two nodes differ";
        break;
      default:
        why = "what answers there is no peer, or only one of the two nodes has keys";
    }
  }
}

// Lets in who has the group's own key, and nobody else (RFC 27).
void ZmqNetwork::AnswerZap() {
  if (!zap_) return;
  for (;;) {
    std::array<zmq::message_t, kZapFrames> frames;
    std::size_t count = 0;
    zmq::message_t frame;
    if (!zap_.recv(frame, zmq::recv_flags::dontwait)) return;
    for (bool more = true; more;) {
      more = frame.more();
      if (count < frames.size()) frames[count] = std::move(frame);
      ++count;
      if (more) static_cast<void>(zap_.recv(frame, zmq::recv_flags::dontwait));
    }
    // version, request id, domain, address, identity, mechanism, credentials
    bool good =
        count == kZapFrames && frames[5].to_string_view() == "CURVE" && frames[6].size() == 32;
    if (good) {
      std::array<char, 41> key;
      zmq_z85_encode(key.data(), static_cast<const std::uint8_t*>(frames[6].data()), 32);
      good = key.data() == std::string_view(options_.public_key);
    }
    zap_.send(zmq::str_buffer("1.0"), zmq::send_flags::sndmore);
    zap_.send(frames[1], zmq::send_flags::sndmore);
    zap_.send(zmq::message_t(std::string(good ? "200" : "400")), zmq::send_flags::sndmore);
    zap_.send(zmq::message_t(std::string(good ? "OK" : "not of this group")),
              zmq::send_flags::sndmore);
    zap_.send(zmq::message_t(std::string("peer")), zmq::send_flags::sndmore);
    zap_.send(zmq::message_t(), zmq::send_flags::none);
  }
}

}  // namespace terrace
