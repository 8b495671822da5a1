#include "manager/tiering_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/keys.h"
#include "tests/support/manager_test.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::FakeTier;
using testing_support::Key;
using testing_support::Keys;

using TieringManagerTest = testing_support::ManagerTest;
using testing_support::kA;
using testing_support::kB;

TEST_F(TieringManagerTest, WithoutTiersItIsHostMemory) {
  Make(2, 0);
  Begin(kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
}

TEST_F(TieringManagerTest, NothingIsServedBeforeTheEngineHasWrittenIt) {
  Make(2, 1);
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 1), kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  Complete(plan, kA, CopyOutcome::kFailed);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
}

TEST_F(TieringManagerTest, AStoreGoesToEveryTierAndIsPinnedUntilTheSlowestHasIt) {
  Make(1, 2);
  Begin(kA);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1));
  ASSERT_THAT(tiers_[1]->stores, SizeIs(1));
  tiers_[0]->FinishStore();
  EXPECT_FALSE(Store(Keys(2, 1), kB)) << "evicted a chunk that a tier still reads";
  tiers_[1]->FinishStore({CopyOutcome::kFailed});
  EXPECT_TRUE(Store(Keys(2, 1), kB));
  EXPECT_EQ(Stats().tiers[0].cascade.chunks, 1u);
  EXPECT_EQ(Stats().tiers[1].cascade.failed_chunks, 1u);
}

TEST_F(TieringManagerTest, AHitInATierIsPromotedAndThenAHit) {
  Make(2, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  EXPECT_THAT(tiers_[0]->loads, IsEmpty()) << "submitted before the step's end";
  EndStep();
  ASSERT_THAT(tiers_[0]->loads, SizeIs(1));
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  tiers_[0]->FinishLoad();
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
  ManagerRegion region(*manager_);
  EXPECT_EQ(manager_->GetLoadSource(Key(1), kA), LoadSource::kDisk);
}

TEST_F(TieringManagerTest, ForAnotherRequestAPromotedChunkIsAHostHit) {
  Make(2, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  Begin(kB);
  Lookup(Key(1), kA);
  EndStep();
  tiers_[0]->FinishLoad();
  EndStep();
  ManagerRegion region(*manager_);
  EXPECT_EQ(manager_->Lookup(Key(1), kB), LookupResult::kHit);
  EXPECT_EQ(manager_->GetLoadSource(Key(1), kB), LoadSource::kHost);
}

TEST_F(TieringManagerTest, OneJobForEachTierAndRequestAndNoChunkTwice) {
  Make(8, 2);
  tiers_[0]->chunks = {Key(1), Key(2)};
  tiers_[1]->chunks = {Key(2), Key(3)};
  Begin(kA);
  Begin(kB);
  for (const ChunkKey& key : Keys(1, 3)) Lookup(key, kA);
  EXPECT_EQ(Lookup(Key(2), kB), LookupResult::kHitPending);
  EndStep();
  ASSERT_THAT(tiers_[0]->loads, SizeIs(1));
  EXPECT_THAT(tiers_[0]->loads[0].keys, ElementsAre(Key(1), Key(2)));
  ASSERT_THAT(tiers_[1]->loads, SizeIs(1));
  EXPECT_THAT(tiers_[1]->loads[0].keys, ElementsAre(Key(3)));
}

TEST_F(TieringManagerTest, AFailedPromotionIsAMissAndItsNeighboursAreNot) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(1), Key(2)};
  Begin(kA);
  Lookup(Key(1), kA);
  Lookup(Key(2), kA);
  EndStep();
  tiers_[0]->chunks = {};
  tiers_[0]->FinishLoad({CopyOutcome::kFailed, CopyOutcome::kOk});
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kHit);
  EXPECT_EQ(Stats().writing_chunks, 0u);
  const std::vector<CacheEvent> events = Events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kFailed);
  EXPECT_EQ(events[0].key, Key(1));
  EXPECT_EQ(events[1].kind, CacheEvent::Kind::kStored);
}

