// What every tier must do alike. A new tier adds one line to AllTiers().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "tests/contract/faulty_file_ops.h"
#include "tests/contract/hang.h"
#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/file/file_tier.h"
#include "tier/file/names.h"
#include "tier/memory/memory_tier.h"
#include "tier/plugin/plugin_tier.h"

namespace terrace::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr auto kOk = CopyOutcome::kOk;
constexpr auto kFailed = CopyOutcome::kFailed;

// What a tier under test needs besides itself.
struct World {
  TempDir dir;
  FakeTierHost host{256};
  Hang hang;
  FaultyFileOps ops;
};

struct TierUnderTest {
  std::unique_ptr<SecondaryTier> tier;
  // Damages the stored bytes of a chunk, so that a load must notice. May be empty.
  std::function<void(const ChunkKey&)> damage;
  // Whatever the tier does with a chunk hangs here; and with how many jobs of one chunk at once.
  // Outlives the tier.
  Hang* hang = nullptr;
  std::size_t hanging_jobs = 0;
};

struct TierKind {
  std::string name;
  std::function<TierUnderTest(World& world)> make;
  std::optional<std::uint32_t> chunks_max;  // If it has a bound: made to keep this many.
};

TierUnderTest MakeMemoryTier(World& world) {
  struct Damaged {
    std::mutex mutex;
    std::set<std::uint64_t> hashes;
  };
  auto damaged = std::make_shared<Damaged>();
  // A damaged chunk hashes to something new each time.
  auto checksum = [damaged, &world](std::span<const std::byte> bytes) {
    world.hang.Pass();
    const std::uint64_t hash = Xxh3(bytes);
    const std::lock_guard lock(damaged->mutex);
    return damaged->hashes.contains(hash) ? ~hash : hash;
  };
  const std::uint64_t chunk_bytes = world.host.identity().fields().chunk_bytes;
  auto tier = MemoryTier::Create({.bytes = 64 * chunk_bytes}, world.host, checksum);
  return {std::move(tier).value(),
          [damaged, chunk_bytes](const ChunkKey& key) {
            const std::lock_guard lock(damaged->mutex);
            damaged->hashes.insert(Xxh3(BytesOf(key, chunk_bytes)));
          },
          &world.hang, 1};
}

TierUnderTest MakeFileTier(World& world, bool direct_io) {
  auto tier = FileTier::Create({.root_dir = world.dir.path(),
                                .n_read_threads = 2,
                                .n_write_threads = 2,
                                .direct_io = direct_io},
                               world.host, {.ops = &world.ops, .now = {}});
  const std::string chunks = tier.value()->path() + "/chunks/";
  return {std::move(tier).value(),
          [chunks](const ChunkKey& key) {
            const std::string hex = key.ToHex();
            FlipByte(chunks + hex.substr(0, 2) + "/" + hex + "_g0.chunk", 4096 + 17);
          },
          &world.ops.hang(), 4};
}

TierUnderTest MakeVllmTier(World& world) {
  auto tier = FileTier::Create({.root_dir = world.dir.path(), .layout = "vllm"}, world.host,
                               {.ops = &world.ops, .now = {}});
  const std::string root = tier.value()->path() + "/";
  return {std::move(tier).value(),
          [root](const ChunkKey& key) {
            std::filesystem::resize_file(root + VllmChunkPath(key), 4096);
          },
          &world.ops.hang(), 4};
}

// examples/plugin_tier/.
TierUnderTest MakePluginTier(World& world) {
  auto tier = PluginTier::Create({SHELF_TIER, {R"({"max_chunks": 64})"}}, world.host);
  return {std::move(tier).value(), {}};
}

std::vector<TierKind> AllTiers() {
  return {{"memory", MakeMemoryTier, 64},
          {"file", [](World& world) { return MakeFileTier(world, true); }, std::nullopt},
          {"file_buffered", [](World& world) { return MakeFileTier(world, false); }, std::nullopt},
          {"file_vllm", MakeVllmTier, std::nullopt},
          {"plugin", MakePluginTier, 64}};
}

