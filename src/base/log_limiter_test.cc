#include "base/log_limiter.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(LogLimiter, AdmitsTheFirstAndThenOneEachPeriodWithTheCountBetween) {
  LogLimiter limiter;
  const std::chrono::steady_clock::time_point start(std::chrono::hours(5));
  EXPECT_EQ(limiter.Admit(start), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.Admit(start), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + LogLimiter::kPeriod - std::chrono::nanoseconds(1)), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + LogLimiter::kPeriod), 4u);
  EXPECT_EQ(limiter.Admit(start + LogLimiter::kPeriod), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + 3 * LogLimiter::kPeriod), 1u);
}

TEST(HeldBackNote, IsEmptyForNone) {
  EXPECT_EQ(HeldBackNote(0), "");
  EXPECT_EQ(HeldBackNote(3), " (3 more such since the last line)");
}

}  // namespace
}  // namespace terrace
