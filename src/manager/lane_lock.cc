#include "manager/lane_lock.h"

#include "base/ticks.h"

namespace terrace {
namespace {

// As long as it takes to wake a thread on a virtual machine with idle cores.
constexpr std::chrono::microseconds kSpin{100};

// To the processor: this is a wait, the other thread of the core may have its turn.
void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// The clock's rate is found out here, not under a lock.
LaneLock::LaneLock(std::chrono::nanoseconds long_hold) : long_hold_(long_hold) {
  TicksToNanoseconds(0);
}

bool LaneLock::TryTake(Lane lane) {
  if (lane == Lane::kControl && engine_waiters_.load() > 0) return false;
  bool expected = false;
  return held_.compare_exchange_strong(expected, true);
}

bool LaneLock::Lock(Lane lane, const char* holder, std::optional<Clock::time_point> deadline) {
  const std::uint64_t asked = TicksNow();
  const bool at_once = TryTake(lane);
  if (!at_once && !Wait(lane, deadline)) return false;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  ++hold_number_;
  lane_ = lane;
  holder_ = holder;
  held_since_ticks_ = at_once ? asked : TicksNow();
  stats_.wait[static_cast<std::size_t>(lane)].Add(
      at_once ? std::chrono::nanoseconds(0) : TicksToNanoseconds(held_since_ticks_ - asked));
  return true;
}

// Looks for the lock for a moment before it sleeps: what the control lane does in one go is shorter
// than waking a thread takes.
bool LaneLock::Spin(Lane lane) {
  if (lane == Lane::kControl) return false;
  const std::uint64_t began = TicksNow();
  while (TicksToNanoseconds(TicksNow() - began) < kSpin) {
    for (int i = 0; i < 32; ++i) {
      if (!held_.load(std::memory_order_relaxed) && TryTake(lane)) return true;
      CpuRelax();
    }
  }
  return false;
}

bool LaneLock::Wait(Lane lane, std::optional<Clock::time_point> deadline) {
  auto& waiters = lane == Lane::kEngine ? engine_waiters_ : control_waiters_;
  auto& turn = lane == Lane::kEngine ? engine_turn_ : control_turn_;
  waiters.fetch_add(1);
  if (Spin(lane)) {
    waiters.fetch_sub(1);
    return true;
  }
  std::unique_lock<std::mutex> sleep(sleep_mutex_);
  bool taken = TryTake(lane);
  while (!taken) {
    if (deadline) {
      if (turn.wait_until(sleep, *deadline) == std::cv_status::timeout) {
        taken = TryTake(lane);
        break;
      }
    } else {
      turn.wait(sleep);
    }
    taken = TryTake(lane);
  }
  waiters.fetch_sub(1);
  sleep.unlock();
  // A waiter that gives up may have been the one whom the last leaver woke, or who kept the control
  // lane out.
  if (!taken && !held_.load()) WakeNext();
  return taken;
}

LaneLock::Hold LaneLock::Unlock() {
  const auto length = TicksToNanoseconds(TicksNow() - held_since_ticks_);
  const Hold hold{length, holder_, length > long_hold_};
  if (hold.is_long) ++stats_.long_holds;
  stats_.hold[static_cast<std::size_t>(lane_)].Add(hold.length);
  owner_.store(std::thread::id(), std::memory_order_relaxed);
  held_.store(false);
  WakeNext();
  return hold;
}

void LaneLock::WakeNext() {
  const bool engine = engine_waiters_.load() > 0;
  if (!engine && control_waiters_.load() == 0) return;
  // With the mutex, a waiter is either before its try, which will succeed, or asleep.
  std::lock_guard<std::mutex> sleep(sleep_mutex_);
  (engine ? engine_turn_ : control_turn_).notify_one();
}

}  // namespace terrace
