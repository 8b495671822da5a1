#include "manager/circuit_breaker.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = CircuitBreaker::State;
using Work = CircuitBreaker::Work;

class CircuitBreakerTest : public testing::Test {
 protected:
  CircuitBreaker::Permit MustClaim(Work work) {
    const auto permit = breaker_.Claim(work, now_);
    EXPECT_TRUE(permit.has_value());
    return permit.value_or(CircuitBreaker::Permit{work, 0});
  }
  void Fail(Work work) { breaker_.OnFailure(MustClaim(work), now_); }
  void Succeed(Work work) { breaker_.OnSuccess(MustClaim(work), now_); }
  void OpenBy(Work work) {
    for (int i = 0; i < 3; ++i) Fail(work);
    ASSERT_EQ(state(), State::kOpen);
  }
  State state() const { return breaker_.state(now_); }
  bool Allows(Work work) const { return breaker_.Allows(work, now_); }

  CircuitBreaker breaker_{{}};
  CircuitBreaker::TimePoint now_{seconds(1000)};
};

TEST_F(CircuitBreakerTest, OpensAtTheThresholdAndNotBefore) {
  Fail(Work::kJob);
  Fail(Work::kJob);
  EXPECT_EQ(state(), State::kClosed);
  Fail(Work::kJob);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(breaker_.counters().opened_total, 1u);
  EXPECT_FALSE(breaker_.Claim(Work::kJob, now_));
  EXPECT_FALSE(breaker_.Claim(Work::kLookup, now_));
  EXPECT_FALSE(breaker_.Claim(Work::kLookup, now_));
  EXPECT_EQ(breaker_.counters().rejected_total, (std::array<std::uint64_t, 3>{2, 1, 0}));
}

TEST_F(CircuitBreakerTest, ASuccessInBetweenStartsTheCountAnew) {
  for (int i = 0; i < 5; ++i) {
    Fail(Work::kJob);
    Fail(Work::kJob);
    Succeed(Work::kJob);
  }
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, LookupsFromAnIndexDoNotHideJobsThatFail) {
  for (int i = 0; i < 3; ++i) {
    Succeed(Work::kLookup);
    Succeed(Work::kPoll);
    Fail(Work::kJob);
  }
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CircuitBreakerTest, HalfOpensAfterTheBackoffAndNotBefore) {
  OpenBy(Work::kJob);
  now_ += milliseconds(999);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_FALSE(Allows(Work::kJob));
  now_ += milliseconds(1);
  EXPECT_EQ(state(), State::kHalfOpen);
  EXPECT_TRUE(Allows(Work::kJob));
}

TEST_F(CircuitBreakerTest, HalfOpenLetsOneProbeThroughAndAskingClaimsNothing) {
  OpenBy(Work::kJob);
  now_ += seconds(1);
  EXPECT_TRUE(Allows(Work::kJob));
  EXPECT_TRUE(Allows(Work::kJob));
  const auto probe = MustClaim(Work::kJob);
  EXPECT_EQ(state(), State::kHalfOpen);
  EXPECT_FALSE(Allows(Work::kJob));
  EXPECT_FALSE(breaker_.Claim(Work::kJob, now_));
  breaker_.OnSuccess(probe, now_);
  EXPECT_EQ(state(), State::kClosed);
  EXPECT_TRUE(Allows(Work::kJob));
}

