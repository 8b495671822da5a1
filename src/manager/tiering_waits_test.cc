// Chunks on their way to tiers: parked for those that were promised them, waiting for slow ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

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

class TieringWaitsTest : public testing_support::ManagerTest {
 protected:
  static void WantsAll(int, FakeTier& tier) { tier.interest = StoreInterest::kWholeRequest; }
};

TEST_F(TieringWaitsTest, AWholeRequestTierGetsWhatHostMemoryHasAlready) {
  Make(8, 2, [](int i, FakeTier& tier) {
    if (i == 1) tier.interest = StoreInterest::kWholeRequest;
  });
  Begin(kA);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  tiers_[0]->FinishStore();
  tiers_[1]->FinishStore();
  EndStep();
  ASSERT_TRUE(Store(Keys(1, 2), kB));
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  ASSERT_THAT(tiers_[1]->stores, SizeIs(1));
  EXPECT_THAT(tiers_[1]->stores[0].keys, ElementsAre(Key(1), Key(2)));
  ASSERT_TRUE(Store(Keys(1, 2), kB));
  EXPECT_THAT(tiers_[1]->stores, SizeIs(1)) << "given once for each request";
}

TEST_F(TieringWaitsTest, ATierThatWantsNothingOfARequestIsGivenNothing) {
  Make(8, 2, [](int i, FakeTier& tier) {
    if (i == 0) tier.interest = StoreInterest::kNothing;
  });
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  EXPECT_THAT(tiers_[1]->stores, SizeIs(1));
}

// The engine advances past what is "there already" and never offers it again.
TEST_F(TieringWaitsTest, WhatSomebodyElseWritesIsParkedAndGivenWhenReady) {
  Make(8, 1, WantsAll);
  Begin(kA);
  Begin(kB);
  const StorePlan first = Prepare(Keys(1, 1), kA);
  const StorePlan second = Prepare(Keys(2, 1), kA);
  ASSERT_TRUE(Store(Keys(1, 2), kB));
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  Finish(kB);
  EndStep();
  EXPECT_TRUE(Pending()) << "parked chunks keep an idle engine stepping";
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: new 2")) << "it hears of the end after its chunks";
  Complete(first, kA, CopyOutcome::kOk);
  Complete(second, kA, CopyOutcome::kFailed);
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1)) << "the writer's own";
  EndStep();
  ASSERT_THAT(tiers_[0]->stores, SizeIs(2));
  EXPECT_EQ(tiers_[0]->stores[1].request, kB.id);
  EXPECT_THAT(tiers_[0]->stores[1].keys, ElementsAre(Key(1)));
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: new 2", "0: finished 2"));
}

TEST_F(TieringWaitsTest, AParkedChunkWhoseWritingNeverEndsIsGivenUpAtItsDeadline) {
  Make(8, 1, WantsAll);
  Begin(kA);
  Begin(kB);
  Prepare(Keys(1, 1), kA);
  ASSERT_TRUE(Store(Keys(1, 1), kB));
  Finish(kB);
  now_ += options_.waiting_timeout;
  EndStep();
  EXPECT_EQ(Stats().parked_chunks_overdue, 1u);
  EXPECT_EQ(log_.back(), "0: finished 2");
}

// W-16: a finished request has only this one offer.
TEST_F(TieringWaitsTest, AStoreWithoutRoomStillGivesWhatIsThere) {
  options_.cascading_slots_percent = 400;
  Make(1, 1, WantsAll);
  Begin(kA);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  EXPECT_FALSE(Store(Keys(1, 2), kB)) << "the only slot is pinned by a cascade";
  ASSERT_THAT(tiers_[0]->stores, SizeIs(2));
  EXPECT_EQ(tiers_[0]->stores[1].request, kB.id);
  EXPECT_THAT(tiers_[0]->stores[1].keys, ElementsAre(Key(1)));
}

// A slow tier pins its part of host memory, no more; the fast one is not held up.
TEST_F(TieringWaitsTest, WhatATierIsTooSlowForWaitsWithoutPins) {
  options_.cascading_slots_percent = 25;  // Two of eight.
  Make(8, 2);
  Begin(kA);
  for (std::uint64_t i = 1; i <= 6; ++i) {
    ASSERT_TRUE(Store(Keys(i, 1), kA));
    tiers_[1]->FinishStore();
    EndStep();
  }
  EXPECT_THAT(tiers_[0]->stores, SizeIs(2));
  EXPECT_EQ(Stats().tiers[0].waiting_chunks, 4u);
  EXPECT_EQ(Stats().tiers[1].waiting_chunks, 0u);
  EXPECT_EQ(Stats().pinned_chunks, 2u);
  tiers_[0]->FinishStore();
  tiers_[0]->FinishStore();
  EndStep();
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1)) << "in one job, as much as there is room for";
  EXPECT_THAT(tiers_[0]->stores[0].keys, ElementsAre(Key(3), Key(4)));
  EXPECT_EQ(Stats().tiers[0].waiting_chunks, 2u);
}

TEST_F(TieringWaitsTest, WhatWaitsKeepsItsTurn) {
  options_.cascading_slots_percent = 25;
  Make(8, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 3), kA));
  tiers_[0]->FinishStore();
  ASSERT_TRUE(Store(Keys(7, 1), kA)) << "there is room again, but 3 waits";
  EndStep();
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1));
  EXPECT_THAT(tiers_[0]->stores[0].keys, ElementsAre(Key(3), Key(7)));
}

