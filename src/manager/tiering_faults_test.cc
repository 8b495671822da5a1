// Tiers that fail, throw, lie or hang: the engine and the other tiers go on.
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

class TieringFaultsTest : public testing_support::ManagerTest {
 protected:
  // Takes tier 0 down by jobs that fail.
  void TakeDown() {
    for (std::uint64_t i = 1000; i < 1003; ++i) {
      ASSERT_TRUE(Store(Keys(i, 1), kA));
      tiers_[0]->FinishStore({CopyOutcome::kFailed});
      EndStep();
    }
    ASSERT_EQ(Stats().tiers[0].health, TierHealth::kDown);
  }
};

TEST_F(TieringFaultsTest, ATierWhoseJobsFailIsLeftAloneAndTriedAgain) {
  Make(16, 2);
  tiers_[0]->chunks = {Key(1)};
  tiers_[1]->chunks = {Key(2)};
  Begin(kA);
  TakeDown();
  const int lookups = tiers_[0]->lookups;
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kHitPending) << "the other one works";
  EXPECT_EQ(tiers_[0]->lookups, lookups);
  ASSERT_TRUE(Store(Keys(5, 1), kA));
  EXPECT_THAT(tiers_[0]->stores, IsEmpty());
  EXPECT_EQ(Stats().tiers[0].dropped_while_down_chunks, 1u);
  now_ += std::chrono::milliseconds(1001);
  ASSERT_TRUE(Store(Keys(6, 1), kA));
  ASSERT_THAT(tiers_[0]->stores, SizeIs(1)) << "the probe";
  ASSERT_TRUE(Store(Keys(7, 1), kA));
  EXPECT_THAT(tiers_[0]->stores, SizeIs(1)) << "one at a time";
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
}

TEST_F(TieringFaultsTest, ATierWhoseJobsMayAllFailIsTakenDownByWhatItThrowsOrKeeps) {
  for (const bool throws : {true, false}) {
    SCOPED_TRACE(throws);
    tiers_.clear();
    Make(64, 1, [](int, FakeTier& tier) { tier.failed_jobs_count = false; });
    Begin(kA);
    for (std::uint64_t i = 1; i <= 5; ++i) {
      tiers_[0]->chunks.insert(Key(100 + i));
      ASSERT_EQ(Lookup(Key(100 + i), kA), LookupResult::kHitPending);
      ASSERT_TRUE(Store(Keys(i, 1), kA));
      EndStep();
      tiers_[0]->FinishStore({CopyOutcome::kFailed});
      tiers_[0]->FinishLoad({CopyOutcome::kFailed});
      EndStep();
    }
    EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
    EXPECT_EQ(Stats().tiers[0].cascade.failed_jobs, 5u);
    EXPECT_EQ(Stats().tiers[0].promotion.failed_jobs, 5u);

    if (throws) tiers_[0]->throws = {"SubmitStore"};
    for (std::uint64_t i = 10; i < 13; ++i) {
      EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
      ASSERT_TRUE(Store(Keys(i, 1), kA));
      if (!throws) now_ += options_.cascade_timeout;
      EndStep();
    }
    EXPECT_EQ(Stats().tiers[0].health, TierHealth::kDown);
  }
}

// Each of its chunks would cost a request all of its patience.
TEST_F(TieringFaultsTest, ATierThatAnswersNoLookUpIsLeftAloneAndTriedAgain) {
  Make(16, 1);
  Begin(kA);
  const auto wait_in_vain = [&](std::uint64_t key) {
    tiers_[0]->unknown.insert(Key(key));
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(Lookup(Key(key), kA), LookupResult::kRetry);
      now_ += options_.lookup_timeout / 2;
    }
    ASSERT_EQ(Lookup(Key(key), kA), LookupResult::kMiss);
    ASSERT_TRUE(Store(Keys(100 + key, 1), kA)) << "it goes on";
  };
  for (const std::uint64_t key : {1, 2}) wait_in_vain(key);
  EXPECT_EQ(Lookup(Key(50), kA), LookupResult::kMiss) << "an answer between";
  for (const std::uint64_t key : {3, 4}) wait_in_vain(key);
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp) << "they must be in a row";
  tiers_[0]->unknown.insert(Key(60));
  ASSERT_EQ(Lookup(Key(60), kA), LookupResult::kRetry);
  now_ += options_.lookup_timeout;
  ASSERT_EQ(Lookup(Key(60), kA), LookupResult::kMiss) << "as after the process was stopped";
  ASSERT_TRUE(Store(Keys(160, 1), kA));
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp) << "nobody asked meanwhile";
  wait_in_vain(5);
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kDown);
  EXPECT_EQ(Stats().tiers[0].faults, 5u);
  const int lookups = tiers_[0]->lookups;
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(tiers_[0]->lookups, lookups);

  now_ += std::chrono::milliseconds(1001);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry) << "the probe";
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kMiss) << "one at a time";
  now_ += std::chrono::milliseconds(1001);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss) << "it is silent still";
  ASSERT_TRUE(Store(Keys(200, 1), kA));

  now_ += std::chrono::milliseconds(2001);
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kRetry);
  tiers_[0]->unknown.clear();
  tiers_[0]->chunks = {Key(1)};
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending) << "the same chunk is asked for again";
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
}

