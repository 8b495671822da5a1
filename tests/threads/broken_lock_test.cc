// The same with a lock that is none, or that knows no lanes, linked instead of the manager's own.
// What overlap_test.cc expects never to see is then seen, so its silence means something.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/log_limiter.h"
#include "manager/lane_lock.h"
#include "tests/threads/overlap.h"

namespace terrace {

LaneLock::LaneLock(std::chrono::nanoseconds long_hold) : long_hold_(long_hold) {}

#if defined(TERRACE_TEST_NO_LOCK)

// Without the checks of the holder, too: these would end the program at the first overlap.
OffloadingManager::OffloadingManager()
    : lock_(std::make_unique<LaneLock>(kLongHold)),
      long_holds_said_(std::make_unique<LogLimiter>()) {}
OffloadingManager::~OffloadingManager() = default;
void OffloadingManager::Lock(Lane, const char*) TERRACE_NO_THREAD_SAFETY_ANALYSIS {}
bool OffloadingManager::TryLockFor(std::chrono::nanoseconds, Lane,
                                   const char*) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  return true;
}
void OffloadingManager::Unlock() TERRACE_NO_THREAD_SAFETY_ANALYSIS {}
void OffloadingManager::AssertHeld() const {}
bool OffloadingManager::EngineWaits() const { return false; }
const LockStats& OffloadingManager::lock_stats() const { return lock_->stats(); }
std::uint64_t OffloadingManager::hold_number() const { return 1; }

#else

bool LaneLock::Lock(Lane lane, const char* holder, std::optional<Clock::time_point> deadline) {
  if (lane == Lane::kEngine) engine_waiters_.fetch_add(1);
  bool taken = false;
  for (;;) {
    bool expected = false;
    taken = held_.compare_exchange_strong(expected, true);
    if (taken || (deadline && Clock::now() > *deadline)) break;
    std::this_thread::yield();
  }
  if (lane == Lane::kEngine) engine_waiters_.fetch_sub(1);
  if (!taken) return false;
  owner_.store(std::this_thread::get_id());
  ++hold_number_;
  holder_ = holder;
  return true;
}

LaneLock::Hold LaneLock::Unlock() {
  owner_.store(std::thread::id());
  held_.store(false);
  return {std::chrono::nanoseconds(0), "", false};
}

#endif

namespace threads {
namespace {

// What a broken lock lets happen it does not make happen every time.
constexpr int kTries = 50;

#if defined(TERRACE_TEST_NO_LOCK)
TEST(BrokenLock, WithoutALockOverlapsAreSeen) {
  Overlap::Seen seen;
  for (int i = 0; i < kTries && seen.overlaps == 0; ++i) {
    seen = Overlap::Run(Overlap::Steps::kEmpty, 100);
  }
  std::printf("%llu overlaps\n", static_cast<unsigned long long>(seen.overlaps));
  EXPECT_GT(seen.overlaps, 0u);
}
#else
TEST(BrokenLock, WithoutLanesTheEngineIsSeenToBeOvertaken) {
  Overlap::Seen seen;
  for (int i = 0; i < kTries && seen.overtakes == 0; ++i) {
    seen = Overlap::Run(Overlap::Steps::kWork, 50);
    EXPECT_EQ(seen.overlaps, 0u) << "it is a lock all the same";
  }
  std::printf("%llu overtakes\n", static_cast<unsigned long long>(seen.overtakes));
  EXPECT_GT(seen.overtakes, 0u);
}
#endif

}  // namespace
}  // namespace threads
}  // namespace terrace