TEST_F(TieringWaitsTest, WhatIsEvictedWhileItWaitsIsDroppedAndCounted) {
  options_.cascading_slots_percent = 50;  // One of two.
  Make(2, 1);
  Begin(kA);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  ASSERT_TRUE(Store(Keys(2, 1), kA));
  Finish(kA);
  ASSERT_TRUE(Store(Keys(3, 1), kB)) << "what waits may be evicted";
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: new 2")) << "it may still get a job of request 1";
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().tiers[0].dropped_while_waiting_chunks, 1u);
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1));
  EXPECT_THAT(tiers_[0]->stores[0].keys, ElementsAre(Key(3)));
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: new 2", "0: finished 1"));
}

// Nobody outside can see that a finished request still waits for something.
TEST_F(TieringWaitsTest, AnIdMayComeAgainWhileItsFormerRequestLingers) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(9)};
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 3), kA));  // Two under way, one waits.
  Lookup(Key(9), kA);                  // And a promotion that is not submitted yet.
  Finish(kA);
  Begin(kA);
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: finished 1", "0: new 1"));
  EXPECT_EQ(Stats().writing_chunks, 0u);
  EXPECT_EQ(Stats().tiers[0].waiting_chunks, 0u);
  EXPECT_EQ(Stats().tiers[0].dropped_while_waiting_chunks, 1u);
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().pinned_chunks, 0u);
}

TEST_F(TieringWaitsTest, NothingWaitsPastItsDeadline) {
  options_.cascading_slots_percent = 50;
  Make(2, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  ASSERT_TRUE(Store(Keys(2, 1), kA));
  Finish(kA);
  now_ += options_.waiting_timeout;
  EndStep();
  EXPECT_EQ(Stats().tiers[0].dropped_while_waiting_chunks, 1u);
  EXPECT_EQ(log_.back(), "0: finished 1");
}

TEST_F(TieringWaitsTest, AResetDropsWhatWaits) {
  options_.cascading_slots_percent = 25;
  Make(4, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  ASSERT_TRUE(Store(Keys(2, 1), kA));
  Finish(kA);
  {
    ManagerRegion region(*manager_);
    manager_->ResetCache();
  }
  EXPECT_EQ(Stats().tiers[0].dropped_while_waiting_chunks, 1u);
  EXPECT_EQ(log_.back(), "0: finished 1");
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  EXPECT_FALSE(Pending());
}

TEST_F(TieringWaitsTest, BackPressureDropsWithoutJobOrPinButNotWhatWasPromised) {
  options_.tiers.resize(2);
  for (GuardedTierOptions& guards : options_.tiers) {
    guards.backpressure = BackpressureOptions::LocalDisk();
    guards.backpressure.policy = "drop";
    guards.backpressure.warmup_stores = 1;
  }
  Make(16, 2, [](int i, FakeTier& tier) {
    if (i == 1) tier.interest = StoreInterest::kWholeRequest;
  });
  Begin(kA);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(Store(Keys(i, 1), kA));
    now_ += std::chrono::milliseconds(100);  // For 100 bytes.
    for (FakeTier* tier : tiers_) {
      if (!tier->stores.empty()) tier->FinishStore();
    }
    EndStep();
  }
  const std::size_t before = Stats().tiers[0].cascade.jobs;
  ASSERT_TRUE(Store(Keys(10, 2), kA));
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  EXPECT_THAT(tiers_[1]->stores, SizeIs(1));
  EXPECT_GE(Stats().tiers[0].dropped_by_backpressure_chunks, 2u);
  EXPECT_EQ(Stats().tiers[0].cascade.jobs, before);
  EXPECT_EQ(Stats().pinned_chunks, 2u) << "by the other tier";
}

// Evicted while it waited and stored again, a chunk waits twice.
TEST_F(TieringWaitsTest, AJobNamesAChunkOnce) {
  options_.cascading_slots_percent = 25;
  options_.promoting_slots_percent = 100;
  Make(8, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));  // As many as may be under way.
  ASSERT_TRUE(Store({Key(3)}, kA));
  Begin(kB);
  for (const ChunkKey& key : Keys(10, 6)) {
    tiers_[0]->chunks.insert(key);
    EXPECT_EQ(Lookup(key, kB), LookupResult::kHitPending);
  }
  EndStep();
  tiers_[0]->FinishLoad();
  EXPECT_EQ(Stats().evicted_chunks, 1u);
  ASSERT_TRUE(Store({Key(3)}, kA));
  EXPECT_EQ(Stats().tiers[0].waiting_chunks, 2u);
  tiers_[0]->FinishStore();
  EndStep();
  ASSERT_FALSE(tiers_[0]->stores.empty());
  for (const TransferJob& job : tiers_[0]->stores) {
    EXPECT_EQ(std::set(job.keys.begin(), job.keys.end()).size(), job.keys.size());
  }
}

// A round of the control thread may end the job that kept it from its turn: nobody else would.
TEST_F(TieringWaitsTest, WhatWaitsKeepsAnIdleEngineStepping) {
  options_.cascading_slots_percent = 25;
  Make(4, 1, [](int, FakeTier& tier) { tier.serve = [](TierServer&) {}; });
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  Finish(kA);
  tiers_[0]->FinishStore();
  Round();
  EXPECT_EQ(Stats().tiers[0].cascade.jobs_in_flight, 0u);
  EXPECT_EQ(Stats().tiers[0].waiting_chunks, 1u);
  EXPECT_TRUE(Pending());
  EndStep();
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_FALSE(Pending());
}

}  // namespace
}  // namespace terrace
