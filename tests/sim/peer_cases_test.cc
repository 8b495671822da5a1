// What two or three nodes do in one case after the other, over the simulated network without
// chance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/log.h"
#include "tests/sim/sim_node.h"

namespace terrace::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PeerCases : public ::testing::Test {
 protected:
  PeerCases() { Log().set_level(spdlog::level::off); }

  SimNode& Start(const std::string& host, std::vector<std::string> peers = {},
                 const std::string& dtype = "f16",
                 const std::function<void(PeerTierConfig&)>& change = {}) {
    auto& node = nodes_[host];
    node.reset();
    node = std::make_unique<SimNode>(internet_, host, std::move(peers), dtype, change);
    return *node;
  }
  static std::shared_ptr<const PeerRoute> From(
      const std::string& host, const std::string& transfer = "t",
      PeerRoute::SourceKind kind = PeerRoute::SourceKind::kHolder) {
    auto route = std::make_shared<PeerRoute>();
    route->source = {kind, {host, 1}, transfer};
    return route;
  }
  static std::shared_ptr<const PeerRoute> KeptFor(const std::string& transfer) {
    auto route = std::make_shared<PeerRoute>();
    route->keep_for_transfer = transfer;
    return route;
  }
  static std::shared_ptr<const PeerRoute> Nowhere() { return std::make_shared<PeerRoute>(); }

  // Every node that is not stopped goes on, for a while or until `done`.
  template <typename Done>
  bool RunUntil(Duration time, const Done& done, Duration step = Duration(500)) {
    const TimePoint end = world_.now() + time;
    while (world_.now() < end) {
      world_.RunUntil(world_.now() + step);
      for (auto& [host, node] : nodes_) {
        if (host == stopped_) continue;
        node->Round();
        node->Step();
      }
      if (done()) return true;
    }
    return done();
  }
  void Run(Duration time) {
    RunUntil(
        time, [] { return false; }, std::max(Duration(500), time / 400));
  }
  // How long it took.
  Duration Finish(SimNode& node) {
    const TimePoint start = world_.now();
    EXPECT_TRUE(RunUntil(seconds(20), [&] { return node.idle(); }));
    return std::chrono::duration_cast<Duration>(world_.now() - start);
  }
  // `node` computes a prompt.
  void Compute(SimNode& node, std::uint32_t prompt) {
    node.Submit(prompt, Nowhere());
    Finish(node);
  }
  static std::uint64_t Fetched(SimNode& node) {
    return node.Counter("terrace_peer_fetched_chunks_total");
  }

  World world_{1};
  Internet internet_{world_};
  std::map<std::string, std::unique_ptr<SimNode>> nodes_;
  std::string stopped_;
};

TEST_F(PeerCases, ARoutedRequestFetchesWhatItsHolderHas) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  asker.Submit(1, From("holder"));
  Finish(asker);
  EXPECT_EQ(Fetched(asker), kChunksPerPrompt);
  EXPECT_EQ(asker.chunks_loaded(), kChunksPerPrompt);
  Run(milliseconds(100));
  EXPECT_EQ(holder.Leftovers(), "") << "what was read is released";
}

TEST_F(PeerCases, ARequestWithoutARouteAsksNobodyUnlessPeersAreConfigured) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  SimNode& member = Start("member", {"holder"});
  Compute(holder, 1);
  asker.Submit(1, nullptr);
  member.Submit(1, nullptr);
  Finish(asker);
  Finish(member);
  EXPECT_EQ(Fetched(asker), 0u);
  EXPECT_EQ(Fetched(member), kChunksPerPrompt);
}

// The same node asks and answers, at the same time.
TEST_F(PeerCases, TwoNodesFetchFromEachOtherAtOnce) {
  SimNode& a = Start("a");
  SimNode& b = Start("b");
  Compute(a, 1);
  Compute(b, 2);
  a.Submit(2, From("b"));
  b.Submit(1, From("a"));
  Finish(a);
  Finish(b);
  EXPECT_EQ(Fetched(a), kChunksPerPrompt);
  EXPECT_EQ(Fetched(b), kChunksPerPrompt);
}