TEST_F(TieringFaultsTest, APromotionThatTheTierCannotBeGivenIsAMissAtOnce) {
  Make(16, 1);
  tiers_[0]->chunks = {Key(1)};
  Begin(kA);
  ASSERT_EQ(Lookup(Key(1), kA), LookupResult::kHitPending);
  TakeDown();  // Before the step's end: its own steps submitted it; it fails with the others.
  while (!tiers_[0]->loads.empty()) tiers_[0]->FinishLoad({CopyOutcome::kFailed});
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().writing_chunks, 0u);
}

// W-02: the same whoever is served by the tier's exception: nobody.
TEST_F(TieringFaultsTest, WhatATierThrowsNeverReachesTheEngine) {
  for (const char* method : {"Lookup", "SubmitStore", "SubmitLoad", "TakeFinished", "OnScheduleEnd",
                             "ServeExternalRequests", "Drain", "Shutdown"}) {
    SCOPED_TRACE(method);
    tiers_.clear();
    Make(16, 2, [](int, FakeTier& tier) { tier.serve = [](TierServer&) {}; });
    tiers_[0]->throws = {method};
    tiers_[0]->chunks = {Key(1)};
    tiers_[1]->chunks = {Key(2)};
    Begin(kA);
    Lookup(Key(1), kA);
    Lookup(Key(2), kA);
    ASSERT_TRUE(Store(Keys(5, 1), kA));
    EndStep();
    ASSERT_THAT(tiers_[1]->loads, SizeIs(1));
    tiers_[1]->FinishLoad();
    tiers_[1]->FinishStore();
    EndStep();
    EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kHit);
    EXPECT_EQ(Lookup(Key(5), kA), LookupResult::kHit);
    manager_->Drain(std::chrono::milliseconds(20));
    EXPECT_EQ(Stats().tiers[0].faults > 0, std::string(method) != "Shutdown");
    FakeTier* const first = tiers_[0];
    manager_->Shutdown();
    EXPECT_EQ(manager_->tiers_still_run(), std::string(method) == "Shutdown");
    const bool leaked = manager_->tiers_still_run();
    manager_.reset();
    if (leaked) delete first;
  }
}

TEST_F(TieringFaultsTest, TimesThatATierMakesUpAreNotAdded) {
  using TimePoint = std::chrono::steady_clock::time_point;
  for (const TimePoint made_up :
       {TimePoint::min(), TimePoint::max(), now_ - std::chrono::hours(1)}) {
    tiers_.clear();
    Make(8, 1);
    Begin(kA);
    ASSERT_TRUE(Store(Keys(1, 1), kA));
    const JobId job = tiers_[0]->stores.front().id;
    tiers_[0]->stores.clear();
    tiers_[0]->finished.push_back({job, {CopyOutcome::kOk}, 100, made_up, made_up});
    now_ += std::chrono::milliseconds(5);
    EndStep();
    EXPECT_EQ(Stats().tiers[0].cascade.time, std::chrono::milliseconds(5));
  }
}

TEST_F(TieringFaultsTest, DrainDoesNotSpin) {
  Make(8, 1);
  tiers_[0]->pending = true;  // Work of its own, no job: its Drain() returns at once.
  EXPECT_FALSE(manager_->Drain(std::chrono::milliseconds(100)));
  EXPECT_LE(tiers_[0]->step_ends, 101);
}

// W-13: nor one that is left alone.
TEST_F(TieringFaultsTest, WhatATierThatIsDownSaysKeepsNobodyStepping) {
  Make(16, 1);
  Begin(kA);
  tiers_[0]->pending = true;
  EXPECT_TRUE(Pending());
  TakeDown();
  EXPECT_FALSE(Pending());
}

TEST_F(TieringFaultsTest, AJobThatThrewWhenSubmittedWasNotTaken) {
  Make(2, 1);
  tiers_[0]->throws = {"SubmitStore", "SubmitLoad"};
  tiers_[0]->chunks = {Key(9)};
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  EXPECT_EQ(Stats().pinned_chunks, 0u);
  EXPECT_EQ(Lookup(Key(9), kA), LookupResult::kHitPending);
  EndStep();
  EXPECT_EQ(Stats().writing_chunks, 0u);
  EXPECT_FALSE(Pending());
  EXPECT_EQ(Stats().tiers[0].promotion.failed_chunks, 1u);
  EXPECT_EQ(Stats().tiers[0].cascade.failed_chunks, 1u);
}

