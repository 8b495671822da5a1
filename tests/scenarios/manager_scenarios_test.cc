// Bug reports of other systems (docs/scenarios.md) that this manager can meet and that are more
// than one behaviour, which has its test beside the code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/manager_test.h"

namespace terrace {
namespace {

using testing_support::FakeTier;
using testing_support::kA;
using testing_support::kB;
using testing_support::Key;
using testing_support::Keys;

class ManagerScenariosTest : public testing_support::ManagerTest {
 protected:
  void LoadAndComplete(const std::vector<ChunkKey>& keys, const Request& request) {
    std::vector<SlotId> slots(keys.size());
    ManagerRegion region(*manager_);
    ASSERT_TRUE(manager_->PrepareLoad(keys, request, slots));
    manager_->CompleteLoad(slots, request);
  }
  // Slots of as many new chunks as there is room for.
  std::set<SlotId> AllSlots(std::uint32_t count) {
    const Request filler{RequestId(999'999)};
    Begin(filler);
    const StorePlan plan = Prepare(Keys(1'000'000, count), filler);
    return {plan.slots.begin(), plan.slots.end()};
  }
  static Request NthRequest(std::uint64_t n) { return Request{RequestId(1'000 + n)}; }
};

// BR-19
TEST_F(ManagerScenariosTest, WhatEndsAfterItsRequestFinishedStillEnds) {
  Make(8, 1);
  tiers_[0]->chunks = {Key(9)};
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 4), kA);
  EXPECT_EQ(Lookup(Key(9), kA), LookupResult::kHitPending);
  EndStep();
  Finish(kA);
  Complete(plan, kA, CopyOutcome::kOk);
  tiers_[0]->FinishLoad();
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().ready_chunks, 5u);
  EXPECT_EQ(Stats().pinned_chunks + Stats().writing_chunks, 0u);
  EXPECT_FALSE(Pending());
  EXPECT_THAT(log_, testing::Contains("0: finished 1").Times(1));
}

// BR-20: preempted while its stores run, it looks for the same chunks; and the stores may fail.
TEST_F(ManagerScenariosTest, ChunksWhoseStoreStillRunsArePendingUntilItEnds) {
  Make(8, 0);
  Begin(kA);
  const StorePlan plan = Prepare(Keys(1, 7), kA);
  for (const ChunkKey& key : Keys(1, 7)) EXPECT_EQ(Lookup(key, kA), LookupResult::kHitPending);
  Complete(plan, kA, CopyOutcome::kFailed);
  for (const ChunkKey& key : Keys(1, 7)) EXPECT_EQ(Lookup(key, kA), LookupResult::kMiss);
  EXPECT_TRUE(Store(Keys(1, 7), kA));
  for (const ChunkKey& key : Keys(1, 7)) EXPECT_EQ(Lookup(key, kA), LookupResult::kHit);
}

// BR-23
TEST_F(ManagerScenariosTest, AFullHostRefusesHundredsAndGoesOn) {
  options_.cascading_slots_percent = 100;
  Make(4, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 4), kA));  // Pinned: the tier has not taken them yet.
  for (std::uint64_t n = 0; n < 600; ++n) {
    Begin(NthRequest(n));
    EXPECT_FALSE(Store(Keys(100 + n * 10, 10), NthRequest(n))) << "more than there is at all";
    EXPECT_FALSE(Store(Keys(100 + n * 10, 2), NthRequest(n))) << "all is pinned";
    EXPECT_TRUE(Store({}, NthRequest(n)));
    Finish(NthRequest(n));
  }
  EXPECT_EQ(Stats().store_refusals, 1'200u);
  EXPECT_EQ(Stats().evicted_chunks, 0u);
  tiers_[0]->FinishStore();
  Begin(kB);
  EXPECT_TRUE(Store(Keys(50, 2), kB));
}

// BR-24: the tier stops after 5 of 16.
TEST_F(ManagerScenariosTest, APromotionThatEndsEarlyFreesEachSlotOnce) {
  options_.promoting_slots_percent = 100;
  Make(16, 1);
  Begin(kA);
  for (const ChunkKey& key : Keys(1, 16)) {
    tiers_[0]->chunks.insert(key);
    Lookup(key, kA);
  }
  EndStep();
  std::vector<CopyOutcome> outcomes(16, CopyOutcome::kFailed);
  std::fill_n(outcomes.begin(), 5, CopyOutcome::kOk);
  tiers_[0]->FinishLoad(outcomes);
  Finish(kA);
  EndStep();
  EXPECT_EQ(Stats().ready_chunks, 5u);
  EXPECT_EQ(AllSlots(16).size(), 16u);
}

// BR-31: of what was found only a part is loaded, and most of it never.
TEST_F(ManagerScenariosTest, LookedUpAndNeverLoadedHoldsNothing) {
  Make(120, 0);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(0, 100), kA));
  Finish(kA);
  for (std::uint64_t n = 0; n < 1'000; ++n) {
    Begin(NthRequest(n));
    for (int again = 0; again < 5; ++again) {
      for (const ChunkKey& key : Keys(0, 100)) Lookup(key, NthRequest(n));
    }
    LoadAndComplete(Keys(0, 40), NthRequest(n));
    Finish(NthRequest(n));
  }
  EXPECT_EQ(Stats().pinned_chunks, 0u);
  EXPECT_EQ(AllSlots(120).size(), 120u);
}

// BR-33: requests end at any moment of their promotions, which end late.
TEST_F(ManagerScenariosTest, RequestsThatFinishDuringTheirPromotionsLoseNothing) {
  Make(16, 1);
  std::mt19937 random(1);
  for (std::uint64_t n = 0; n < 10'000; ++n) {
    const Request request = NthRequest(n);
    Begin(request);
    tiers_[0]->chunks = {Key(n), Key(n + 1)};
    Lookup(Key(n), request);
    if (random() % 2 != 0) EndStep();
    Lookup(Key(n + 1), request);
    if (random() % 2 != 0) EndStep();
    Finish(request);
    while (tiers_[0]->loads.size() > random() % 3) {
      const std::size_t size = tiers_[0]->loads.front().keys.size();
      const bool fails = random() % 2 != 0;
      tiers_[0]->FinishLoad(std::vector(size, fails ? CopyOutcome::kFailed : CopyOutcome::kOk));
    }
    now_ += std::chrono::seconds(2);  // Whoever failed is asked again.
  }
  EndStep();
  while (!tiers_[0]->loads.empty()) tiers_[0]->FinishLoad();
  EndStep();
  const ManagerStats stats = Stats();
  EXPECT_EQ(stats.writing_chunks + stats.pinned_chunks + stats.stuck_slots, 0u);
  EXPECT_EQ(stats.tiers[0].promotion.jobs_in_flight, 0u);
  EXPECT_FALSE(Pending());
  EXPECT_EQ(AllSlots(16).size(), 16u);
}

// BR-36: the tier goes on saying that it has chunk 3, and fails each time.
TEST_F(ManagerScenariosTest, AChunkThatATierCannotBringIsTriedOnceByARequest) {
  Make(16, 1);
  Begin(kA);
  for (const ChunkKey& key : Keys(1, 4)) tiers_[0]->chunks.insert(key);
  for (const ChunkKey& key : Keys(1, 4)) Lookup(key, kA);
  EndStep();
  tiers_[0]->FinishLoad(
      {CopyOutcome::kOk, CopyOutcome::kOk, CopyOutcome::kFailed, CopyOutcome::kOk});
  for (int step = 0; step < 3; ++step) {
    EndStep();
    EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kHit);
    EXPECT_EQ(Lookup(Key(3), kA), LookupResult::kMiss);
    EXPECT_EQ(Lookup(Key(4), kA), LookupResult::kHit);
    EXPECT_TRUE(tiers_[0]->loads.empty());
  }
  // It was a fault that passed: the next request finds it.
  Begin(kB);
  EXPECT_EQ(Lookup(Key(3), kB), LookupResult::kHitPending);
  EndStep();
  tiers_[0]->FinishLoad();
  EndStep();
  EXPECT_EQ(Lookup(Key(3), kB), LookupResult::kHit);
}

