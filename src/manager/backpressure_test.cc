#include "manager/backpressure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace terrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kMib = 1 << 20;

// Binary fractions, so that sums are exact: high 1 s/MiB, low 1/4 s/MiB, half of each new sample.
BackpressureOptions Exact() {
  BackpressureOptions options;
  options.high_water_s_per_mib = 1;
  options.low_water_s_per_mib = 0.25;
  options.alpha = 0.5;
  options.failure_threshold = 3;
  return options;
}

class BackpressureTest : public testing::Test {
 protected:
  void Use(const BackpressureOptions& options) {
    backpressure_ = Backpressure::Create(options).value();
  }
  void Store(milliseconds duration_per_mib, int times = 1) {
    for (int i = 0; i < times; ++i) backpressure_.OnStored(duration_per_mib, kMib, now_);
  }
  void Fail(int times) {
    for (int i = 0; i < times; ++i) backpressure_.OnStoreFailed(now_);
  }
  // Warm, then at `ema` of the low water mark or more by one sample (alpha is 1/2).
  void PressAt(milliseconds ema) {
    Store(milliseconds(0), 10);
    Store(2 * ema);
  }
  // One letter for each of `count` cascades asked for now.
  std::string Admit(int count) {
    std::string admitted;
    for (int i = 0; i < count; ++i) admitted += backpressure_.Admit(4, now_) ? 'y' : '.';
    return admitted;
  }
  bool pressed() { return backpressure_.under_pressure(now_); }
  double ema() const { return backpressure_.ema_s_per_mib(); }

  Backpressure backpressure_ = Backpressure::Create(Exact()).value();
  Backpressure::TimePoint now_{seconds(1000)};
};

TEST_F(BackpressureTest, WarmUpSeedsTheMeasureWithItsMeanAndSaysNothing) {
  for (int i = 0; i < 9; ++i) {
    Store(seconds(9));
    EXPECT_EQ(ema(), 0);
  }
  Store(seconds(19));
  EXPECT_DOUBLE_EQ(ema(), 10);
  EXPECT_FALSE(pressed());
  Store(seconds(2));
  EXPECT_DOUBLE_EQ(ema(), 6);
  EXPECT_TRUE(pressed());
}

TEST_F(BackpressureTest, MeasuresSecondsPerMib) {
  for (int i = 0; i < 10; ++i) backpressure_.OnStored(milliseconds(30), 3 * kMib, now_);
  EXPECT_DOUBLE_EQ(ema(), 0.010);
}

TEST_F(BackpressureTest, SamplesWithoutSpeedAreIgnored) {
  for (int i = 0; i < 20; ++i) {
    backpressure_.OnStored(seconds(5), 0, now_);
    backpressure_.OnStored(nanoseconds(-1), kMib, now_);
  }
  Store(milliseconds(500), 9);
  EXPECT_EQ(ema(), 0);
  Store(milliseconds(500));
  EXPECT_DOUBLE_EQ(ema(), 0.5);
}

TEST_F(BackpressureTest, BetweenTheMarksPressureStaysAsItWas) {
  PressAt(milliseconds(500));
  EXPECT_FALSE(pressed());  // From below.
  Store(milliseconds(1500));
  EXPECT_DOUBLE_EQ(ema(), 1);  // At the mark is not above it.
  EXPECT_FALSE(pressed());
  Store(milliseconds(1500));
  EXPECT_TRUE(pressed());
  Store(milliseconds(0));
  EXPECT_DOUBLE_EQ(ema(), 0.625);
  EXPECT_TRUE(pressed());  // From above.
  Store(milliseconds(0), 2);
  EXPECT_FALSE(pressed());
}

TEST_F(BackpressureTest, IdlePressureHalvesUntilItEnds) {
  PressAt(seconds(4));
  now_ += seconds(2);
  EXPECT_TRUE(pressed());
  EXPECT_DOUBLE_EQ(ema(), 2);
  for (int i = 0; i < 4; ++i) {  // However often it is asked.
    now_ += milliseconds(500);
    EXPECT_TRUE(pressed());
  }
  EXPECT_NEAR(ema(), 1, 1e-9);
  now_ += milliseconds(4100);
  EXPECT_FALSE(pressed());
}

TEST_F(BackpressureTest, WithoutPressureNothingDecays) {
  PressAt(milliseconds(500));
  now_ += seconds(100);
  EXPECT_FALSE(pressed());
  EXPECT_DOUBLE_EQ(ema(), 0.5);
}

TEST_F(BackpressureTest, CoolDownLeavesOutEverySecondStoreAndEnds) {
  PressAt(seconds(2));
  Store(milliseconds(0), 4);
  ASSERT_FALSE(pressed());
  EXPECT_EQ(Admit(5), "y.y.y");
  now_ += milliseconds(999);
  EXPECT_EQ(Admit(2), ".y");
  now_ += milliseconds(1);
  EXPECT_EQ(Admit(4), "yyyy");
}

