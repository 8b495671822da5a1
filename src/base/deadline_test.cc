#include "base/deadline.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(DeadlineIn, DoesNotOverflow) {
  const auto tomorrow = std::chrono::steady_clock::now() + std::chrono::hours(24);
  EXPECT_GT(DeadlineIn(std::chrono::milliseconds::max()), tomorrow);
  EXPECT_GT(DeadlineIn(std::chrono::nanoseconds::max()), tomorrow);
}

}  // namespace
}  // namespace terrace