// BR-39: 20 requests with 60 chunks each on a disk, of which 100 fit; one runs at a time.
TEST_F(ManagerScenariosTest, APromotionStormServesTheHeadOfTheQueueAndReadsLittleTwice) {
  constexpr std::uint64_t kRequests = 20, kChunks = 60;
  Make(100, 1);
  for (std::uint64_t n = 0; n < kRequests; ++n) {
    Begin(NthRequest(n));
    for (const ChunkKey& key : Keys(n * kChunks, kChunks)) tiers_[0]->chunks.insert(key);
  }
  std::uint64_t head = 0, reads = 0;
  for (int step = 0; step < 1'000 && head < kRequests; ++step) {
    for (std::uint64_t n = head; n < kRequests; ++n) {
      const std::vector<ChunkKey> keys = Keys(n * kChunks, kChunks);
      ManagerRegion region(*manager_);
      std::size_t hits = 0;
      for (const ChunkKey& key : keys) {
        const LookupResult found = manager_->Lookup(key, NthRequest(n));
        if (found == LookupResult::kHit) ++hits;
        if (found == LookupResult::kMiss || found == LookupResult::kRetry) break;
      }
      if (n != head || hits < kChunks) continue;
      std::vector<SlotId> slots(kChunks);
      ASSERT_TRUE(manager_->PrepareLoad(keys, NthRequest(n), slots));
      manager_->CompleteLoad(slots, NthRequest(n));
      manager_->OnRequestFinished(NthRequest(n));
      ++head;
      break;
    }
    EndStep();
    while (!tiers_[0]->loads.empty()) {
      reads += tiers_[0]->loads.front().keys.size();
      tiers_[0]->FinishLoad();
    }
  }
  EXPECT_EQ(head, kRequests) << "the head of the queue did not get all its chunks";
  EXPECT_LE(reads, kRequests * kChunks * 12 / 10);
}

