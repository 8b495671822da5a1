// A network of messages between simulated nodes: delays, cuts, loss, flipped bits, silence.
//
// As ZeroMQ behaves: a message to a holder that is not connected yet waits; who dialled learns of a
// cut, who was called does not.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/sim_world.h"
#include "tier/peer/control_network.h"

namespace terrace::sim {

class SimNetwork;

// Who listens where, and who is connected. Outlives the networks.
class Hub {
 public:
  explicit Hub(World& world) : world_(world) {}
  World& world() { return world_; }

  void Listen(const std::string& host, SimNetwork* network) { listeners_[host] = network; }
  void StopListening(const std::string& host, SimNetwork* network) {
    if (listeners_[host] == network) listeners_[host] = nullptr;
  }
  SimNetwork* At(const std::string& host) {
    const auto found = listeners_.find(host);
    return found == listeners_.end() ? nullptr : found->second;
  }
  // Nothing passes between the two, and nobody is told.
  void BlackHole(const std::string& a, const std::string& b) { holes_.insert(std::minmax(a, b)); }
  void Heal() { holes_.clear(); }
  bool Passes(const std::string& a, const std::string& b) const {
    return !holes_.contains(std::minmax(a, b));
  }

  struct Connection {
    std::string asker, holder;  // Hosts.
    LinkId link;                // The asker's.
    bool open = false;
    std::vector<std::vector<std::uint8_t>> waiting;
    TimePoint last_to_holder, last_to_asker;  // Messages do not overtake.
  };
  // Before each thing that arrives anywhere, messages and chunks alike.
  std::function<void()> before_arrival;
  void Arrives() {
    if (before_arrival) before_arrival();
  }
  std::map<std::uint64_t, Connection> connections;
  std::uint64_t next_connection = 1;
  void Cut(std::uint64_t connection);
  // When something sent now arrives.
  TimePoint Arrival(TimePoint& last);

 private:
  World& world_;
  std::map<std::string, SimNetwork*> listeners_;
  std::set<std::pair<std::string, std::string>> holes_;
};

class SimNetwork final : public ControlNetwork {
 public:
  SimNetwork(Hub& hub, std::string host);
  // As a process that dies: its connections are cut.
  ~SimNetwork() override;

  std::uint16_t port() const override { return 1; }
  int descriptor() const override { return -1; }
  Result<LinkId> Dial(const PeerAddress& address) override;
  void HangUp(LinkId link) override;
  bool Send(LinkId link, std::span<const std::uint8_t> bytes) override;
  bool Reply(const std::string& caller, std::span<const std::uint8_t> bytes) override;
  std::optional<Event> Next() override;
  void KeepReady() override {}

  void Deliver(Event event) { events_.push_back(std::move(event)); }
  bool Has(LinkId link) const { return links_.contains(link); }
  void Forget(LinkId link) { links_.erase(link); }

 private:
  void Post(std::uint64_t connection, std::vector<std::uint8_t> bytes);

  Hub& hub_;
  const std::string host_;
  std::map<LinkId, std::uint64_t> links_;  // To connections.
  std::deque<Event> events_;
  std::uint64_t next_link_ = 1;
};

}  // namespace terrace::sim