TEST_F(BackpressureTest, CoolDownStartsWithTheStoreThatEndsThePressure) {
  PressAt(seconds(2));
  Store(milliseconds(0), 4);
  now_ += seconds(1);
  EXPECT_EQ(Admit(4), "yyyy");
}

TEST_F(BackpressureTest, EachCoolDownStartsWithAStore) {
  for (int i = 0; i < 2; ++i) {
    PressAt(seconds(2));
    Store(milliseconds(0), 4);
    EXPECT_EQ(Admit(3), "y.y");
  }
}

TEST_F(BackpressureTest, AHealthyStreakEndsTheCoolDown) {
  PressAt(seconds(2));
  Store(milliseconds(0), 4);  // The last of these is the first below the low mark.
  ASSERT_FALSE(pressed());
  Store(milliseconds(0), 8);
  EXPECT_EQ(Admit(4), "y.y.");
  Store(milliseconds(0));
  EXPECT_EQ(Admit(4), "yyyy");
  Store(milliseconds(500));  // Between the marks the streak starts anew.
  ASSERT_GT(ema(), 0.25);
  EXPECT_EQ(Admit(4), "y.y.");
}

TEST_F(BackpressureTest, PressureEndsAHealthyStreak) {
  Store(milliseconds(0), 30);
  Store(seconds(4));
  now_ += seconds(7);
  ASSERT_FALSE(pressed());
  EXPECT_EQ(Admit(4), "y.y.");
}

TEST_F(BackpressureTest, ThrottleLeavesOutNothingAtTheHighMarkAndAllAtThreeTimes) {
  PressAt(seconds(4));
  EXPECT_EQ(Admit(4), "....");
  now_ += seconds(4);
  ASSERT_TRUE(pressed());
  ASSERT_DOUBLE_EQ(ema(), 1);
  EXPECT_EQ(Admit(8), "yyyyyyyy");
  Store(seconds(5));
  ASSERT_DOUBLE_EQ(ema(), 3);
  EXPECT_EQ(Admit(4), "....");
}

TEST_F(BackpressureTest, ThrottleHonoursARateAboveOneHalf) {
  PressAt(milliseconds(2500));  // Rate (2.5 - 1) / 1 / 2 = 0.75.
  EXPECT_EQ(Admit(12), "y...y...y...");
}

TEST_F(BackpressureTest, ThrottleCarriesTheRestOver) {
  PressAt(milliseconds(1250));  // Rate 0.125.
  EXPECT_EQ(Admit(5), "yyyyy");
  EXPECT_EQ(Admit(11), "yy.yyyyyyy.");
}

TEST_F(BackpressureTest, DropLeavesOutEverythingUnderPressure) {
  BackpressureOptions options = Exact();
  options.policy = "drop";
  Use(options);
  PressAt(milliseconds(1250));
  EXPECT_EQ(Admit(4), "....");
  Store(milliseconds(0), 3);
  EXPECT_EQ(Admit(4), "y.y.");
}

TEST_F(BackpressureTest, CountsWhatItLeftOut) {
  PressAt(seconds(4));
  EXPECT_EQ(Admit(3), "...");
  EXPECT_EQ(backpressure_.counters().stores_dropped, 3u);
  EXPECT_EQ(backpressure_.counters().chunks_dropped, 12u);
}

TEST_F(BackpressureTest, FailuresInARowTripAlsoWhileWarmingUp) {
  Fail(2);
  Store(milliseconds(0));
  Fail(2);
  EXPECT_FALSE(pressed());
  Fail(1);
  EXPECT_TRUE(pressed());
  EXPECT_DOUBLE_EQ(ema(), 4);
  EXPECT_EQ(backpressure_.counters().failure_trips, 1u);
}

TEST_F(BackpressureTest, WithoutAThresholdFailuresDoNotCount) {
  BackpressureOptions options = Exact();
  options.failure_threshold.reset();
  Use(options);
  Fail(100);
  EXPECT_FALSE(pressed());
}

TEST_F(BackpressureTest, AfterATripNothingPassesForAWhileAndThenAGrowingPart) {
  Fail(3);
  now_ += milliseconds(830);
  EXPECT_EQ(Admit(20), "....................");
  int admitted_before = 0;
  for (int i = 0; i < 4; ++i) {
    now_ += milliseconds(700);
    const std::string admitted = Admit(100);
    const int count = static_cast<int>(std::count(admitted.begin(), admitted.end(), 'y'));
    EXPECT_GT(count, admitted_before);
    admitted_before = count;
  }
}

TEST_F(BackpressureTest, AFailureBeforeAnySuccessTripsAgainAtOnce) {
  Fail(3);
  now_ += seconds(3);
  ASSERT_NE(Admit(4), "....");
  Fail(1);
  EXPECT_EQ(Admit(4), "....");
  now_ += seconds(3);
  Store(milliseconds(0));
  Fail(2);  // The count has started anew.
  EXPECT_NE(Admit(4), "....");
}