class TierContract : public ::testing::TestWithParam<TierKind> {
 protected:
  World world_;
  FakeTierHost& host_ = world_.host;
  TierUnderTest made_ = GetParam().make(world_);
  SecondaryTier& tier_ = *made_.tier;
  TierDriver driver_{tier_, host_};
};

INSTANTIATE_TEST_SUITE_P(All, TierContract, ::testing::ValuesIn(AllTiers()),
                         [](const auto& tier) { return tier.param.name; });

TEST_P(TierContract, SaysWhatItIs) {
  EXPECT_FALSE(tier_.type().empty());
  EXPECT_NE(tier_.load_source(), LoadSource::kHost);
}

TEST_P(TierContract, LoadsTheBytesThatWereStored) {
  const auto keys = TestKeys(9);
  const auto stored = driver_.Store(keys, TestSlots(9));
  EXPECT_THAT(stored.outcomes, Each(kOk));
  EXPECT_EQ(stored.bytes, 9u * 5000);
  const auto loaded = driver_.Load(keys, TestSlots(9, 100));
  EXPECT_EQ(loaded.outcomes, std::vector(9, kOk));
  EXPECT_EQ(loaded.bytes, 9u * 5000);
  // In another order, into other slots, one by one.
  for (std::uint32_t i = 9; i-- > 0;) {
    EXPECT_THAT(driver_.Load({keys[i]}, {SlotId(200 + i)}).outcomes, ElementsAre(kOk));
  }
}

TEST_P(TierContract, KnowsWhatItHas) {
  EXPECT_EQ(driver_.Lookup(TestKey(1)), TierLookup::kMiss);
  driver_.Store({TestKey(1)}, {SlotId(0)});
  EXPECT_EQ(driver_.Lookup(TestKey(1)), TierLookup::kHit);
  EXPECT_EQ(driver_.Lookup(TestKey(1)), TierLookup::kHit);
  EXPECT_EQ(driver_.Lookup(TestKey(2)), TierLookup::kMiss);
  EXPECT_EQ(driver_.Lookup(TestKey(1, /*group=*/1)), TierLookup::kMiss);
}

TEST_P(TierContract, KeepsGroupsApart) {
  const std::vector<ChunkKey> keys = {TestKey(1, 0), TestKey(1, 1), TestKey(1, 11)};
  driver_.Store(keys, TestSlots(3));
  EXPECT_THAT(driver_.Load(keys, TestSlots(3, 100)).outcomes, Each(kOk));
}

TEST_P(TierContract, DropsWhatItHasAlready) {
  driver_.Store(TestKeys(3), TestSlots(3));
  const auto again = driver_.Store(TestKeys(4), TestSlots(4));  // Nothing to do for three of them.
  EXPECT_THAT(again.outcomes, ElementsAre(kOk, kOk, kOk, kOk));
  EXPECT_EQ(again.bytes, 5000u);
  EXPECT_EQ(driver_.Store(TestKeys(4), TestSlots(4)).bytes, 0u);
  EXPECT_THAT(driver_.Load(TestKeys(4), TestSlots(4, 100)).outcomes, Each(kOk));
}

TEST_P(TierContract, TheSameKeyTwiceInOneJobIsOneChunk) {
  driver_.Store({TestKey(1), TestKey(1)}, TestSlots(2));
  const auto loaded = driver_.Load({TestKey(1), TestKey(1)}, TestSlots(2, 100));
  EXPECT_THAT(loaded.outcomes, ElementsAre(kOk, kOk));
}

TEST_P(TierContract, ReportsAJobWithoutKeys) {
  EXPECT_TRUE(driver_.Store({}, {}).outcomes.empty());
  EXPECT_TRUE(driver_.Load({}, {}).outcomes.empty());
}

TEST_P(TierContract, ReportsEachChunkOfALoad) {
  driver_.Store(TestKeys(5), TestSlots(5));
  auto keys = TestKeys(5);
  keys[2] = TestKey(77);  // Never stored.
  const auto loaded = driver_.Load(keys, TestSlots(5, 100));
  EXPECT_THAT(loaded.outcomes, ElementsAre(kOk, kOk, kFailed, kOk, kOk));
  EXPECT_EQ(loaded.bytes, 4u * 5000);
}