// A tier that does not answer costs one deadline, for everybody together; its slot is not reused
// while it may still be written.
TEST_F(TieringManagerTest, APromotionThatNeverEndsIsAMissAtItsDeadline) {
  Make(1, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  Begin(kB);
  Lookup(Key(1), kA);
  EndStep();
  now_ += std::chrono::milliseconds(999);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  now_ += std::chrono::milliseconds(1);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Lookup(Key(1), kB), LookupResult::kMiss);
  EXPECT_EQ(Stats().promotions_overdue, 1u);
  EXPECT_EQ(Stats().stuck_slots, 1u);
  EXPECT_FALSE(Store(Keys(50, 1), kB)) << "the slot was reused while the tier may write into it";
  EXPECT_TRUE(Store(Keys(1, 1), kB)) << "there already, though not ready: nothing to store";
  // It comes after all.
  tiers_[0]->FinishLoad();
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
  EXPECT_EQ(Stats().stuck_slots, 0u);
}

TEST_F(TieringManagerTest, AnUnknownChunkIsRetriedUnlessALaterTierHasIt) {
  Make(4, 2);
  tiers_[0]->unknown = {Key(1), Key(2)};
  tiers_[1]->chunks = {Key(2)};
  Begin(kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kHitPending);
}

// It would be of no use if the one before it turned out to be missing.
TEST_F(TieringManagerTest, NothingIsPromotedBehindAChunkThatIsUnknownInTheSameHold) {
  Make(4, 1);
  tiers_[0]->unknown = {Key(1)};
  tiers_[0]->chunks = {Key(2)};
  Begin(kA);
  {
    ManagerRegion region(*manager_);
    EXPECT_EQ(manager_->Lookup(Key(1), kA), LookupResult::kRetry);
    EXPECT_EQ(manager_->Lookup(Key(2), kA), LookupResult::kRetry);
  }
  EXPECT_EQ(Stats().writing_chunks, 0u);
  tiers_[0]->unknown = {};
  tiers_[0]->chunks.insert(Key(1));
  ManagerRegion region(*manager_);
  EXPECT_EQ(manager_->Lookup(Key(1), kA), LookupResult::kHitPending);
  EXPECT_EQ(manager_->Lookup(Key(2), kA), LookupResult::kHitPending);
}

TEST_F(TieringManagerTest, WithoutRoomAHitInATierIsAMiss) {
  options_.promoting_slots_percent = 300;
  Make(1, 1);
  tiers_[0]->chunks = {Key(1), Key(2)};
  Begin(kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().promotion_refusals, 1u);
}

// The reason for regions that span calls: a promotion for a later chunk must not evict an earlier
// one that this hold was told is a hit.
TEST_F(TieringManagerTest, AHitStaysAHitForTheRestOfTheHold) {
  Make(2, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  tiers_[0]->FinishStore();
  EndStep();
  tiers_[0]->chunks.insert(Key(3));
  ManagerRegion region(*manager_);
  ASSERT_EQ(manager_->Lookup(Key(1), kA), LookupResult::kHit);
  ASSERT_EQ(manager_->Lookup(Key(2), kA), LookupResult::kHit);
  EXPECT_EQ(manager_->Lookup(Key(3), kA), LookupResult::kMiss);
  std::vector<SlotId> slots(2);
  EXPECT_TRUE(manager_->PrepareLoad(Keys(1, 2), kA, slots));
}

TEST_F(TieringManagerTest, AnswersDoNotChangeWithinAStep) {
  Make(2, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  Lookup(Key(1), kA);
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  tiers_[0]->FinishLoad();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
}

TEST_F(TieringManagerTest, TheFirstLookUpOfAStepSeesWhatTiersFinishedSinceTheLast) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  EndStep();
  tiers_[0]->FinishLoad();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
}

TEST_F(TieringManagerTest, PinsOfALoadOutliveTheRequest) {
  std::vector<SlotId> slots(1);
  Make(1, 0);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  {
    ManagerRegion region(*manager_);
    ASSERT_EQ(manager_->Lookup(Key(1), kA), LookupResult::kHit);
    ASSERT_TRUE(manager_->PrepareLoad(Keys(1, 1), kA, slots));
  }
  Finish(kA);
  Begin(kB);
  EXPECT_FALSE(Store(Keys(2, 1), kB));
  {
    ManagerRegion region(*manager_);
    manager_->CompleteLoad(slots, kA);
  }
  EXPECT_TRUE(Store(Keys(2, 1), kB));
}

TEST_F(TieringManagerTest, TiersHearOfTheEndOnlyAfterTheLastSubmit) {
  Make(4, 1);
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 1), kA);
  Finish(kA);
  EXPECT_THAT(log_, ElementsAre("0: new 1"));
  Complete(plan, kA, CopyOutcome::kOk);
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: finished 1"));
  EXPECT_THAT(tiers_[0]->stores, SizeIs(1));
}

