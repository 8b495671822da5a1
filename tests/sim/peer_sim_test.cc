// N nodes with a peer tier in one thread, over a network that delays, cuts, loses, flips and falls
// silent; nodes that stop, go on, die and come back. From one seed: no wrong byte, nobody waits
// beyond the deadlines, nothing is left pinned, and when the faults end chunks are fetched again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/sim/sim_node.h"

namespace terrace::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : world_(seed), internet_(world_) {
    const std::size_t count = 2 + world_.Random(3);
    ring_of_peers_ = world_.Random(2) == 0;
    for (std::size_t i = 0; i < count; ++i) hosts_.push_back("n" + std::to_string(i));
    nodes_.resize(count);
    stopped_.resize(count);
    for (std::size_t i = 0; i < count; ++i) Start(i);
    // Some are never, some often.
    for (unsigned* weight : {&chaos_.cut_link, &chaos_.flip_message, &chaos_.flip_chunk,
                             &chaos_.lose_message, &chaos_.slow_message}) {
      *weight = world_.Random(2) == 0 ? 0 : static_cast<unsigned>(world_.Random(40));
    }
    kill_of_thousand_ = world_.Random(3) == 0 ? static_cast<unsigned>(world_.Random(4)) : 0;
    stop_of_thousand_ = world_.Random(3) == 0 ? static_cast<unsigned>(world_.Random(4)) : 0;
    hole_of_thousand_ = world_.Random(3) == 0 ? static_cast<unsigned>(world_.Random(4)) : 0;
  }

  void Run() {
    world_.weights = chaos_;
    for (int i = 0; i < 1500 && !::testing::Test::HasFailure(); ++i) Turn(/*faults=*/true);
    EndFaults();
    for (int i = 0; i < 1200 && !Done() && !::testing::Test::HasFailure(); ++i)
      Turn(/*faults=*/false);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      EXPECT_TRUE(nodes_[i]->idle()) << hosts_[i];
      EXPECT_EQ(nodes_[i]->Leftovers(), "") << hosts_[i];
    }
    if (!::testing::Test::HasFailure()) FetchAgain();
  }

  // What happened, to see that the faults do.
  void Print(std::uint64_t seed) {
    std::printf("seed %llu:", static_cast<unsigned long long>(seed));
    for (const char* name :
         {"fetched_chunks", "gone_chunks", "corrupt_chunks", "lost_chunks", "failures", "restarts",
          "overdue_fetches", "bad_messages", "overdue_lookups", "expired_leases", "parked_chunks",
          "unclaimed_chunks", "sessions_expired"}) {
      std::uint64_t sum = 0;
      for (auto& node : nodes_)
        sum += node->Counter("terrace_peer_" + std::string(name) + "_total");
      std::printf(" %s %llu", name, static_cast<unsigned long long>(sum));
    }
    std::printf("\n");
  }

  std::uint64_t fetched() {
    std::uint64_t sum = fetched_by_the_dead_;
    for (auto& node : nodes_) sum += node->Counter("terrace_peer_fetched_chunks_total");
    return sum;
  }

 private:
  void Start(std::size_t i) {
    std::vector<std::string> peers;
    // In a ring each asks the next one; A asks B while B asks A, if there are two.
    if (ring_of_peers_) peers.push_back(hosts_[(i + 1) % hosts_.size()]);
    nodes_[i] = std::make_unique<SimNode>(internet_, hosts_[i], peers);
    nodes_[i]->set_chunks_per_step(1 + world_.Random(kChunksPerPrompt));
    stopped_[i] = false;
  }

  std::shared_ptr<const PeerRoute> RandomRoute(std::size_t node) {
    auto route = std::make_shared<PeerRoute>();
    const std::size_t other = (node + 1 + world_.Random(hosts_.size() - 1)) % hosts_.size();
    const std::string transfer = "t" + std::to_string(world_.Random(20));
    switch (world_.Random(6)) {
      case 0:
        return nullptr;
      case 1:
        route->keep_for_transfer = transfer;
        return route;
      case 2:
        route->source = {PeerRoute::SourceKind::kPrefiller, {hosts_[other], 1}, transfer};
        return route;
      default:
        route->source = {PeerRoute::SourceKind::kHolder, {hosts_[other], 1}, transfer};
        return route;
    }
  }

  void Turn(bool faults) {
    world_.RunUntil(world_.now() + Duration(100 + world_.Random(faults ? 6'000 : 100'000)));
    if (faults) MakeTrouble();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      SimNode& node = *nodes_[i];
      if (stopped_[i]) continue;
      if (faults && world_.Random(12) == 0)
        node.Submit(static_cast<std::uint32_t>(world_.Random(6)), RandomRoute(i));
      if (faults && world_.Random(600) == 0) node.ResetCache();
      if (world_.Random(2) == 0) node.Round();
      if (world_.Random(4) != 0) node.Step();
      // Look-up, promotion and their waits, one after the other, and a turn's length.
      EXPECT_LT(node.LongestWait(), Duration(seconds(6))) << hosts_[i];
    }
  }

  void MakeTrouble() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (world_.Happens(kill_of_thousand_)) {
        fetched_by_the_dead_ += nodes_[i]->Counter("terrace_peer_fetched_chunks_total");
        nodes_[i].reset();
        Start(i);
      } else if (!stopped_[i] && world_.Happens(stop_of_thousand_)) {
        stopped_[i] = true;
        world_.In(Duration(world_.Random(5'000'000)), [this, i] { Continue(i); });
      }
    }
    if (world_.Happens(hole_of_thousand_)) {
      const std::size_t a = world_.Random(hosts_.size());
      internet_.hub.BlackHole(hosts_[a], hosts_[(a + 1) % hosts_.size()]);
      world_.In(Duration(world_.Random(4'000'000)), [this] { internet_.hub.Heal(); });
    }
  }

  void Continue(std::size_t i) {
    if (stopped_[i]) nodes_[i]->OnContinued();
    stopped_[i] = false;
  }

  void EndFaults() {
    world_.weights = {};
    internet_.hub.Heal();
    for (std::size_t i = 0; i < nodes_.size(); ++i) Continue(i);
  }

  bool Done() {
    for (auto& node : nodes_) {
      if (!node->idle() || !node->Leftovers().empty()) return false;
    }
    return true;
  }

  void Settle(std::size_t node) {
    for (int i = 0; i < 5'000 && !nodes_[node]->idle(); ++i) {
      world_.RunUntil(world_.now() + Duration(500));
      for (auto& one : nodes_) one->Round();
      nodes_[node]->Step();
    }
  }

  // Each fetches from the one behind it what only that one has.
  void FetchAgain() {
    // Whatever was down is tried again by now.
    for (int i = 0; i < 400; ++i) {
      world_.RunUntil(world_.now() + Duration(100'000));
      for (auto& node : nodes_) node->Round();
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::size_t other = (i + 1) % nodes_.size();
      auto route = std::make_shared<PeerRoute>();
      route->source = {PeerRoute::SourceKind::kHolder, {hosts_[other], 1}, "again"};
      const auto prompt = static_cast<std::uint32_t>(100 + i);
      nodes_[other]->Submit(prompt, std::make_shared<PeerRoute>());
      Settle(other);
      // The first one may only find out that it is to be tried again.
      nodes_[i]->Submit(prompt + 50, route);
      Settle(i);
      for (int n = 0; n < 20; ++n) {
        world_.RunUntil(world_.now() + Duration(1'000));
        for (auto& node : nodes_) node->Round();
      }
      const std::uint64_t before = nodes_[i]->Counter("terrace_peer_fetched_chunks_total");
      nodes_[i]->Submit(prompt, route);
      Settle(i);
      EXPECT_EQ(nodes_[i]->Counter("terrace_peer_fetched_chunks_total") - before, kChunksPerPrompt)
          << hosts_[i];
    }
  }

  World world_;
  Internet internet_;
  std::vector<std::string> hosts_;
  bool ring_of_peers_ = false;
  Weights chaos_;
  unsigned kill_of_thousand_ = 0, stop_of_thousand_ = 0, hole_of_thousand_ = 0;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<bool> stopped_;
  std::uint64_t fetched_by_the_dead_ = 0;
};

TEST(PeerSim, WhateverHappens) {
  Log().set_level(std::getenv("TERRACE_SIM_LOG") != nullptr ? spdlog::level::info
                                                            : spdlog::level::off);
  const std::uint64_t first = FromEnvironment("TERRACE_SIM_SEED", 1);
  const std::uint64_t runs =
      std::getenv("TERRACE_SIM_SEED") != nullptr ? 1 : FromEnvironment("TERRACE_SIM_RUNS", 40);
  std::uint64_t fetched = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    SCOPED_TRACE("TERRACE_SIM_SEED=" + std::to_string(seed));
    Simulation simulation(seed);
    simulation.Run();
    fetched += simulation.fetched();
    if (std::getenv("TERRACE_SIM_LOG") != nullptr) simulation.Print(seed);
    if (HasFailure()) {
      std::printf("replay: TERRACE_SIM_SEED=%llu sim.peers\n",
                  static_cast<unsigned long long>(seed));
      return;
    }
  }
  EXPECT_GT(fetched, runs * kChunksPerPrompt) << "the simulation does not do what it is for";
}

}  // namespace
}  // namespace terrace::sim
