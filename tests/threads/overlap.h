// A scheduler thread that holds the manager over whole steps, and the control thread that serves
// between them, both watched: who is inside, and who comes in while the engine waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "manager/tiering_manager.h"
#include "terrace/eviction_policy.h"
#include "tests/support/fake_tier.h"
#include "tests/support/keys.h"

namespace terrace::threads {

class Overlap {
 public:
  struct Seen {
    std::uint64_t overlaps = 0;  // Times one came in while the other was inside.
    // Times the control thread came in although the engine had been waiting since before it was in
    // the last time.
    std::uint64_t overtakes = 0;
    std::uint64_t steps = 0, rounds = 0;
  };

  enum class Steps : std::uint8_t {
    kWork,   // The scheduler calls the manager.
    kEmpty,  // It only holds it: without a lock the manager would break before anybody counted.
  };

  // Runs until either side has been inside `sections` times; at most a minute.
  static Seen Run(Steps steps, std::uint64_t sections) {
    Overlap overlap(steps);
    return overlap.RunBoth(sections);
  }

 private:
  static constexpr std::chrono::microseconds kInside{20};

  explicit Overlap(Steps steps) : steps_(steps) {
    auto tier = std::make_unique<testing_support::FakeTier>();
    tier->serve = [this](TierServer& server) { Serve(server); };
    std::vector<std::unique_ptr<SecondaryTier>> tiers;
    tiers.push_back(std::move(tier));
    TieringOptions options;
    options.poll_interval = std::chrono::nanoseconds(1);
    manager_ = std::make_unique<TieringManager>(
        std::make_unique<HostTier>(16, MakeEvictionPolicy("lru", 16).value(), EventRecording::kOff),
        std::move(tiers), options);
  }

  // Busy, as a critical section is.
  void StayInside() {
    if (inside_.fetch_add(1) != 0) overlaps_.fetch_add(1);
    const auto until = std::chrono::steady_clock::now() + kInside;
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    inside_.fetch_sub(1);
  }

  // Under the lock, in the control thread.
  void Serve(TierServer& server) {
    const std::uint64_t wait = engine_wait_.load();
    const bool waits = server.ShouldYield();
    if (waits && last_wait_seen_ == wait) overtakes_.fetch_add(1);
    if (waits) last_wait_seen_ = wait;
    StayInside();
    if (steps_ == Steps::kWork) {
      const Request request = server.BeginRequest();
      server.Lookup(testing_support::Key(rounds_ % 40), request);
      server.FinishRequest(request);
    }
    rounds_.fetch_add(1);
  }

  void Step(std::uint64_t n) {
    engine_wait_.fetch_add(1);
    ManagerRegion region(*manager_);
    engine_wait_.fetch_add(1);
    StayInside();
    if (steps_ == Steps::kEmpty) return;
    const Request request{RequestId(n + 1)};
    const ChunkKey key = testing_support::Key(n % 40);
    manager_->OnNewRequest(request);
    SlotId slot;
    if (manager_->Lookup(key, request) == LookupResult::kHit) {
      if (manager_->PrepareLoad({&key, 1}, request, {&slot, 1})) {
        manager_->CompleteLoad({&slot, 1}, request);
      }
    }
    StorePlan plan;
    if (manager_->PrepareStore({&key, 1}, request, plan) == StoreOutcome::kPlanned &&
        !plan.slots.empty()) {
      manager_->CompleteStore(plan.slots, request, CopyOutcome::kOk);
    }
    manager_->OnRequestFinished(request);
    StayInside();
  }

  Seen RunBoth(std::uint64_t sections) {
    if (!manager_->StartControlThread()) return {};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::uint64_t steps = 0;
    while ((steps < sections || rounds_ < sections) &&
           std::chrono::steady_clock::now() < deadline) {
      Step(steps++);
      std::this_thread::yield();  // The model runs.
    }
    manager_->Shutdown();
    return {overlaps_, overtakes_, steps, rounds_};
  }

  const Steps steps_;
  std::unique_ptr<TieringManager> manager_;
  std::atomic<int> inside_{0};
  std::atomic<std::uint64_t> engine_wait_{0};  // Odd while the engine asks for the lock.
  std::atomic<std::uint64_t> overlaps_{0}, overtakes_{0}, rounds_{0};
  std::uint64_t last_wait_seen_ = 0;  // The control thread's.
};

}  // namespace terrace::threads
