// Tiers that serve peers, from host memory and the other tiers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/manager_test.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::FakeTier;
using testing_support::kA;
using testing_support::kB;
using testing_support::Key;
using testing_support::Keys;

// Tier 0 is a disk, tier 1 serves peers as the test says.
class TieringServeTest : public testing_support::ManagerTest {
 protected:
  void MakeServing(std::uint32_t slots) {
    Make(slots, 2, [this](int i, FakeTier& tier) {
      if (i != 1) return;
      tier.source = LoadSource::kPeer;
      tier.serve = [this](TierServer& server) {
        if (serve_) serve_(server);
      };
    });
  }
  std::function<void(TierServer&)> serve_;
};

TEST_F(TieringServeTest, AHitIsPinnedUntilTheTierReports) {
  MakeServing(1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  tiers_[0]->FinishStore();
  tiers_[1]->FinishStore();
  EndStep();
  std::optional<TransferJob> job;
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    EXPECT_GE(peer.id, kExternalRequests);
    EXPECT_EQ(server.Lookup(Key(1), peer), LookupResult::kHit);
    job = server.CreateStoreJob(Keys(1, 1), peer);
    server.FinishRequest(peer);
    serve_ = {};
  };
  EXPECT_TRUE(Round().active);
  ASSERT_TRUE(job);
  EXPECT_THAT(job->slots, SizeIs(1));
  Begin(kB);
  EXPECT_FALSE(Store(Keys(2, 1), kB));
  EXPECT_EQ(Stats().tiers[1].serve.slots_in_flight, 1u);
  tiers_[1]->finished.push_back({job->id, {CopyOutcome::kOk}, 100});
  Round();
  EXPECT_EQ(Stats().tiers[1].serve.chunks, 1u);
  EXPECT_TRUE(Store(Keys(2, 1), kB));
}

// A tier that does not bear another thread than the engine's.
TEST_F(TieringServeTest, ATierMayBeServedOnceAStepAndNeverBetween) {
  Make(4, 2, [](int i, FakeTier& tier) {
    if (i != 1) return;
    tier.between_steps = false;
    tier.serve = [](TierServer&) {};
  });
  Round();
  EXPECT_EQ(tiers_[1]->serves, 0);
  EndStep();
  EXPECT_EQ(tiers_[1]->serves, 1);
  EXPECT_FALSE(manager_->AnyTierServes());
}

// Life cycle and exclusion: the others hear of the peer's request, the tier that serves it does
// not.
TEST_F(TieringServeTest, APeersQuestionDoesNotGoBackToTheTierItCameBy) {
  MakeServing(4);
  tiers_[1]->chunks = {Key(1)};
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    EXPECT_EQ(server.Lookup(Key(1), peer), LookupResult::kMiss);
    server.FinishRequest(peer);
    serve_ = {};
  };
  Round();
  EXPECT_EQ(tiers_[1]->lookups, 0);
  EXPECT_EQ(tiers_[0]->lookups, 1);
  const std::string id = std::to_string(kExternalRequests.value);
  EXPECT_THAT(log_, ElementsAre("0: new " + id, "0: finished " + id));
}

// W-06: begun for a peer on an idle engine, done without the engine.
TEST_F(TieringServeTest, AChunkOnDiskIsPromotedForAPeerWithoutAnyStepOfTheEngine) {
  MakeServing(4);
  tiers_[0]->chunks = {Key(1)};
  std::optional<Request> peer;
  LookupResult found = LookupResult::kMiss;
  serve_ = [&](TierServer& server) {
    if (!peer) peer = server.BeginRequest();
    found = server.Lookup(Key(1), *peer);
  };
  Round();
  EXPECT_EQ(found, LookupResult::kHitPending);
  ASSERT_THAT(tiers_[0]->loads, SizeIs(1)) << "submitted by the round itself";
  EXPECT_EQ(tiers_[0]->step_ends, 1) << "it was asked something, and may have put it off";
  tiers_[0]->FinishLoad();
  Round();
  EXPECT_EQ(found, LookupResult::kHit);
  serve_ = [&](TierServer& server) { server.FinishRequest(*peer); };
  Round();
  EXPECT_EQ(Stats().writing_chunks, 0u);
}

TEST_F(TieringServeTest, ARoundPollsOnlyTiersThatServeOrWorkForPeers) {
  MakeServing(4);
  Round();
  EXPECT_EQ(tiers_[0]->polls, 0);
  EXPECT_EQ(tiers_[0]->serves, 0);
  EXPECT_EQ(tiers_[1]->polls, 1);
  EXPECT_EQ(tiers_[1]->serves, 1);
  EndStep();
  EXPECT_EQ(tiers_[1]->serves, 2) << "a step serves as well";
}