// And it is gone then: an engine that asks again must not be sent round in circles.
TEST_P(TierContract, ServesNoDamagedChunk) {
  if (!made_.damage) GTEST_SKIP() << "nothing of it can be reached";
  driver_.Store(TestKeys(3), TestSlots(3));
  made_.damage(TestKey(1));
  const auto loaded = driver_.Load(TestKeys(3), TestSlots(3, 100));
  EXPECT_THAT(loaded.outcomes, ElementsAre(kOk, kFailed, kOk));
  EXPECT_EQ(driver_.Lookup(TestKey(0)), TierLookup::kHit);
  EXPECT_EQ(driver_.Lookup(TestKey(1)), TierLookup::kMiss);
}

TEST_P(TierContract, ReportsManyJobsOnceEach) {
  std::vector<JobId> jobs;
  for (std::uint32_t i = 0; i < 50; ++i) {
    jobs.push_back(driver_.SubmitStore({TestKey(i)}, {SlotId(i)}));
  }
  for (const JobId job : jobs) EXPECT_THAT(driver_.Await(job).outcomes, ElementsAre(kOk));
  EXPECT_TRUE(tier_.Drain(kPatience));
  driver_.Poll();  // A second report would fail the test here.
}

TEST_P(TierContract, DrainWaitsForEverything) {
  const JobId store = driver_.SubmitStore(TestKeys(50), TestSlots(50));
  EXPECT_TRUE(tier_.Drain(kPatience));
  driver_.Poll();
  EXPECT_TRUE(driver_.Reported(store));
  EXPECT_TRUE(tier_.Drain(std::chrono::milliseconds::max())) << "idle, and no overflow";
  EXPECT_THAT(driver_.Load(TestKeys(50), TestSlots(50, 100)).outcomes, Each(kOk));
}

TEST_P(TierContract, ShutdownReportsWhatWasQueued) {
  std::vector<JobId> jobs;
  for (std::uint32_t i = 0; i < 60; ++i) {
    jobs.push_back(driver_.SubmitStore({TestKey(i)}, {SlotId(i)}));
    jobs.push_back(driver_.SubmitLoad({TestKey(i)}, {SlotId(100 + i)}));
  }
  EXPECT_TRUE(tier_.Shutdown(kPatience));
  EXPECT_TRUE(tier_.Shutdown(kPatience));
  driver_.Poll();
  for (const JobId job : jobs) EXPECT_TRUE(driver_.Reported(job)) << job.value;
}

TEST_P(TierContract, FailsWhatComesAfterShutdown) {
  driver_.Store({TestKey(1)}, {SlotId(0)});
  EXPECT_TRUE(tier_.Shutdown(kPatience));
  EXPECT_THAT(driver_.Store(TestKeys(2, 5), TestSlots(2)).outcomes, ElementsAre(kFailed, kFailed));
  EXPECT_THAT(driver_.Load({TestKey(1)}, {SlotId(0)}).outcomes, ElementsAre(kFailed));
  EXPECT_TRUE(tier_.Drain(kPatience));
}

// Storage that never answers: calls do not wait for it, nor do Drain() and Shutdown() beyond their
// time. What was queued is given back; what runs keeps its slots until it ends, if it ever does.
TEST_P(TierContract, IsBoundedWhenItsStorageHangs) {
  if (made_.hang == nullptr) GTEST_SKIP() << "nothing of it can be made to hang";
  constexpr std::uint32_t kJobs = 20;
  driver_.Store({TestKey(100)}, {SlotId(100)});
  made_.hang->Begin();
  std::vector<JobId> jobs;
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    jobs.push_back(driver_.SubmitStore({TestKey(i)}, {SlotId(i)}));
  }
  made_.hang->Await(made_.hanging_jobs);
  jobs.push_back(driver_.SubmitLoad({TestKey(100)}, {SlotId(101)}));
  EXPECT_EQ(driver_.Lookup(TestKey(100)), TierLookup::kHit);
  EXPECT_FALSE(tier_.Drain(std::chrono::milliseconds(1)));
  EXPECT_FALSE(tier_.Shutdown(std::chrono::milliseconds(1)));
  driver_.Poll();
  const auto reported =
      std::count_if(jobs.begin(), jobs.end(), [&](JobId job) { return driver_.Reported(job); });
  EXPECT_EQ(static_cast<std::size_t>(reported), jobs.size() - made_.hanging_jobs);
  made_.hang->End();
  EXPECT_TRUE(tier_.Shutdown(kPatience));
  driver_.Poll();
  for (const JobId job : jobs) EXPECT_TRUE(driver_.Reported(job)) << job.value;
}