// W-04: each report by itself.
TEST_F(TieringFaultsTest, AReportOfAnUnknownJobCostsOnlyItself) {
  Make(4, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  ASSERT_TRUE(Store(Keys(2, 1), kA));
  tiers_[0]->finished.push_back({JobId(777), {CopyOutcome::kOk}, 0});
  tiers_[0]->FinishStore();
  tiers_[0]->finished.push_back(tiers_[0]->finished.back());
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().tiers[0].unknown_reports, 2u) << "one never was, one came twice";
  EXPECT_EQ(Stats().tiers[0].cascade.jobs, 2u);
  EXPECT_EQ(Stats().pinned_chunks, 0u);
  EXPECT_FALSE(Pending());
}

TEST_F(TieringFaultsTest, ATierThatGoesOnBreakingItsContractIsLeftAlone) {
  Make(4, 1);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
    tiers_[0]->finished.push_back({JobId(77), {CopyOutcome::kOk}, 0, {}, {}});
    EndStep();
  }
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kDown);
}

TEST_F(TieringFaultsTest, AReportWithTooFewOutcomesIsAFailureOfTheWholeJob) {
  Make(4, 1);
  tiers_[0]->chunks = {Key(1), Key(2)};
  Begin(kA);
  Lookup(Key(1), kA);
  Lookup(Key(2), kA);
  EndStep();
  const JobId job = tiers_[0]->loads.front().id;
  tiers_[0]->loads.clear();
  tiers_[0]->finished.push_back({job, {CopyOutcome::kOk}, 100});
  tiers_[0]->chunks.clear();
  EndStep();
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kMiss) << "whose outcome it was nobody knows";
  EXPECT_EQ(Lookup(Key(2), kA), LookupResult::kMiss);
  EXPECT_EQ(Stats().tiers[0].faults, 1u);
}

// A hung disk: its slots are kept, and nothing else.
TEST_F(TieringFaultsTest, AnOverdueStoreKeepsItsSlotsAndNobodyWaiting) {
  Make(4, 1);
  Begin(kA);
  ASSERT_TRUE(Store(Keys(1, 2), kA));
  now_ += options_.cascade_timeout;
  EndStep();
  EXPECT_EQ(Stats().tiers[0].cascade.overdue_jobs, 1u);
  EXPECT_EQ(Stats().pinned_chunks, 2u);
  EXPECT_FALSE(Pending()) << "an idle engine does not step for ever for it";
  ASSERT_TRUE(Store(Keys(5, 2), kA));
  EXPECT_EQ(Lookup(Key(1), kA), LookupResult::kHit) << "evicted under a copy that runs";
  tiers_[0]->FinishStore();
  EndStep();
  EXPECT_EQ(Stats().tiers[0].cascade.overdue_jobs, 0u);
  EXPECT_EQ(Stats().tiers[0].cascade.overdue_jobs_total, 1u);
}

TEST_F(TieringFaultsTest, ATierThatHangsIsTakenDownAndDoesNotFillHostMemory) {
  Make(64, 1);
  for (const ChunkKey& key : Keys(1, 60)) tiers_[0]->chunks.insert(key);
  Begin(kA);
  for (std::uint64_t i = 1; i <= 60; ++i) {
    Lookup(Key(i), kA);
    EndStep();
    now_ += std::chrono::milliseconds(500);  // A promotion has a second.
  }
  EXPECT_GT(Stats().tiers[0].downs, 0u);
  EXPECT_LE(Stats().stuck_slots, 12u) << "a probe now and then at most";
  EXPECT_EQ(Stats().stuck_slots, Stats().tiers[0].promotion.slots_in_flight);
}

TEST_F(TieringFaultsTest, AFailingShutdownDoesNotKeepTheOthersFromTheirs) {
  Make(4, 3);
  FakeTier* const stuck = tiers_[1];
  stuck->ends_in_time = false;
  manager_->Shutdown();
  EXPECT_THAT(log_, ElementsAre("2: shutdown", "1: shutdown", "0: shutdown"));
  EXPECT_TRUE(manager_->tiers_still_run()) << "host memory must stay mapped";
  manager_->Shutdown();
  EXPECT_THAT(log_, SizeIs(3));
  manager_.reset();
  delete stuck;
}

TEST_F(TieringFaultsTest, DrainEndsInBoundedTime) {
  Make(4, 1);
  Begin(kA);
  tiers_[0]->throws = {"Drain"};
  ASSERT_TRUE(Store(Keys(1, 1), kA));
  EXPECT_FALSE(manager_->Drain(std::chrono::milliseconds(30)));
  tiers_[0]->throws = {};
  now_ += std::chrono::minutes(2);  // It was left alone for a while.
  EXPECT_TRUE(manager_->Drain(std::chrono::milliseconds(1000)));
}

}  // namespace
}  // namespace terrace