TEST_F(CircuitBreakerTest, BackoffDoublesUpToItsMaximumAndSuccessResetsIt) {
  OpenBy(Work::kJob);
  for (const int backoff_s : {1, 2, 4, 8, 16, 32, 60, 60}) {
    now_ += seconds(backoff_s) - milliseconds(1);
    EXPECT_EQ(state(), State::kOpen) << backoff_s;
    now_ += milliseconds(1);
    ASSERT_EQ(state(), State::kHalfOpen) << backoff_s;
    Fail(Work::kJob);
    EXPECT_EQ(state(), State::kOpen);
  }
  now_ += seconds(60);
  Succeed(Work::kJob);
  OpenBy(Work::kJob);
  now_ += seconds(1);
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, AProbeThatNeverReportsFailsWhenTheBackoffHasPassed) {
  OpenBy(Work::kJob);
  now_ += seconds(1);
  const auto lost = MustClaim(Work::kJob);
  now_ += milliseconds(999);
  EXPECT_EQ(state(), State::kHalfOpen);
  EXPECT_FALSE(Allows(Work::kJob));
  now_ += milliseconds(1);  // Its deadline: open for two seconds from here.
  EXPECT_EQ(state(), State::kOpen);
  now_ += milliseconds(1999);
  EXPECT_EQ(state(), State::kOpen);
  now_ += milliseconds(1);
  EXPECT_EQ(state(), State::kHalfOpen);
  breaker_.OnSuccess(lost, now_);  // Too late to prove anything.
  EXPECT_EQ(state(), State::kHalfOpen);
  EXPECT_EQ(breaker_.counters().opened_total, 2u);
  Succeed(Work::kJob);
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, ResultsOfJobsFromBeforeItOpenedChangeNothing) {
  const auto old_success = MustClaim(Work::kJob);
  const auto old_failure = MustClaim(Work::kJob);
  OpenBy(Work::kJob);
  breaker_.OnSuccess(old_success, now_);
  EXPECT_EQ(state(), State::kOpen);
  now_ += seconds(1);
  const auto probe = MustClaim(Work::kJob);
  breaker_.OnFailure(old_failure, now_);
  EXPECT_EQ(state(), State::kHalfOpen);
  breaker_.OnSuccess(probe, now_);
  EXPECT_EQ(state(), State::kClosed);
  for (int i = 0; i < 3; ++i) breaker_.OnFailure(old_failure, now_);
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, HalfOpenByJobsLetsLookupsFindTheProbe) {
  OpenBy(Work::kJob);
  EXPECT_FALSE(Allows(Work::kLookup));
  EXPECT_TRUE(Allows(Work::kPoll));  // Jobs under way must end.
  now_ += seconds(1);
  Succeed(Work::kLookup);
  Succeed(Work::kPoll);
  EXPECT_EQ(state(), State::kHalfOpen);  // Neither says that jobs work again.
  const auto probe = MustClaim(Work::kJob);
  EXPECT_FALSE(Allows(Work::kLookup));
  EXPECT_TRUE(Allows(Work::kPoll));
  breaker_.OnSuccess(probe, now_);
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, HalfOpenByLookupsProbesWithALookup) {
  OpenBy(Work::kLookup);
  EXPECT_FALSE(Allows(Work::kLookup));
  EXPECT_FALSE(Allows(Work::kJob));
  EXPECT_TRUE(Allows(Work::kPoll));
  now_ += seconds(1);
  EXPECT_FALSE(Allows(Work::kJob));
  Succeed(Work::kLookup);
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, HalfOpenByPollsProbesWithAPoll) {
  OpenBy(Work::kPoll);
  EXPECT_FALSE(Allows(Work::kPoll));
  EXPECT_FALSE(Allows(Work::kLookup));
  now_ += seconds(1);
  EXPECT_FALSE(Allows(Work::kLookup));
  EXPECT_FALSE(Allows(Work::kJob));
  Succeed(Work::kPoll);
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, PollsThatFailWhileItIsOpenByJobsTakeOver) {
  OpenBy(Work::kJob);
  for (int i = 0; i < 3; ++i) Fail(Work::kPoll);
  EXPECT_FALSE(Allows(Work::kPoll));
  now_ += milliseconds(1999);
  EXPECT_EQ(state(), State::kOpen);
  now_ += milliseconds(1);
  EXPECT_FALSE(Allows(Work::kJob));
  Succeed(Work::kPoll);
  EXPECT_EQ(state(), State::kClosed);
}

// Asking and claiming agree, and no state lasts for ever, in whatever order things happen.
TEST_F(CircuitBreakerTest, AllowsSaysWhatClaimDoes) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    CircuitBreaker breaker({});
    std::vector<CircuitBreaker::Permit> out;
    for (int step = 0; step < 500; ++step) {
      now_ += milliseconds(random() % 1500);
      const auto work = static_cast<Work>(random() % CircuitBreaker::kWorkCount);
      const bool allowed = breaker.Allows(work, now_);
      const State before = breaker.state(now_);
      const auto permit = breaker.Claim(work, now_);
      ASSERT_EQ(permit.has_value(), allowed);
      ASSERT_EQ(breaker.state(now_), before);
      if (permit) out.push_back(*permit);
      if (out.empty() || random() % 3 == 0) continue;
      const std::size_t index = random() % out.size();
      random() % 4 == 0 ? breaker.OnSuccess(out[index], now_) : breaker.OnFailure(out[index], now_);
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(index));
    }
    // A probe that is out is overdue within 60 s and the back-off after it ends within 60 s more.
    now_ += seconds(120);
    ASSERT_NE(breaker.state(now_), State::kOpen);
    ASSERT_TRUE(breaker.Allows(Work::kJob, now_) || breaker.Allows(Work::kLookup, now_) ||
                breaker.Allows(Work::kPoll, now_));
  }
}

}  // namespace
}  // namespace terrace