TEST_F(TieringManagerTest, APromotionOfAFinishedRequestIsStillSubmittedBeforeItsEnd) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  Lookup(Key(1), kA);
  Finish(kA);
  EXPECT_THAT(log_, ElementsAre("0: new 1"));
  EndStep();
  EXPECT_THAT(tiers_[0]->loads, SizeIs(1));
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: finished 1"));
  tiers_[0]->FinishLoad();
  EndStep();
  EXPECT_EQ(Stats().writing_chunks, 0u);
}

// Whoever deferred a load to another hold of the lock finds out here that the chunk is gone.
TEST_F(TieringManagerTest, ALoadOfAChunkThatIsGoneIsRefusedWhole) {
  std::vector<SlotId> slots(2);
  Make(2, 0);
  Begin(kA);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  Finish(kA);
  ASSERT_TRUE(Store(Keys(9, 1), kB));
  {
    ManagerRegion region(*manager_);
    EXPECT_FALSE(manager_->PrepareLoad(Keys(1, 2), kB, slots));
  }
  EXPECT_EQ(Stats().pinned_chunks, 0u);
}

TEST_F(TieringManagerTest, ARequestIsServedOnlyFromTheTiersThatItAllows) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(1)};
  const Request none{RequestId(7), LoadSourceSet::None()};
  const Request disk{RequestId(8), LoadSourceSet::None().With(LoadSource::kDisk)};
  Begin(none);
  Begin(disk);
  EXPECT_EQ(Lookup(Key(1), none), LookupResult::kMiss);
  EXPECT_EQ(tiers_[0]->lookups, 0);
  EXPECT_EQ(Lookup(Key(1), disk), LookupResult::kHitPending);
  ASSERT_TRUE(Store(Keys(5, 1), none));
  EXPECT_THAT(tiers_[0]->stores, SizeIs(1)) << "the filter is about loads alone";
}

// W-09: neither an answer that never comes nor a write that never ends holds a request for ever.
TEST_F(TieringManagerTest, ARequestThatWaitedTooLongComputes) {
  Make(4, 1);
  tiers_[0]->unknown = {Key(1)};
  Begin(kA);
  Begin(kB);
  const StorePlan never = Prepare(Keys(2, 1), kB);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry);
  now_ += options_.lookup_timeout - std::chrono::milliseconds(1);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry);
  now_ += std::chrono::milliseconds(1);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().lookups_overdue, 1u);
  EXPECT_EQ(Lookup(Key(1), kB), LookupResult::kRetry) << "another request has its own patience";
  ASSERT_TRUE(Store(Keys(3, 1), kA)) << "it went on";
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry) << "and may ask anew, when it starts over";
  Complete(never, kB, CopyOutcome::kOk);
}

// W-18: requests that wait for long prefixes leave room for what the engine stores.
TEST_F(TieringManagerTest, PromotionsTakeAtMostTheirPartOfHostMemory) {
  Make(8, 1);
  for (const ChunkKey& key : Keys(1, 20)) tiers_[0]->chunks.insert(key);
  Begin(kA);
  Begin(kB);
  for (const ChunkKey& key : Keys(1, 10)) Lookup(key, kA);
  for (const ChunkKey& key : Keys(11, 10)) EXPECT_EQ(Lookup(key, kB), LookupResult::kRetry);
  EXPECT_EQ(Stats().writing_chunks, 4u);
  EXPECT_GT(Stats().promotions_postponed, 0u);
  EndStep();
  ASSERT_THAT(tiers_[0]->loads, SizeIs(1));
  tiers_[0]->FinishLoad();
  EndStep();
  EXPECT_EQ(Lookup(Key(11), kB), LookupResult::kHitPending);
}

