#include "tier/file/hung_operations.h"

#include <gtest/gtest.h>

#include <optional>

namespace terrace {
namespace {

using namespace std::chrono_literals;

class HungOperationsTest : public ::testing::Test {
 protected:
  void ExpectSeen(std::uint64_t now, std::uint64_t total) {
    const auto seen = operations_.Look();
    EXPECT_EQ(seen.now, now);
    EXPECT_EQ(seen.total, total);
  }

  std::chrono::steady_clock::time_point now_{1h};
  HungOperations operations_{{.what = "test", .after = 30s}, [this] { return now_; }};
};

TEST_F(HungOperationsTest, CountsEachOnceFromTheBoundOn) {
  std::optional<HungOperations::Scope> first(operations_);
  now_ += 1s;
  std::optional<HungOperations::Scope> second(operations_);
  now_ += 29s - 1ns;
  ExpectSeen(0, 0);
  now_ += 1ns;
  ExpectSeen(1, 1);
  ExpectSeen(1, 1);
  now_ += 1s;
  ExpectSeen(2, 2);
  first.reset();
  ExpectSeen(1, 2);
  second.reset();
  ExpectSeen(0, 2);
}

TEST_F(HungOperationsTest, CountsWhatHungWhileNobodyLooked) {
  {
    const HungOperations::Scope slow(operations_);
    now_ += 30s;
  }
  {
    const HungOperations::Scope fast(operations_);
    now_ += 1s;
  }
  ExpectSeen(0, 1);
}

}  // namespace
}  // namespace terrace
