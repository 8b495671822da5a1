// Everything at once, with real threads and real bytes: a scheduler, a memory tier with a thread of
// its own, the control thread that serves a peer, and somebody who reads the numbers. Under TSan a
// slot that is used by two at a time is a race on its bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "manager/tiering_manager.h"
#include "terrace/eviction_policy.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/support/fake_tier.h"
#include "tests/support/keys.h"
#include "tier/memory/memory_tier.h"

namespace terrace::threads {
namespace {

using testing_support::FakeTier;
using testing_support::Key;
using testing_support::Keys;

constexpr std::uint32_t kSlots = 24;
constexpr std::uint64_t kKeys = 60;
constexpr std::uint64_t kPrefix = 4;

std::byte Pattern(const ChunkKey& key) { return static_cast<std::byte>(key.hash()[0] + 1); }

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    auto memory = MemoryTier::Create({.bytes = kKeys / 2 * kChunkBytes}, region_);
    auto peer = std::make_unique<FakeTier>();
    peer->source = LoadSource::kPeer;
    peer->serve = [this](TierServer& server) { Serve(server); };
    peer_ = peer.get();
    std::vector<std::unique_ptr<SecondaryTier>> tiers;
    tiers.push_back(std::move(memory).value());
    tiers.push_back(std::move(peer));
    TieringOptions options;
    options.poll_interval = std::chrono::microseconds(50);
    options.chunk_bytes = kChunkBytes;
    manager_ = std::make_unique<TieringManager>(
        std::make_unique<HostTier>(kSlots, MakeEvictionPolicy("lru", kSlots).value(),
                                   EventRecording::kOn),
        std::move(tiers), options);
  }

  bool Holds(SlotId slot, const ChunkKey& key) {
    const auto bytes = region_.Slot(slot);
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == Pattern(key); });
  }

  // A peer asks for a prefix; what it was given last time it has read meanwhile.
  void Serve(TierServer& server) {
    for (const TransferJob& job : std::exchange(serving_, {})) {
      for (std::size_t i = 0; i < job.keys.size(); ++i) {
        if (!Holds(job.slots[i], job.keys[i])) wrong_.fetch_add(1);
      }
      peer_->finished.push_back(
          {job.id, std::vector(job.keys.size(), CopyOutcome::kOk), 1, {}, {}});
      served_.fetch_add(job.keys.size());
    }
    while (!peer_->stores.empty()) peer_->FinishStore({CopyOutcome::kFailed});
    const Request request = server.BeginRequest();
    std::vector<ChunkKey> hits;
    for (const ChunkKey& key : Keys(served_random_() % kKeys, kPrefix)) {
      if (server.Lookup(key, request) != LookupResult::kHit) break;
      hits.push_back(key);
    }
    if (auto job = server.CreateStoreJob(hits, request)) serving_.push_back(std::move(*job));
    server.FinishRequest(request);
  }

  // One step, and the model's run after it.
  void Step(std::uint64_t n) {
    const Request request{RequestId(n + 1)};
    const std::vector<ChunkKey> keys = Keys(random_() % kKeys, kPrefix);
    std::vector<SlotId> loaded;
    StorePlan plan;
    {
      ManagerRegion region(*manager_);
      manager_->OnNewRequest(request);
      std::size_t hits = 0;
      while (hits < keys.size() && manager_->Lookup(keys[hits], request) == LookupResult::kHit) {
        ++hits;
      }
      loaded.resize(hits);
      if (!manager_->PrepareLoad(std::span(keys).first(hits), request, loaded)) wrong_.fetch_add(1);
      if (manager_->PrepareStore(keys, request, plan) == StoreOutcome::kNoRoom) plan = {};
      manager_->OnScheduleEnd();
    }
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      if (!Holds(loaded[i], keys[i])) wrong_.fetch_add(1);
    }
    for (std::size_t i = 0; i < plan.keys.size(); ++i) {
      const auto bytes = region_.Slot(plan.slots[i]);
      std::fill(bytes.begin(), bytes.end(), Pattern(plan.keys[i]));
    }
    ManagerRegion region(*manager_);
    if (n % 50 == 49) manager_->ResetCache();
    if (!loaded.empty()) manager_->CompleteLoad(loaded, request);
    if (!plan.slots.empty()) manager_->CompleteStore(plan.slots, request, CopyOutcome::kOk);
    manager_->OnRequestFinished(request);
  }

  static constexpr std::uint64_t kChunkBytes = 5000;
  terrace::testing::FakeTierHost region_{kSlots, kChunkBytes};
  FakeTier* peer_ = nullptr;
  std::vector<TransferJob> serving_;  // Under the manager's lock, as the peer is.
  std::mt19937 random_{1}, served_random_{2};
  std::atomic<std::uint64_t> wrong_{0}, served_{0};
  std::unique_ptr<TieringManager> manager_;  // Ends before what its tiers use.
};

TEST_F(LoadTest, NoChunkIsEverWrongAndShutdownUnderLoadEnds) {
  ASSERT_TRUE(manager_->StartControlThread().ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      {
        ManagerRegion region(*manager_, Lane::kControl, "metrics");
        (void)manager_->Stats();
        (void)manager_->TakeEvents();
      }
      std::this_thread::yield();
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::uint64_t steps = 0;
  while ((steps < 2'000 || served_ < 200) && std::chrono::steady_clock::now() < deadline) {
    Step(steps++);
  }
  stop = true;
  reader.join();
  manager_->Shutdown();  // The control thread and the tiers are at work.
  EXPECT_EQ(wrong_, 0u);
  EXPECT_GE(served_, 200u);
  EXPECT_FALSE(manager_->tiers_still_run());
  ManagerRegion region(*manager_);
  const ManagerStats stats = manager_->Stats();
  EXPECT_GT(stats.tiers[0].promotion.chunks, 0u);
  EXPECT_EQ(stats.writing_chunks, 0u);
  EXPECT_EQ(stats.tiers[0].promotion.jobs_in_flight + stats.tiers[0].cascade.jobs_in_flight, 0u);
}

// Drain() runs without the lock, the control thread with it; both meet faults of one tier.
TEST_F(LoadTest, ADrainThatThrowsBesideTheControlThreadIsNoRace) {
  peer_->throws = {"Drain"};
  ASSERT_TRUE(manager_->StartControlThread().ok());
  for (int i = 0; i < 20; ++i) {
    Step(static_cast<std::uint64_t>(i));
    manager_->Drain(std::chrono::milliseconds(1));
  }
  manager_->Shutdown();
  EXPECT_EQ(wrong_, 0u);
}

}  // namespace
}  // namespace terrace::threads