TEST_F(TieringManagerTest, AResetForgetsEverythingAtOnceAndReusesNothingTooEarly) {
  std::vector<SlotId> loading(1);
  Make(5, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));  // Both on their way to the tier.
  tiers_[0]->chunks = {Key(8), Key(9)};
  Lookup(Key(8), kA);
  EndStep();                                          // A promotion under way,
  Lookup(Key(9), kA);                                 // one that is not submitted yet,
  const StorePlan writing = Prepare(Keys(5, 1), kA);  // and a store of the engine's.
  {
    ManagerRegion region(*manager_);
    ASSERT_TRUE(manager_->PrepareLoad(Keys(1, 1), kA, loading));
    const ResetReport report = manager_->ResetCache();
    EXPECT_EQ(report.removed_chunks, 4u);
    EXPECT_EQ(report.busy_slots, 4u);
    manager_->TakeEvents();
  }
  tiers_[0]->chunks.clear();
  for (const ChunkKey& key : Keys(1, 9)) EXPECT_EQ(Lookup(key, kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().orphaned_slots, 4u);
  EXPECT_EQ(Stats().ready_chunks + Stats().writing_chunks + Stats().pinned_chunks, 0u);

  // The same keys again, in other slots, while all is still being copied.
  EXPECT_FALSE(Store(Keys(1, 2), kA)) << "only one slot is free";
  ASSERT_TRUE(Store(Keys(5, 1), kA));
  EXPECT_EQ(Lookup(Key(5), kA), LookupResult::kHit);

  Complete(writing, kA, CopyOutcome::kOk);
  EXPECT_EQ(Lookup(Key(5), kA), LookupResult::kHit) << "the new one, not the old";
  EXPECT_EQ(Stats().orphaned_slots, 3u);
  tiers_[0]->FinishLoad();
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().orphaned_slots, 1u) << "the engine still loads from it";
  {
    ManagerRegion region(*manager_);
    manager_->CompleteLoad(loading, kA);
  }
  EXPECT_EQ(Stats().orphaned_slots, 0u);
  ASSERT_TRUE(Store(Keys(20, 4), kA));
  std::size_t stored = 0;
  for (const CacheEvent& event : Events()) stored += event.kind == CacheEvent::Kind::kStored;
  EXPECT_EQ(stored, 5u) << "what the reset overtook was never announced";
}

TEST_F(TieringManagerTest, AResetEndsForTiersWhatOnlyWaitedForItsStores) {
  Make(4, 1);
  Begin(kA);
  Begin(kB);
  const StorePlan of_finished = Prepare(Keys(1, 1), kA);
  const StorePlan of_other = Prepare(Keys(2, 1), kB);
  Finish(kA);
  {
    ManagerRegion region(*manager_);
    manager_->ResetCache();
  }
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: new 2", "0: finished 1"));
  Complete(of_finished, kA, CopyOutcome::kOk);
  Complete(of_other, kB, CopyOutcome::kFailed);
  EXPECT_EQ(Stats().orphaned_slots, 0u);
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  Finish(kB);
  EXPECT_EQ(log_.size(), 4u);
}

// A tier's definite answers, and what host memory did not have: once for each request and chunk.
TEST_F(TieringManagerTest, LookupsAreTimedOnceForARequest) {
  Make(4, 1);
  Begin(kA);
  Begin(kB);
  tiers_[0]->unknown = {Key(1)};
  Lookup(Key(1), kA);
  Lookup(Key(2), kA);
  Lookup(Key(2), kA);
  Lookup(Key(2), kB);
  EXPECT_EQ(Stats().miss_time.count, 3u);
  EXPECT_EQ(Stats().tiers[0].lookup_time.count, 2u);
  tiers_[0]->unknown.clear();
  Lookup(Key(1), kA);
  Lookup(Key(1), kA);
  EXPECT_EQ(Stats().miss_time.count, 3u);
  EXPECT_EQ(Stats().tiers[0].lookup_time.count, 3u);
}

TEST_F(TieringManagerTest, APlanMayBeCompletedInParts) {
  Make(4, 0);
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 2), kA);
  Complete(Prepare({}, kA), kA, CopyOutcome::kOk);
  Complete({{}, {plan.slots[1]}, {}}, kA, CopyOutcome::kFailed);
  Complete({{}, {plan.slots[0]}, {}}, kA, CopyOutcome::kOk);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kMiss);
}