TEST_F(BackpressureTest, WarmUpDoesNotEndATripButTimeDoes) {
  Fail(3);
  Store(milliseconds(0), 10);
  EXPECT_TRUE(pressed());
  EXPECT_DOUBLE_EQ(ema(), 4);
  now_ += seconds(8);
  EXPECT_TRUE(pressed());  // At the low mark is not below it.
  now_ += milliseconds(1);
  EXPECT_FALSE(pressed());
  EXPECT_EQ(Admit(4), "y.y.");
}

TEST_F(BackpressureTest, WarmUpThatEndsAfterATripClearedSeedsWithItsMean) {
  Fail(3);
  now_ += seconds(9);  // Nobody asked meanwhile.
  Store(milliseconds(125), 10);
  EXPECT_DOUBLE_EQ(ema(), 0.125);
  EXPECT_FALSE(pressed());
}

TEST_F(BackpressureTest, ATripEndsTheHealthyStreak) {
  Store(milliseconds(0), 30);
  Fail(3);
  EXPECT_EQ(Admit(4), "....");
  now_ += seconds(9);
  ASSERT_FALSE(pressed());
  EXPECT_EQ(Admit(4), "y.y.");
}

TEST_F(BackpressureTest, ATripDoesNotImproveTheMeasure) {
  PressAt(seconds(10));
  Fail(3);
  EXPECT_DOUBLE_EQ(ema(), 10);
}

TEST_F(BackpressureTest, OffLetsEverythingInAndMeasuresNothing) {
  Use(BackpressureOptions::Off());
  Fail(100);
  PressAt(seconds(100));
  EXPECT_EQ(Admit(4), "yyyy");
  EXPECT_EQ(ema(), 0);
}

TEST_F(BackpressureTest, ResetForgetsAllButTheCounters) {
  PressAt(milliseconds(2500));
  EXPECT_EQ(Admit(3), "y..");
  Fail(2);
  backpressure_.Reset();
  EXPECT_EQ(ema(), 0);
  EXPECT_FALSE(pressed());
  EXPECT_EQ(backpressure_.counters().stores_dropped, 2u);
  EXPECT_EQ(Admit(2), "yy");
  Fail(1);
  EXPECT_FALSE(pressed());
  Store(milliseconds(0), 9);  // It warms up again.
  Store(seconds(100));
  EXPECT_FALSE(pressed());
  backpressure_.Reset();
  PressAt(milliseconds(2500));
  EXPECT_EQ(Admit(4), "y...");  // What was carried over is gone.
}

TEST(BackpressureOptionsTest, PresetsAreValid) {
  for (const auto& options : {BackpressureOptions::LocalDisk(), BackpressureOptions::Network(),
                              BackpressureOptions::Off(), Exact()}) {
    EXPECT_TRUE(Validate(options).empty());
  }
  EXPECT_LT(BackpressureOptions::LocalDisk().high_water_s_per_mib,
            BackpressureOptions::Network().high_water_s_per_mib);
}

TEST(BackpressureOptionsTest, ReportsEveryFaultAtOnce) {
  BackpressureOptions options;  // Has no high water mark.
  options.low_water_s_per_mib = -1;
  options.alpha = 1.5;
  options.warmup_stores = 0;
  options.healthy_streak = 0;
  options.decay_half_life = milliseconds(0);
  options.cooldown = milliseconds(-1);
  options.failure_threshold = 0;
  options.policy = "thottle";
  options.throttle_ramp = 0;
  std::vector<std::string_view> names;
  for (const BackpressureFault& fault : Validate(options)) names.push_back(fault.option);
  EXPECT_THAT(names, ElementsAre("high_water_s_per_mib", "low_water_s_per_mib", "alpha",
                                 "warmup_stores", "healthy_streak", "decay_half_life", "cooldown",
                                 "failure_threshold", "policy", "throttle_ramp"));
  const auto made = Backpressure::Create(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("alpha must be above 0 and at most 1, is 1.5; "));
  EXPECT_THAT(made.error().message, HasSubstr("\"off\", is \"thottle\""));
}

TEST(BackpressureOptionsTest, RefusesWhatIsNoNumber) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 0.0}) {
    for (double BackpressureOptions::*field :
         {&BackpressureOptions::high_water_s_per_mib, &BackpressureOptions::low_water_s_per_mib,
          &BackpressureOptions::alpha, &BackpressureOptions::throttle_ramp}) {
      BackpressureOptions options = Exact();
      options.*field = bad;
      EXPECT_EQ(Validate(options).size(), 1u) << bad;
    }
  }
}

TEST(BackpressureOptionsTest, TheLowMarkIsNotAboveTheHighOne) {
  BackpressureOptions options = Exact();
  options.low_water_s_per_mib = 1;
  EXPECT_TRUE(Validate(options).empty());
  options.low_water_s_per_mib = 1.5;
  ASSERT_EQ(Validate(options).size(), 1u);
  EXPECT_EQ(Validate(options)[0].what, "must be above 0 and at most high_water_s_per_mib, is 1.5");
}

}  // namespace
}  // namespace terrace
