// Messages between nodes over ZeroMQ: one ROUTER that others call, one DEALER for each holder that
// we dialled.
//
// ZeroMQ's own thread moves the bytes; every call here only touches its queues. Sockets never
// reconnect by themselves: a link that broke is lost, and whoever wants another one dials. With a
// key pair everything is encrypted, and only those who have the pair get in (CURVE, with a ZAP
// handler in Next()).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "base/fd.h"
#include "tier/peer/control_network.h"
#include "tier/peer/zmq_door.h"

namespace terrace {

struct ZmqNetworkOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any that is free.
  // CURVE, as Z85 text; both empty: none.
  std::string public_key;
  std::string secret_key;
  std::size_t message_bytes_max = 64 << 10;
  std::uint32_t connect_timeout_ms = 1'000;
  std::uint32_t callers_max = 192;  // Connections at a time, strangers too; see ZmqDoor.
};

class ZmqNetwork final : public ControlNetwork {
 public:
  // kInvalidArgument: the address or the keys cannot be used. kUnavailable: the port is taken, ...
  static Result<std::unique_ptr<ZmqNetwork>> Create(const ZmqNetworkOptions& options);
  ~ZmqNetwork() override;

  std::uint16_t port() const override { return door_.port(); }
  int descriptor() const override { return ready_.get(); }
  Result<LinkId> Dial(const PeerAddress& address) override;
  void HangUp(LinkId link) override;
  bool Send(LinkId link, std::span<const std::uint8_t> bytes) override;
  bool Reply(const std::string& caller, std::span<const std::uint8_t> bytes) override;
  std::optional<Event> Next() override;
  void KeepReady() override;
  std::uint64_t times_deaf() const override { return door_.times_deaf(); }
  StrangerCounts strangers() const override { return door_.strangers(); }

 private:
  struct Link {
    zmq::socket_t socket;
    zmq::socket_t monitor;
  };

  explicit ZmqNetwork(const ZmqNetworkOptions& options);
  Result<void> Open();
  void Watch(zmq::socket_t& socket);
  void Unwatch(zmq::socket_t& socket);
  void SetKeys(zmq::socket_t& socket, bool server);
  void MayHaveMissed(zmq::socket_t& socket);
  void AnswerZap();
  std::optional<Event> NextCall();
  std::optional<Event> NextOf(LinkId id, Link& link);
  static std::optional<std::string> TakeLoss(Link& link);

  const ZmqNetworkOptions options_;
  zmq::context_t context_;
  UniqueFd ready_;  // An epoll of the sockets' descriptors and of missed_.
  // ZeroMQ's descriptors tell of news only once, and a call that sends may eat the telling: this
  // one repeats it.
  UniqueFd missed_;
  zmq::socket_t zap_;
  zmq::socket_t router_;
  ZmqDoor door_;  // Of router_.
  std::map<LinkId, Link> links_;
  std::uint64_t next_link_ = 1;
  LinkId last_served_;  // Next() begins behind it.
};

}  // namespace terrace