TEST_P(TierContract, SaysWhenAJobEnded) {
  const auto before = std::chrono::steady_clock::now();
  const JobId job = driver_.SubmitStore({TestKey(1)}, {SlotId(0)});
  EXPECT_TRUE(tier_.Drain(kPatience));
  const auto after = std::chrono::steady_clock::now();
  const auto ended_at = driver_.Await(job).ended_at;
  EXPECT_LE(before, ended_at);
  EXPECT_LE(ended_at, after);
}

TEST_P(TierContract, LookupDuringAStoreIsMissThenHit) {
  const JobId job = driver_.SubmitStore(TestKeys(20), TestSlots(20));
  bool was_hit = false;
  while (!driver_.Reported(job)) {
    const bool hit = driver_.Lookup(TestKey(19)) == TierLookup::kHit;
    EXPECT_TRUE(hit || !was_hit) << "a chunk came and went";
    was_hit = hit;
    driver_.Poll();
  }
  EXPECT_EQ(driver_.Lookup(TestKey(19)), TierLookup::kHit);
}

// The control thread and the engine's thread submit, look up and take results at once. Every job
// has slots of its own, for they are not free before it is reported.
TEST_P(TierContract, TakesCallsFromManyThreads) {
  constexpr std::uint32_t kRounds = 14;
  driver_.Store(TestKeys(4), TestSlots(4));
  std::atomic<std::uint64_t> reported{0};
  auto take = [&] {
    std::vector<JobResult> results;
    tier_.TakeFinished(results);
    reported += results.size();
  };
  auto work = [&](std::uint64_t first_job, std::uint32_t first_slot) {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto keys = TestKeys(4, 100 + 4 * (round % 8));  // The other thread stores them too.
      const auto slots = TestSlots(4, first_slot + 8 * round);
      for (std::size_t i = 0; i < keys.size(); ++i) FillSlot(host_, slots[i], keys[i]);
      tier_.SubmitStore({JobId(first_job + 2 * round), RequestId(1), keys, slots});
      tier_.SubmitLoad({JobId(first_job + 2 * round + 1), RequestId(2), TestKeys(4),
                        TestSlots(4, first_slot + 8 * round + 4)});
      tier_.Lookup(keys[0], {RequestId(1)});
      static_cast<void>(tier_.Counters());
      take();
    }
  };
  std::thread other(work, 1000, 16);
  work(2000, 16 + 8 * kRounds);
  other.join();
  EXPECT_TRUE(tier_.Drain(kPatience));
  take();
  EXPECT_EQ(reported, 4 * kRounds);
  EXPECT_THAT(driver_.Load(TestKeys(32, 100), TestSlots(32)).outcomes, Each(kOk));
}

TEST_P(TierContract, StaysWithinItsCapacity) {
  if (!GetParam().chunks_max) GTEST_SKIP() << "no bound";
  const std::uint32_t bound = *GetParam().chunks_max;
  driver_.Store(TestKeys(bound), TestSlots(bound));
  driver_.Load({TestKey(0)}, {SlotId(0)});  // The oldest becomes the newest.
  driver_.Store(TestKeys(10, 1000), TestSlots(10));
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < bound; ++i) {
    if (driver_.Lookup(TestKey(i)) == TierLookup::kHit) ++kept;
  }
  EXPECT_EQ(kept, bound - 10);
  EXPECT_EQ(driver_.Lookup(TestKey(0)), TierLookup::kHit);
  EXPECT_EQ(driver_.Lookup(TestKey(1)), TierLookup::kMiss);
  EXPECT_THAT(driver_.Load(TestKeys(10, 1000), TestSlots(10)).outcomes, Each(kOk));
}

}  // namespace
}  // namespace terrace::testing