// BR-54: 20 chunks in host memory, 10 on the disk of which 2 fail, 10 nowhere; asked seven times.
TEST_F(ManagerScenariosTest, EveryChunkIsCountedOnceHoweverOftenItIsAskedFor) {
  Make(64, 1);
  Begin(kB);
  ASSERT_TRUE(Store(Keys(0, 20), kB));
  tiers_[0]->FinishStore();
  for (const ChunkKey& key : Keys(20, 10)) tiers_[0]->chunks.insert(key);
  Begin(kA);
  for (int again = 0; again < 7; ++again) {
    for (const ChunkKey& key : Keys(0, 40)) Lookup(key, kA);
    EndStep();
    if (tiers_[0]->loads.empty()) continue;
    std::vector<CopyOutcome> outcomes(10, CopyOutcome::kOk);
    outcomes[4] = outcomes[9] = CopyOutcome::kFailed;
    tiers_[0]->FinishLoad(outcomes);
  }
  const ManagerStats stats = Stats();
  EXPECT_EQ(stats.tiers[0].queried_chunks, 20u) << "what host memory has is no tier's business";
  EXPECT_EQ(stats.tiers[0].hit_chunks, 10u);
  EXPECT_EQ(stats.tiers[0].promotion.chunks, 8u);
  EXPECT_EQ(stats.tiers[0].promotion.failed_chunks, 2u);
  EXPECT_EQ(stats.tiers[0].promotion.jobs, 1u);
}

}  // namespace
}  // namespace terrace
