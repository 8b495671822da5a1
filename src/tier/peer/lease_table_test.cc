#include "tier/peer/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/keys.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::Key;
using testing_support::Keys;

constexpr SessionId kSession(1), kOther(2);
constexpr SessionToken kToken{1}, kOtherToken{2};

class LeaseTableTest : public testing::Test {
 protected:
  LeaseTableTest() : table_({.lease_time = milliseconds(100), .life_max = milliseconds(1000)}) {
    table_.AddSession(kSession, kToken);
    table_.AddSession(kOther, kOtherToken);
  }

  // Of keys 1 to 4 the first and the third, pinned by one job each.
  LeaseId Add() {
    const std::vector<TransferJob> jobs = {{JobId(7), {}, {Key(1)}, {SlotId(10)}, {}},
                                           {JobId(8), {}, {Key(3)}, {SlotId(30)}, {}}};
    return table_.Add(kSession, Keys(1, 4), jobs, now_);
  }
  std::vector<std::uint64_t> Ended() {
    std::vector<JobResult> results;
    table_.TakeEnded(results);
    std::vector<std::uint64_t> jobs;
    for (const JobResult& result : results) {
      EXPECT_THAT(result.outcomes, ElementsAre(CopyOutcome::kOk));
      jobs.push_back(result.id.value);
    }
    return jobs;
  }

  LeaseTable::TimePoint now_{std::chrono::hours(1)};
  LeaseTable table_;
};

TEST_F(LeaseTableTest, AChunkIsReadByItsIndexInTheQuestion) {
  const LeaseId lease = Add();
  const auto first = table_.BeginRead(kSession, lease, 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->key, Key(1));
  EXPECT_EQ(first->slot, SlotId(10));
  EXPECT_EQ(table_.BeginRead(kSession, lease, 2)->slot, SlotId(30));
  EXPECT_FALSE(table_.BeginRead(kSession, lease, 1)) << "not pinned";
  EXPECT_FALSE(table_.BeginRead(kSession, lease, 4)) << "not asked for";
  EXPECT_FALSE(table_.BeginRead(kOther, lease, 0)) << "somebody else's";
  EXPECT_FALSE(table_.BeginRead(kSession, LeaseId(99), 0));
  EXPECT_EQ(table_.counts().reads, 2u);
}

TEST_F(LeaseTableTest, AReleasedLeaseReportsItsJobsOnce) {
  const LeaseId lease = Add();
  EXPECT_FALSE(table_.Release(kOther, lease));
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_TRUE(table_.Release(kSession, lease));
  EXPECT_THAT(Ended(), ElementsAre(7, 8));
  EXPECT_FALSE(table_.Release(kSession, lease));
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_EQ(table_.counts().leases, 0u);
}

TEST_F(LeaseTableTest, WhatIsReadIsReportedWhenTheLastReadEnds) {
  const LeaseId lease = Add();
  ASSERT_TRUE(table_.BeginRead(kSession, lease, 0));
  ASSERT_TRUE(table_.BeginRead(kSession, lease, 2));
  EXPECT_FALSE(table_.IsRevoked(lease));
  table_.Release(kSession, lease);
  EXPECT_TRUE(table_.IsRevoked(lease));
  EXPECT_FALSE(table_.BeginRead(kSession, lease, 0)) << "no new read of what has ended";
  table_.EndRead(lease);
  EXPECT_THAT(Ended(), IsEmpty());
  table_.EndRead(lease);
  EXPECT_THAT(Ended(), ElementsAre(7, 8));
}

TEST_F(LeaseTableTest, ALeaseThatIsNotRenewedExpires) {
  Add();
  now_ += milliseconds(99);
  EXPECT_EQ(table_.Expire(now_), 0u);
  now_ += milliseconds(1);
  EXPECT_EQ(table_.Expire(now_), 1u);
  EXPECT_THAT(Ended(), ElementsAre(7, 8));
}

TEST_F(LeaseTableTest, ARenewedLeaseLivesOnButNotForEver) {
  const LeaseId lease = Add();
  EXPECT_FALSE(table_.Renew(kOther, lease, now_));
  for (int i = 0; i < 19; ++i) {
    now_ += milliseconds(50);
    EXPECT_TRUE(table_.Renew(kSession, lease, now_));
    EXPECT_EQ(table_.Expire(now_), 0u);
  }
  now_ += milliseconds(50);
  EXPECT_EQ(table_.Expire(now_), 1u) << "its whole life is over";
  EXPECT_FALSE(table_.Renew(kSession, lease, now_));
}

TEST_F(LeaseTableTest, TheEndOfASessionEndsItsLeases) {
  Add();
  table_.RemoveSession(kOther);
  EXPECT_THAT(Ended(), IsEmpty());
  table_.RemoveSession(kSession);
  EXPECT_THAT(Ended(), ElementsAre(7, 8));
  EXPECT_FALSE(table_.IsOpen(kSession));
}

TEST_F(LeaseTableTest, ALinkIsOpenedByItsTokenOneAtATime) {
  EXPECT_FALSE(table_.OpenLink(SessionToken{3}));
  EXPECT_EQ(table_.OpenLink(kToken), kSession);
  EXPECT_FALSE(table_.OpenLink(kToken)) << "it has one";
  Add();
  table_.CloseLink(kSession);
  EXPECT_THAT(Ended(), ElementsAre(7, 8)) << "a dead peer needs nothing any more";
  EXPECT_THAT(table_.TakeLost(), ElementsAre(kSession));
  EXPECT_THAT(table_.TakeLost(), IsEmpty());
  EXPECT_EQ(table_.OpenLink(kToken), kSession);
}

TEST_F(LeaseTableTest, NothingBeginsAfterItIsClosed) {
  const LeaseId lease = Add();
  table_.Close();
  EXPECT_THAT(Ended(), ElementsAre(7, 8));
  EXPECT_FALSE(table_.BeginRead(kSession, lease, 0));
  EXPECT_FALSE(table_.OpenLink(kToken));
  EXPECT_FALSE(table_.IsOpen(kSession));
  Add();
  EXPECT_THAT(Ended(), ElementsAre(7, 8)) << "one that comes too late ends at once";
}

}  // namespace
}  // namespace terrace