TEST_F(PeerCases, ThreeNodesInARing) {
  for (const char* host : {"a", "b", "c"}) Start(host);
  int prompt = 1;
  for (const char* host : {"a", "b", "c"})
    Compute(*nodes_[host], static_cast<std::uint32_t>(prompt++));
  nodes_["a"]->Submit(2, From("b"));
  nodes_["b"]->Submit(3, From("c"));
  nodes_["c"]->Submit(1, From("a"));
  for (const char* host : {"a", "b", "c"}) {
    Finish(*nodes_[host]);
    EXPECT_EQ(Fetched(*nodes_[host]), kChunksPerPrompt) << host;
  }
}

TEST_F(PeerCases, TwoAskersOfTheSameChunks) {
  SimNode& holder = Start("holder");
  SimNode& first = Start("first");
  SimNode& second = Start("second");
  Compute(holder, 1);
  first.Submit(1, From("holder"));
  second.Submit(1, From("holder"));
  Finish(first);
  Finish(second);
  EXPECT_EQ(Fetched(first) + Fetched(second), 2u * kChunksPerPrompt);
}

// ---- One node computes for another.

TEST_F(PeerCases, ADecoderThatComesLaterFindsWhatWasKeptForIt) {
  SimNode& prefiller = Start("prefiller");
  SimNode& decoder = Start("decoder");
  prefiller.Submit(1, KeptFor("transfer"));
  Finish(prefiller);
  // Others would push it out by now.
  for (std::uint32_t prompt = 2; prompt < 8; ++prompt) Compute(prefiller, prompt);
  EXPECT_EQ(prefiller.Stats().tiers[0].cascade.slots_in_flight, kChunksPerPrompt);
  decoder.Submit(1, From("prefiller", "transfer", PeerRoute::SourceKind::kPrefiller));
  Finish(decoder);
  EXPECT_EQ(Fetched(decoder), kChunksPerPrompt);
  Run(milliseconds(100));
  EXPECT_EQ(prefiller.Leftovers(), "");
  EXPECT_EQ(prefiller.Counter("terrace_peer_unclaimed_chunks_total"), 0u);
}

TEST_F(PeerCases, ADecoderThatIsEarlyWaitsForThePrefiller) {
  SimNode& prefiller = Start("prefiller");
  SimNode& decoder = Start("decoder");
  decoder.Submit(1, From("prefiller", "transfer", PeerRoute::SourceKind::kPrefiller));
  Run(milliseconds(500));
  EXPECT_FALSE(decoder.idle());
  prefiller.Submit(1, KeptFor("transfer"));
  EXPECT_LT(Finish(decoder), Duration(milliseconds(50)));
  EXPECT_EQ(Fetched(decoder), kChunksPerPrompt);
}

TEST_F(PeerCases, ADecoderGetsAPromptThatIsComputedInPieces) {
  SimNode& prefiller = Start("prefiller");
  SimNode& decoder = Start("decoder");
  prefiller.set_chunks_per_step(1);
  decoder.Submit(1, From("prefiller", "transfer", PeerRoute::SourceKind::kPrefiller));
  prefiller.Submit(1, KeptFor("transfer"));
  Finish(decoder);
  EXPECT_EQ(Fetched(decoder), kChunksPerPrompt);
  Run(milliseconds(100));
  EXPECT_EQ(prefiller.Leftovers(), "");
}

