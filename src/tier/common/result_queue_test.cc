#include "tier/common/result_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace terrace {
namespace {

TEST(ResultQueue, HandsOutEachResultOnceAndInOrder) {
  ResultQueue queue;
  std::vector<JobResult> taken;
  queue.Take(taken);
  EXPECT_TRUE(taken.empty());
  for (std::uint64_t id = 1; id <= 3; ++id) queue.Push({JobId(id), {CopyOutcome::kOk}, id});
  taken.push_back({JobId(99), {}, 0});  // Appends.
  queue.Take(taken);
  queue.Take(taken);
  ASSERT_EQ(taken.size(), 4u);
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(taken[id].id, JobId(id));
}

TEST(ResultQueue, StampsWhatHasNoTime) {
  ResultQueue queue;
  std::vector<JobResult> taken;
  const auto before = std::chrono::steady_clock::now();
  const auto earlier = before - std::chrono::hours(1);
  queue.Push({JobId(1), {}, 0, {}});
  queue.Push({.id = JobId(2), .outcomes = {}, .bytes = 0, .started_at = {}, .ended_at = earlier});
  const auto after = std::chrono::steady_clock::now();
  queue.Take(taken);
  EXPECT_LE(before, taken.at(0).ended_at);
  EXPECT_LE(taken.at(0).ended_at, after);
  EXPECT_EQ(taken.at(1).ended_at, earlier);
}

TEST(ResultQueue, LosesNothingBetweenThreads) {
  constexpr std::uint64_t kCount = 2000;
  ResultQueue queue;
  std::thread pusher([&] {
    for (std::uint64_t id = 0; id < kCount; ++id) queue.Push({JobId(id), {}, 0});
  });
  std::vector<JobResult> taken;
  while (taken.size() < kCount) queue.Take(taken);
  pusher.join();
  for (std::uint64_t id = 0; id < kCount; ++id) EXPECT_EQ(taken[id].id, JobId(id));
}

}  // namespace
}  // namespace terrace
