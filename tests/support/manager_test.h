// A manager with fake tiers and a clock that stands still, for unit tests of it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/host_tier.h"
#include "manager/tiering_manager.h"
#include "terrace/eviction_policy.h"
#include "tests/support/fake_tier.h"
#include "tests/support/keys.h"

namespace terrace::testing_support {

inline const Request kA{RequestId(1)};
inline const Request kB{RequestId(2)};

class ManagerTest : public testing::Test {
 protected:
  // Before what its tiers call back into, in the tests' own classes.
  void TearDown() override { manager_.reset(); }

  // `configure` sees each tier before the manager does.
  void Make(std::uint32_t slots, int tier_count,
            const std::function<void(int, FakeTier&)>& configure = {}) {
    std::vector<std::unique_ptr<SecondaryTier>> made;
    for (int i = 0; i < tier_count; ++i) {
      auto tier = std::make_unique<FakeTier>(std::to_string(i), &log_);
      if (configure) configure(i, *tier);
      tiers_.push_back(tier.get());
      made.push_back(std::move(tier));
    }
    Make(slots, std::move(made));
  }
  void Make(std::uint32_t slots, std::vector<std::unique_ptr<SecondaryTier>> tiers) {
    options_.now = [this] { return now_; };
    manager_ = std::make_unique<TieringManager>(
        std::make_unique<HostTier>(slots, MakeEvictionPolicy("lru", slots).value(),
                                   EventRecording::kOn),
        std::move(tiers), options_);
  }

  void Begin(const Request& request) {
    ManagerRegion region(*manager_);
    manager_->OnNewRequest(request);
  }
  void Finish(const Request& request) {
    ManagerRegion region(*manager_);
    manager_->OnRequestFinished(request);
  }
  LookupResult Lookup(const ChunkKey& key, const Request& request) {
    ManagerRegion region(*manager_);
    return manager_->Lookup(key, request);
  }
  void EndStep() {
    ManagerRegion region(*manager_);
    manager_->OnScheduleEnd();
  }
  // Of what finds room.
  StorePlan Prepare(const std::vector<ChunkKey>& keys, const Request& request) {
    ManagerRegion region(*manager_);
    StorePlan plan;
    EXPECT_EQ(manager_->PrepareStore(keys, request, plan), StoreOutcome::kPlanned);
    return plan;
  }
  void Complete(const StorePlan& plan, const Request& request, CopyOutcome outcome) {
    ManagerRegion region(*manager_);
    manager_->CompleteStore(plan.slots, request, outcome);
  }
  // False if there is no room.
  bool Store(const std::vector<ChunkKey>& keys, const Request& request) {
    ManagerRegion region(*manager_);
    StorePlan plan;
    if (manager_->PrepareStore(keys, request, plan) == StoreOutcome::kNoRoom) return false;
    if (!plan.keys.empty()) manager_->CompleteStore(plan.slots, request, CopyOutcome::kOk);
    return true;
  }
  ManagerStats Stats() {
    ManagerRegion region(*manager_);
    return manager_->Stats();
  }
  std::vector<CacheEvent> Events() {
    ManagerRegion region(*manager_);
    return manager_->TakeEvents();
  }
  bool Pending() {
    ManagerRegion region(*manager_);
    return manager_->HasPendingWork();
  }
  TieringManager::RoundReport Round() {
    ManagerRegion region(*manager_, Lane::kControl, "a round");
    return manager_->ServeRound();
  }

  TieringOptions options_{.promotion_timeout = std::chrono::seconds(1),
                          .lookup_timeout = std::chrono::seconds(3)};
  std::chrono::steady_clock::time_point now_{std::chrono::hours(1)};
  std::vector<std::string> log_;
  std::vector<FakeTier*> tiers_;
  std::unique_ptr<TieringManager> manager_;
};

}  // namespace terrace::testing_support