// What was pinned for a question that is not answered yet.
TEST_F(PeerCases, ADecoderThatGoesInTheMiddleLeavesNothingPinned) {
  SimNode& prefiller = Start("prefiller");
  SimNode& decoder = Start("decoder");
  prefiller.set_chunks_per_step(1);
  decoder.Submit(1, From("prefiller", "transfer", PeerRoute::SourceKind::kPrefiller));
  Run(milliseconds(100));
  prefiller.Submit(1, KeptFor("another"));
  // A piece each 20 ms.
  for (int i = 0; i < 80; ++i) {
    world_.RunUntil(world_.now() + Duration(1'000));
    if (i % 20 == 0) prefiller.Step();
    prefiller.Round();
    decoder.Step();
  }
  ASSERT_EQ(prefiller.Stats().tiers[0].serve.slots_in_flight, 4u);
  decoder.Abort();
  Run(milliseconds(100));
  EXPECT_EQ(prefiller.Stats().tiers[0].serve.slots_in_flight, 0u);
  EXPECT_EQ(prefiller.Counter("terrace_peer_served_lookups_total"), 0u)
      << "it is not answered to nobody";
}

// An answer under way, or a lease that is not read: given back at once, not at the lease's end.
TEST_F(PeerCases, WhoDoesNotWantItAnyMoreGivesItBack) {
  SimNode& holder =
      Start("holder", {}, "f16", [](PeerTierConfig& config) { config.lease_ms = 5'000; });
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  for (int rounds = 0; rounds < 30; ++rounds) {
    asker.Submit(1, From("holder"));
    for (int i = 0; i < rounds; ++i) {
      world_.RunUntil(world_.now() + Duration(50));
      asker.Round();
      if (i % 4 == 1) asker.Step();
      holder.Round();
    }
    if (asker.idle()) break;
    asker.Abort();
    Run(milliseconds(50));
    EXPECT_EQ(holder.Leftovers(), "") << rounds;
  }
  EXPECT_EQ(holder.Counter("terrace_peer_expired_leases_total"), 0u);
  EXPECT_GT(holder.Counter("terrace_peer_served_chunks_total"), 0u) << "some were promised";
}

// The first to ask decides nothing for a holder: it is not computing it.
TEST_F(PeerCases, AnAskerOfAHolderDoesNotWait) {
  Start("holder");
  SimNode& asker = Start("asker");
  asker.Submit(1, From("holder", "transfer"));
  EXPECT_LT(Finish(asker), Duration(milliseconds(50)));
  EXPECT_EQ(Fetched(asker), 0u);
}

TEST_F(PeerCases, WhatNobodyComesForIsGivenUp) {
  SimNode& prefiller = Start("prefiller");
  prefiller.Submit(1, KeptFor("transfer"));
  Finish(prefiller);
  Run(milliseconds(1'900));
  EXPECT_NE(prefiller.Leftovers(), "");
  Run(milliseconds(200));
  EXPECT_EQ(prefiller.Leftovers(), "");
  EXPECT_EQ(prefiller.Counter("terrace_peer_unclaimed_chunks_total"), kChunksPerPrompt);
}

TEST_F(PeerCases, APrefillerThatNeverComputesItCostsOneDeadline) {
  Start("prefiller");
  SimNode& decoder = Start("decoder");
  decoder.Submit(1, From("prefiller", "transfer", PeerRoute::SourceKind::kPrefiller));
  EXPECT_LT(Finish(decoder), Duration(seconds(2)));
  EXPECT_EQ(decoder.Counter("terrace_peer_failures_total"), 0u) << "it answered: no";
}

// ---- Silence and its cost.

TEST_F(PeerCases, ASilentPeerCostsOneDeadlineOnce) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  asker.Submit(1, From("holder"));
  Finish(asker);
  stopped_ = "holder";
  for (std::uint32_t prompt = 2; prompt < 6; ++prompt) asker.Submit(prompt, From("holder"));
  const Duration all = Finish(asker);
  EXPECT_GE(all, Duration(milliseconds(400)));
  EXPECT_LT(all, Duration(milliseconds(450))) << "one look-up's deadline for all of them";
  // From then on nobody waits, though it is tried again and again.
  for (int i = 0; i < 20; ++i) {
    asker.Submit(static_cast<std::uint32_t>(10 + i), From("holder"));
    EXPECT_LT(Finish(asker), Duration(milliseconds(5)));
    Run(milliseconds(100));
  }
  stopped_.clear();
  Compute(holder, 50);
  Run(seconds(10));
  asker.Submit(90, From("holder"));  // Finds that it may be tried again.
  Run(milliseconds(100));
  asker.Submit(50, From("holder"));
  Finish(asker);
  EXPECT_EQ(Fetched(asker), 2 * kChunksPerPrompt);
}

TEST_F(PeerCases, NobodyThereCostsNothing) {
  SimNode& asker = Start("asker");
  asker.Submit(1, From("nowhere"));
  EXPECT_LT(Finish(asker), Duration(milliseconds(10)));
}

TEST_F(PeerCases, ABlackHoleCostsOneConnectTimeout) {
  Start("holder");
  SimNode& asker = Start("asker");
  internet_.hub.BlackHole("asker", "holder");
  asker.Submit(1, From("holder"));
  EXPECT_LT(Finish(asker), Duration(milliseconds(310)));
}

// One of three does not answer; the others' no is believed after a while.
TEST_F(PeerCases, OneSilentPeerOfSeveralCostsTheHedge) {
  SimNode& asker = Start("asker", {"one", "two"});
  Start("one");
  Start("two");
  Run(milliseconds(100));
  stopped_ = "two";
  asker.Submit(1, nullptr);
  EXPECT_LT(Finish(asker), Duration(milliseconds(40)));
}

TEST_F(PeerCases, TheOtherPeerHasIt) {
  SimNode& asker = Start("asker", {"one", "two"});
  Start("one");
  SimNode& two = Start("two");
  Compute(two, 1);
  asker.Submit(1, nullptr);
  Finish(asker);
  EXPECT_EQ(Fetched(asker), kChunksPerPrompt);
}

TEST_F(PeerCases, AHolderThatStopsBetweenPromiseAndBytesCostsOneFetchTimeout) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  asker.Submit(1, From("holder"));
  ASSERT_TRUE(
      RunUntil(seconds(1), [&] { return asker.Counter("terrace_peer_found_chunks_total") > 0; }));
  internet_.hub.BlackHole("asker", "holder");
  EXPECT_LT(Finish(asker), Duration(milliseconds(900)));
  EXPECT_EQ(asker.Leftovers(), "");
  Run(milliseconds(600));
  EXPECT_EQ(holder.Leftovers(), "") << "the lease was not renewed";
  EXPECT_EQ(holder.Counter("terrace_peer_expired_leases_total"), 1u);
}

// ---- Lives that end.

TEST_F(PeerCases, ARestartedPeerIsKnownByItsInstance) {
  Compute(Start("holder"), 1);
  SimNode& asker = Start("asker");
  asker.Submit(1, From("holder"));
  Finish(asker);
  SimNode& again = Start("holder");
  Compute(again, 2);
  Run(milliseconds(300));
  asker.Submit(3, From("holder"));
  Run(milliseconds(100));
  asker.Submit(2, From("holder"));
  Finish(asker);
  EXPECT_EQ(asker.Counter("terrace_peer_restarts_total"), 1u);
  EXPECT_EQ(Fetched(asker), 2 * kChunksPerPrompt);
}

TEST_F(PeerCases, AnAskerThatDiesLeavesNothingPinned) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  asker.Submit(1, From("holder"));
  ASSERT_TRUE(RunUntil(seconds(1), [&] { return holder.Counter("terrace_peer_leases") > 0; }));
  nodes_.erase("asker");
  Run(milliseconds(50));
  EXPECT_EQ(holder.Leftovers(), "") << "long before the lease's time";
}

TEST_F(PeerCases, AHolderThatShutsDownSaysGoodbye) {
  Start("holder");
  SimNode& asker = Start("asker", {"holder"});
  Run(milliseconds(50));
  ASSERT_EQ(asker.Counter("terrace_peer_links"), 1u);
  nodes_.erase("holder");
  Run(milliseconds(10));
  EXPECT_EQ(asker.Counter("terrace_peer_links"), 0u);
}

// The engine goes on to read what it was told is there; the lease ended meanwhile.
TEST_F(PeerCases, WhatTheHolderForgotIsComputed) {
  SimNode& holder = Start("holder");
  SimNode& asker = Start("asker");
  Compute(holder, 1);
  asker.Submit(1, From("holder"));
  ASSERT_TRUE(RunUntil(seconds(1), [&] { return holder.Counter("terrace_peer_leases") > 0; }));
  holder.ResetCache();
  Compute(holder, 2);
  Finish(asker);
  Run(milliseconds(600));
  EXPECT_EQ(holder.Leftovers() + asker.Leftovers(), "");
}

// ---- At every message.

enum class Trouble : std::uint8_t {
  kKillHolder,
  kKillAsker,
  kRestartHolder,
  kStopHolder,
  kStopAsker,
  kBlackHole
};

class PeerTroubles : public PeerCases, public ::testing::WithParamInterface<Trouble> {
 protected:
  // The trouble comes before the n-th thing that arrives. False if there were fewer.
  bool Try(std::uint64_t n) {
    nodes_.clear();
    internet_.hub.Heal();
    stopped_.clear();
    Compute(Start("holder"), 1);
    SimNode& asker = Start("asker");
    std::uint64_t arrived = 0;
    internet_.hub.before_arrival = [&] {
      if (++arrived == n) Make(GetParam());
    };
    asker.Submit(1, From("holder"));
    // Connect, look up, fetch: each has its deadline.
    const auto done = [&] {
      return (!nodes_.contains("asker") || nodes_["asker"]->idle()) && stopped_ != "asker";
    };
    RunUntil(seconds(2), done, milliseconds(1));
    internet_.hub.before_arrival = {};
    if (arrived < n) return false;
    Run(seconds(3));  // All deadlines.
    stopped_.clear();
    internet_.hub.Heal();
    Run(milliseconds(1500));
    for (const auto& [host, node] : nodes_) {
      EXPECT_TRUE(node->idle()) << host << " waits, " << n;
      EXPECT_EQ(node->Leftovers(), "") << host << ", " << n;
    }
    FetchesAgain(n);
    return true;
  }

 private:
  void Make(Trouble trouble) {
    switch (trouble) {
      case Trouble::kKillHolder:
        nodes_.erase("holder");
        break;
      case Trouble::kKillAsker:
        nodes_.erase("asker");
        break;
      case Trouble::kRestartHolder:
        Start("holder");
        break;
      case Trouble::kStopHolder:
        stopped_ = "holder";
        break;
      case Trouble::kStopAsker:
        stopped_ = "asker";
        break;
      case Trouble::kBlackHole:
        internet_.hub.BlackHole("asker", "holder");
        break;
    }
  }

  void FetchesAgain(std::uint64_t n) {
    for (const char* host : {"holder", "asker"}) {
      if (!nodes_.contains(host)) Start(host);
    }
    SimNode& asker = *nodes_["asker"];
    Compute(*nodes_["holder"], 7);
    asker.Submit(8, From("holder"));
    Run(milliseconds(200));
    const std::uint64_t before = Fetched(asker);
    asker.Submit(7, From("holder"));
    Finish(asker);
    EXPECT_EQ(Fetched(asker) - before, kChunksPerPrompt) << n;
  }
};

TEST_P(PeerTroubles, AtEveryMessage) {
  std::uint64_t n = 1;
  while (!HasFailure() && Try(n)) ++n;
  EXPECT_GT(n, 2 * kChunksPerPrompt) << "requests and chunks, at least";
}

INSTANTIATE_TEST_SUITE_P(All, PeerTroubles,
                         ::testing::Values(Trouble::kKillHolder, Trouble::kKillAsker,
                                           Trouble::kRestartHolder, Trouble::kStopHolder,
                                           Trouble::kStopAsker, Trouble::kBlackHole));

// ---- Who may.

TEST_F(PeerCases, AnotherDtypeIsRefusedByName) {
  Start("holder", {}, "f32");
  SimNode& asker = Start("asker");
  asker.Submit(1, From("holder"));
  Finish(asker);
  EXPECT_EQ(asker.Counter("terrace_peer_refusals_total"), 1u);
  EXPECT_EQ(nodes_["holder"]->Counter("terrace_peer_sessions"), 0u);
  EXPECT_EQ(nodes_["holder"]->Counter("terrace_peer_sessions_refused_total"), 1u);
}

TEST_F(PeerCases, OneMoreThanMaxPeersIsRefused) {
  SimNode& holder =
      Start("holder", {}, "f16", [](PeerTierConfig& config) { config.max_peers = 1; });
  Start("first", {"holder"});
  Run(milliseconds(50));
  Start("second", {"holder"});
  Run(milliseconds(50));
  EXPECT_EQ(holder.Counter("terrace_peer_sessions"), 1u);
  EXPECT_EQ(holder.Counter("terrace_peer_sessions_refused_total"), 1u);
  EXPECT_EQ(nodes_["first"]->Counter("terrace_peer_links"), 1u);
}

}  // namespace
}  // namespace terrace::sim