// Nor does it touch the gate: the engine's next look-up polls all the same.
TEST_F(TieringServeTest, ALookUpForAPeerDoesNotPoll) {
  MakeServing(4);
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    server.Lookup(Key(1), peer);
    server.FinishRequest(peer);
  };
  Begin(kA);
  Round();
  EXPECT_EQ(tiers_[0]->polls, 0);
  Lookup(Key(7), kA);
  EXPECT_EQ(tiers_[0]->polls, 1);
  Round();
  Lookup(Key(7), kA);
  EXPECT_EQ(tiers_[0]->polls, 1) << "once a step";
}

TEST_F(TieringServeTest, ARoundEndsWhenItsKeysAreUsedUp) {
  options_.serve_keys = 10;
  MakeServing(4);
  int looked_up = 0;
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    while (!server.ShouldYield()) {
      server.Lookup(Key(1000), peer);
      ++looked_up;
    }
    EXPECT_EQ(server.Lookup(Key(1001), peer), LookupResult::kRetry) << "also if it does not ask";
    server.FinishRequest(peer);
  };
  EXPECT_TRUE(Round().yielded);
  EXPECT_EQ(looked_up, 9) << "a request counts, too";
  looked_up = 0;
  EndStep();
  EXPECT_EQ(looked_up, 9) << "a step's service is bounded, too";
}

// Its patience is for one wait, not for all of them together.
TEST_F(TieringServeTest, APeersRequestThatGoesOnIsNotTakenForOneThatWaits) {
  MakeServing(64);
  std::optional<Request> peer;
  std::uint64_t next = 1;
  LookupResult last = LookupResult::kMiss;
  for (const ChunkKey& key : Keys(1, 30)) tiers_[0]->chunks.insert(key);
  serve_ = [&](TierServer& server) {
    if (!peer) peer = server.BeginRequest();
    last = server.Lookup(Key(next), *peer);
    if (last != LookupResult::kHit) return;
    const auto job = server.CreateStoreJob(Keys(next++, 1), *peer);
    ASSERT_TRUE(job);
    tiers_[1]->finished.push_back({job->id, {CopyOutcome::kOk}, 100});
  };
  for (int round = 0; round < 40; ++round) {
    Round();
    while (!tiers_[0]->loads.empty()) tiers_[0]->FinishLoad();
    now_ += options_.lookup_timeout / 10;
    ASSERT_NE(last, LookupResult::kMiss) << "after " << next << " chunks";
  }
  EXPECT_GT(next, 10u);
  serve_ = {};
}

// However many rounds there are: the engine keeps room.
TEST_F(TieringServeTest, PeersPinAtMostTheirPartOfHostMemory) {
  MakeServing(4);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 4), kA));
  int made = 0;
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    for (std::uint64_t i = 1; i <= 4; ++i) made += server.CreateStoreJob(Keys(i, 1), peer) ? 1 : 0;
    server.FinishRequest(peer);
  };
  Round();
  Round();
  EXPECT_EQ(made, 2);
  EXPECT_GT(Stats().tiers[1].serve_refusals, 0u);
}

TEST_F(TieringServeTest, AJobHasAtMostTheKeysOfARound) {
  options_.serve_keys = 2;
  MakeServing(8);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 3), kA));
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    EXPECT_FALSE(server.CreateStoreJob(Keys(1, 3), peer));
    EXPECT_TRUE(server.CreateStoreJob(Keys(1, 2), peer));
    EXPECT_TRUE(server.ShouldYield());
    server.FinishRequest(peer);
    serve_ = {};
  };
  EXPECT_TRUE(Round().yielded);
}

// A tier that forgets a peer must not keep the others' memory of its requests for ever.
TEST_F(TieringServeTest, ARequestThatATierLeavesOpenEndsAtItsDeadline) {
  MakeServing(4);
  std::optional<Request> peer;
  serve_ = [&](TierServer& server) { peer = server.BeginRequest(); };
  Round();
  const std::string id = std::to_string(peer->id.value);
  serve_ = {};
  now_ += options_.peer_request_timeout - std::chrono::milliseconds(1);
  Round();
  EXPECT_THAT(log_, ElementsAre("0: new " + id));
  now_ += std::chrono::milliseconds(1);
  Round();
  EXPECT_THAT(log_, ElementsAre("0: new " + id, "0: finished " + id));
  EXPECT_EQ(Stats().peer_requests_overdue, 1u);
  serve_ = [&](TierServer& server) {
    EXPECT_EQ(server.Lookup(Key(1), *peer), LookupResult::kMiss);
    server.FinishRequest(*peer);
  };
  EXPECT_FALSE(Round().failed) << "it could not know";
}

