// A node over TCP with proxies in front of it, and the moments of a conversation with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/peer/proxy.h"
#include "tests/peer/test_node.h"

namespace terrace::testing {

// When something happens to a node: so many bytes have passed one of its ports.
struct Moment {
  const char* name;
  bool on_data;
  Proxy::Way way;
  std::size_t bytes;
};
// By what was counted; a hello has more than 200 bytes, the messages before it less than 120.
inline constexpr Moment kMoments[] = {
    {"connected", false, Proxy::Way::kToHolder, 1},
    {"hello", false, Proxy::Way::kToHolder, 200},
    {"welcome", false, Proxy::Way::kToAsker, 150},
    {"look-up", false, Proxy::Way::kToHolder, 800},
    {"answer", false, Proxy::Way::kToAsker, 230},
    {"data link", true, Proxy::Way::kToHolder, 1},
    {"data link is open", true, Proxy::Way::kToAsker, 1},
    {"reads", true, Proxy::Way::kToHolder, 100},
    {"first bytes", true, Proxy::Way::kToAsker, 1'000},
    {"half of it", true, Proxy::Way::kToAsker, 3'000'000},
    {"nearly all", true, Proxy::Way::kToAsker, 9'000'000},
};

// A node over TCP whose two ports have proxies; each is slow enough that a fetch takes a while.
struct ProxiedPorts {
  ProxiedPorts() : control_port(FreePort()), data_port(FreePort()) { DelayAll(); }
  void DelayAll() {
    for (Proxy* proxy : {&control, &data}) proxy->Set({Proxy::Fault::Kind::kDelay});
  }
  bool Await(const Moment& moment) const {
    return (moment.on_data ? data : control).AwaitForwarded(moment.way, moment.bytes);
  }
  TestNodeOptions options() const {
    TestNodeOptions options = WithShortDeadlines("tcp");
    options.port = control_port;
    options.more += ", \"data_port\": " + std::to_string(data_port);
    return options;
  }
  std::shared_ptr<const PeerRoute> route() const { return RouteTo(kProxyHost, control_port); }
  std::string address() const {
    return std::string(kProxyHost) + ":" + std::to_string(control_port);
  }

  const std::uint32_t control_port, data_port;
  Proxy control{control_port}, data{data_port};
};

}  // namespace terrace::testing
