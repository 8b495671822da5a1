// What only this tier does; what every tier does is in tests/contract/tier_contract_test.cc.
#include "tier/memory/memory_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/hash.h"
#include "tests/contract/tier_driver.h"

namespace terrace::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint64_t kChunkBytes = 5000;

TEST(MemoryTier, RefusesABoundBelowOneChunk) {
  FakeTierHost host(1);
  const auto made = MemoryTier::Create({.bytes = kChunkBytes - 1}, host);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("bytes is 4999, one chunk takes 5000"));
  EXPECT_TRUE(MemoryTier::Create({.bytes = kChunkBytes}, host).ok());
}

TEST(MemoryTier, CountsWhatItDoes) {
  FakeTierHost host(8);
  const auto tier = MemoryTier::Create({.bytes = 2 * kChunkBytes}, host).value();
  TierDriver driver(*tier, host);
  driver.Store(TestKeys(3), TestSlots(3));
  driver.Load(TestKeys(3), TestSlots(3));  // The first has made room for the third.
  EXPECT_EQ(driver.Counter("terrace_memory_stored_chunks_total"), 3u);
  EXPECT_EQ(driver.Counter("terrace_memory_loaded_chunks_total"), 2u);
  EXPECT_EQ(driver.Counter("terrace_memory_evicted_chunks_total"), 1u);
  EXPECT_EQ(driver.Counter("terrace_memory_missing_chunks_total"), 1u);
  EXPECT_EQ(driver.Counter("terrace_memory_corrupt_chunks_total"), 0u);
}

// While a copy runs: calls do not wait for it, Drain() does, and Shutdown() cancels what is behind.
TEST(MemoryTier, ALongCopyBlocksNobodyButDrainAndShutdown) {
  std::promise<void> entered;
  std::promise<void> go_on;
  std::atomic<int> copies{0};
  auto slow = [&](std::span<const std::byte> bytes) {
    if (copies++ == 0) {
      entered.set_value();
      go_on.get_future().wait();
    }
    return Xxh3(bytes);
  };
  FakeTierHost host(8);
  const auto tier = MemoryTier::Create({.bytes = 8 * kChunkBytes}, host, slow).value();
  TierDriver driver(*tier, host);
  const JobId running = driver.SubmitStore({TestKey(0)}, {SlotId(0)});
  entered.get_future().wait();
  const JobId queued = driver.SubmitStore({TestKey(1)}, {SlotId(1)});
  EXPECT_EQ(driver.Lookup(TestKey(0)), TierLookup::kMiss);
  driver.Poll();
  EXPECT_FALSE(driver.Reported(running));
  EXPECT_FALSE(tier->Drain(std::chrono::milliseconds(0)));
  std::thread shutdown([&] { EXPECT_TRUE(tier->Shutdown(kPatience)); });
  EXPECT_THAT(driver.Await(queued).outcomes, Each(CopyOutcome::kFailed));
  EXPECT_FALSE(driver.Reported(running));
  go_on.set_value();
  EXPECT_THAT(driver.Await(running).outcomes, Each(CopyOutcome::kOk));
  shutdown.join();
}

}  // namespace
}  // namespace terrace::testing