TEST_F(TieringServeTest, WhatPeersWaitForDoesNotKeepAnIdleEngineStepping) {
  options_.poll_interval = std::chrono::hours(1);
  MakeServing(4);
  tiers_[0]->chunks = {Key(1)};
  ASSERT_TRUE(manager_->StartControlThread().ok());
  {
    ManagerRegion region(*manager_);
    serve_ = [&](TierServer& server) {
      const Request peer = server.BeginRequest();
      server.Lookup(Key(1), peer);
      server.FinishRequest(peer);
      serve_ = {};
    };
  }
  Round();
  EXPECT_EQ(Stats().writing_chunks, 1u);
  EXPECT_FALSE(Pending());
}

TEST_F(TieringServeTest, ARoundInWhichAnyHookThrewHasFailed) {
  MakeServing(4);
  tiers_[1]->throws = {"TakeFinished"};
  EXPECT_TRUE(Round().failed);
}

TEST_F(TieringServeTest, ARoundEndsWhenItsBytesAreUsedUp) {
  options_.serving_slots_percent = 100;
  options_.serve_bytes = 250;
  options_.chunk_bytes = 100;
  MakeServing(16);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 4), kA));
  std::vector<bool> made;
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    for (std::uint64_t i = 1; i <= 3; ++i) {
      made.push_back(server.CreateStoreJob(Keys(i, 1), peer).has_value());
    }
    server.FinishRequest(peer);
    serve_ = [&](TierServer& next) {
      const Request other = next.BeginRequest();
      made.push_back(next.CreateStoreJob(Keys(1, 4), other).has_value());
      next.FinishRequest(other);
    };
  };
  Round();
  EXPECT_THAT(made, ElementsAre(true, true, false));
  Round();
  EXPECT_THAT(made, ElementsAre(true, true, false, true)) << "alone, one that is larger goes";
}

TEST_F(TieringServeTest, NoJobIsMadeOfAChunkThatIsNotReady) {
  MakeServing(4);
  Begin(kA);
  Prepare(Keys(1, 1), kA);
  ASSERT_TRUE(Store(Keys(2, 1), kA));
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    EXPECT_FALSE(server.CreateStoreJob(Keys(1, 2), peer));
    EXPECT_FALSE(server.CreateStoreJob({}, peer));
    server.FinishRequest(peer);
  };
  Round();
  EXPECT_EQ(Stats().tiers[1].serve.jobs_in_flight, 0u);
  EXPECT_FALSE(Round().failed);
}

TEST_F(TieringServeTest, AMisuseByTheTierIsItsFaultAndChangesNothing) {
  MakeServing(4);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  serve_ = [&](TierServer& server) {
    EXPECT_EQ(server.Lookup(Key(1), kA), LookupResult::kMiss) << "an engine's request";
    EXPECT_FALSE(server.CreateStoreJob(Keys(1, 1), kA));
    server.FinishRequest(kA);
    server.FinishRequest(Request{RequestId(kExternalRequests.value + 5)});
  };
  EXPECT_TRUE(Round().failed);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
  EXPECT_EQ(Stats().tiers[1].faults, 4u);
}

TEST_F(TieringServeTest, AResetFailsAPeersNewJobsAndSparesThoseUnderWay) {
  MakeServing(2);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  tiers_[0]->FinishStore();
  tiers_[1]->FinishStore();
  EndStep();
  std::optional<TransferJob> job;
  serve_ = [&](TierServer& server) {
    const Request peer = server.BeginRequest();
    job = server.CreateStoreJob(Keys(1, 1), peer);
    server.FinishRequest(peer);
    serve_ = {};
  };
  Round();
  ASSERT_TRUE(job);
  tiers_[0]->chunks.clear();
  {
    ManagerRegion region(*manager_);
    EXPECT_EQ(manager_->ResetCache().busy_slots, 1u);
  }
  EXPECT_FALSE(Store(Keys(5, 2), kA)) << "the peer still reads one of the two slots";
  tiers_[1]->finished.push_back({job->id, {CopyOutcome::kOk}, 100});
  EndStep();
  EXPECT_TRUE(Store(Keys(5, 2), kA));
}

}  // namespace
}  // namespace terrace
