// With TERRACE_TEST_NO_LOCK it keeps nobody out; else it is a plain mutex, which knows no lanes.
#include "tests/matrix/broken_lock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/log_limiter.h"
#include "base/ticks.h"
#include "manager/lane_lock.h"
#include "terrace/offloading_manager.h"

namespace terrace {
namespace {

// All zero at first, as a new memfd is.
struct SharedCounts {
  std::atomic<std::uint64_t> overlaps;
  std::atomic<std::uint64_t> overtakes;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared by processes");

constexpr const char* kDescriptor = "TERRACE_TEST_LOCK_FAULTS";
SharedCounts* counts = nullptr;

}  // namespace

LaneLock::LaneLock(std::chrono::nanoseconds long_hold) : long_hold_(long_hold) {
  TicksToNanoseconds(0);
}

#if defined(TERRACE_TEST_NO_LOCK)

namespace {

std::atomic<int> inside{0};  // A process of the matrix has one manager.
std::atomic<std::uint64_t> holds{0};

}  // namespace

// Without the checks of the holder, too: these would end the program at the first overlap.
OffloadingManager::OffloadingManager()
    : lock_(std::make_unique<LaneLock>(kLongHold)),
      long_holds_said_(std::make_unique<LogLimiter>()) {}
OffloadingManager::~OffloadingManager() = default;
void OffloadingManager::Lock(Lane, const char*) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  if (inside.fetch_add(1) != 0) counts->overlaps.fetch_add(1);
  holds.fetch_add(1);
}
bool OffloadingManager::TryLockFor(std::chrono::nanoseconds, Lane lane,
                                   const char* holder) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  Lock(lane, holder);
  return true;
}
void OffloadingManager::Unlock() TERRACE_NO_THREAD_SAFETY_ANALYSIS { inside.fetch_sub(1); }
void OffloadingManager::AssertHeld() const {}
bool OffloadingManager::EngineWaits() const { return false; }
const LockStats& OffloadingManager::lock_stats() const { return lock_->stats(); }
std::uint64_t OffloadingManager::hold_number() const { return holds; }

#else

namespace {

std::atomic<std::uint64_t> engine_waits{0};  // Odd while the engine waits.
std::uint64_t last_wait_seen = 0;            // By the control lane, under the lock.

}  // namespace

// sleep_mutex_ is the lock. engine_waiters_ stays 0, so that the control thread never gives way.
bool LaneLock::Lock(Lane lane, const char* holder, std::optional<Clock::time_point> deadline) {
  const std::uint64_t asked = TicksNow();
  if (lane == Lane::kEngine) engine_waits.fetch_add(1);
  if (deadline) {
    while (!sleep_mutex_.try_lock()) {
      if (Clock::now() > *deadline) return false;
      std::this_thread::yield();
    }
  } else {
    sleep_mutex_.lock();
  }
  if (lane == Lane::kEngine) {
    engine_waits.fetch_add(1);
  } else {
    // The engine waited already when this lane came in before, and it still does.
    const std::uint64_t wait = engine_waits;
    if (wait % 2 == 1 && wait == last_wait_seen) counts->overtakes.fetch_add(1);
    last_wait_seen = wait;
  }
  owner_.store(std::this_thread::get_id());
  ++hold_number_;
  lane_ = lane;
  holder_ = holder;
  held_since_ticks_ = TicksNow();
  stats_.wait[static_cast<std::size_t>(lane)].Add(TicksToNanoseconds(held_since_ticks_ - asked));
  return true;
}

LaneLock::Hold LaneLock::Unlock() {
  const auto length = TicksToNanoseconds(TicksNow() - held_since_ticks_);
  const Hold hold{length, holder_, length > long_hold_};
  stats_.hold[static_cast<std::size_t>(lane_)].Add(length);
  owner_.store(std::thread::id());
  sleep_mutex_.unlock();
  return hold;
}

#endif

namespace matrix {

// The descriptor stays open in the processes that are started; its number is in the environment.
void ShareLockFaults() {
  const char* const inherited = std::getenv(kDescriptor);
  int descriptor = inherited == nullptr ? -1 : std::atoi(inherited);
  if (descriptor < 0) {
    descriptor = ::memfd_create("lock-faults", 0);
    if (::ftruncate(descriptor, sizeof(SharedCounts)) != 0) std::abort();
    ::setenv(kDescriptor, std::to_string(descriptor).c_str(), 1);
  }
  void* const mapped =
      ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) std::abort();
  counts = static_cast<SharedCounts*>(mapped);
}

LockFaults CountLockFaults() { return {counts->overlaps, counts->overtakes}; }

}  // namespace matrix
}  // namespace terrace