TEST_F(TieringManagerTest, AfterTheShutdownTiersAreGivenNothing) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(9)};
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 1), kA);
  manager_->Shutdown();
  Complete(plan, kA, CopyOutcome::kOk);  // The engine's copy ended meanwhile.
  EXPECT_EQ(Lookup(Key(9), kA), LookupResult::kMiss);
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  EXPECT_EQ(Stats().pinned_chunks, 0u);
}

TEST_F(TieringManagerTest, WhatIsReadyCanBeReadWhole) {
  Make(4, 0);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  Prepare(Keys(3, 1), kA);
  ManagerRegion region(*manager_);
  EXPECT_THAT(manager_->ReadyChunks(), testing::UnorderedElementsAre(Key(1), Key(2)));
}

TEST_F(TieringManagerTest, AResetPublishesItsRemovalsAndKeepsWhatTiersHave) {
  Make(2, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  tiers_[0]->FinishStore();
  EndStep();
  Events();
  {
    ManagerRegion region(*manager_);
    EXPECT_EQ(manager_->ResetCache().busy_slots, 0u);
  }
  ASSERT_THAT(Events(), SizeIs(1));
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending) << "the tier still has it";
}

TEST_F(TieringManagerTest, DrainEndsEveryJob) {
  Make(4, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  EXPECT_TRUE(manager_->Drain(std::chrono::milliseconds(1000)));
  ManagerRegion region(*manager_);
  EXPECT_FALSE(manager_->HasPendingWork());
}

TEST_F(TieringManagerTest, ShutdownStopsTheLastTierFirstAndFreesWhatWasUnderWay) {
  Make(4, 2);
  tiers_[1]->chunks = {Key(9)};
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  Lookup(Key(9), kA);
  EndStep();
  log_.clear();
  manager_->Shutdown();
  EXPECT_THAT(log_, ElementsAre("1: shutdown", "0: shutdown"));
  EXPECT_EQ(Stats().writing_chunks, 0u);
  EXPECT_EQ(Stats().pinned_chunks, 0u);
}

TEST_F(TieringManagerTest, ShutdownFreesPromotionsThatWereNeverSubmitted) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(9)};
  Begin(kA);
  Lookup(Key(9), kA);
  Finish(kA);
  manager_->Shutdown();
  EXPECT_EQ(Stats().writing_chunks, 0u);
  EXPECT_THAT(log_, ElementsAre("0: new 1", "0: shutdown", "0: finished 1"));
}

#ifndef NDEBUG
TEST_F(TieringManagerTest, TakingTheLockTwiceIsABug) {
  Make(1, 0);
  EXPECT_DEATH(
      [this]() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
        manager_->Lock();
        manager_->Lock();
      }(),
      "holds the manager's lock already");
}
#endif

// A chunk that was evicted and had to be fetched again was still asked for once.
TEST_F(TieringManagerTest, AHitIsCountedOnceForARequestAndChunk) {
  Make(1, 1);
  tiers_[0]->chunks = {Key(1), Key(2)};
  Begin(kA);
  Begin(kB);
  for (int i = 0; i < 3; ++i) {
    const bool other = i == 1;
    EXPECT_EQ(Lookup(Key(other ? 2 : 1), other ? kB : kA), LookupResult::kHitPending);
    EndStep();
    tiers_[0]->FinishLoad();
    EndStep();
  }
  EXPECT_EQ(Stats().tiers[0].promotion.chunks, 3u);
  EXPECT_EQ(Stats().tiers[0].queried_chunks, 2u);
  EXPECT_EQ(Stats().tiers[0].hit_chunks, 2u);
}

TEST_F(TieringManagerTest, ALookupDelayIsOfTheTierThatDidNotKnow) {
  Make(8, 2);
  tiers_[0]->unknown = {Key(1)};
  Begin(kA);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry);
    EndStep();
    now_ += std::chrono::milliseconds(10);
  }
  EXPECT_EQ(Stats().tiers[1].lookup_delay.count, 0u) << "it answered at once, each time";
  tiers_[0]->unknown = {};
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().tiers[0].lookup_delay.count, 1u);
  EXPECT_EQ(Stats().tiers[0].lookup_delay.sum, std::chrono::milliseconds(30));
  EXPECT_EQ(Stats().tiers[1].lookup_delay.count, 0u);
}

}  // namespace
}  // namespace terrace
