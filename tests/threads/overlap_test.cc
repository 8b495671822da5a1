#include "tests/threads/overlap.h"

#include <gtest/gtest.h>

namespace terrace::threads {
namespace {

TEST(Overlap, NobodyIsInsideTogetherAndBothProgress) {
  const Overlap::Seen seen = Overlap::Run(Overlap::Steps::kWork, 200);
  EXPECT_EQ(seen.overlaps, 0u);
  EXPECT_GE(seen.steps, 200u);
  EXPECT_GE(seen.rounds, 200u);
}

TEST(Overlap, WhileTheEngineWaitsTheControlThreadDoesNotComeInAgain) {
  const Overlap::Seen seen = Overlap::Run(Overlap::Steps::kWork, 200);
  EXPECT_EQ(seen.overtakes, 0u);
}

}  // namespace
}  // namespace terrace::threads
