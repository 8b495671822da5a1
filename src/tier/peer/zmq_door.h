// The port that a ZeroMQ socket listens on, and how many may come in by it.
//
// ZeroMQ accepts whoever dials. A crowd would take every descriptor of the process, and once there
// is none left ZeroMQ's thread turns in circles. So the connections are counted, and above a limit,
// or when descriptors run out, the port is deaf for a while: a filter drops what comes to the
// listening socket, which those that are connected do not feel. (Unbinding would cut them.)
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "base/fd.h"
#include "base/log_limiter.h"
#include "terrace/result.h"
#include "tier/peer/control_network.h"

namespace terrace {

// Thread-compatible: used with the socket's lock.
class ZmqDoor {
 public:
  explicit ZmqDoor(std::uint32_t connections_max) : connections_max_(connections_max) {}

  // Makes `socket` listen there. May throw zmq::error_t. Cost: may resolve `host`.
  Result<void> Open(zmq::context_t& context, zmq::socket_t& socket, const std::string& host,
                    std::uint16_t port);
  std::uint16_t port() const { return port_; }
  // Has something to read when Look() has something to do; but see there.
  zmq::socket_t& news() { return news_; }
  // Once in a while, also without news: opens again. True if there is more to see.
  bool Look();
  // How often it became deaf.
  std::uint64_t times_deaf() const { return times_deaf_; }
  // Who was not let in by ZeroMQ. Each kind has a line in the log, a minute.
  const StrangerCounts& strangers() const { return strangers_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  bool TakeNews();
  void On(std::uint16_t event, std::int32_t value);
  void OnStranger();
  void OnWrongKeys();
  void ForgetGone();
  void Deafen(const char* why);
  void Hear();
  void TurnAway();
  bool FillSpare();

  const std::uint32_t connections_max_;
  std::uint16_t port_ = 0;
  UniqueFd listener_;  // Shared with ZeroMQ.
  // To have some when there is none left: as many as may wait to be accepted.
  std::vector<UniqueFd> spare_;
  zmq::socket_t news_;    // Monitors the socket.
  std::set<int> inside_;  // Descriptors of connections.
  bool out_of_descriptors_ = false;
  bool deaf_ = false;
  TimePoint look_again_at_;
  std::uint64_t times_deaf_ = 0;
  StrangerCounts strangers_;
  LogLimiter log_, unknown_log_, wrong_keys_log_;
};

}  // namespace terrace
