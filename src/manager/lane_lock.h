// A mutex with two lanes: while anybody waits in the engine's lane, nobody of the control lane gets
// in.
//
// Free and uncontended it is one compare-and-swap. A waiter of the engine's lane looks for it for a
// moment, then sleeps; waking one takes tens of microseconds, during which the lock stays free for
// the lane that was woken, so that a control thread that asks again at once does not overtake the
// engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "terrace/lock_stats.h"

namespace terrace {

// Thread-safe. Not recursive.
class LaneLock {
 public:
  using Clock = std::chrono::steady_clock;

  // Holds longer than `long_hold` are counted.
  explicit LaneLock(std::chrono::nanoseconds long_hold);

  // Blocks until the lock is this thread's, or `deadline` has passed: false then. `holder` names
  // who holds it, for people; it must live for ever.
  bool Lock(Lane lane, const char* holder,
            std::optional<Clock::time_point> deadline = std::nullopt);

  // How long this hold was, and who held.
  struct Hold {
    std::chrono::nanoseconds length;
    const char* holder;
    bool is_long;
  };
  // Pre: held by this thread.
  Hold Unlock();

  // True while somebody waits in the engine's lane: a holder of the control lane should finish its
  // unit of work and go. Cost: one load.
  bool EngineWaits() const { return engine_waiters_.load(std::memory_order_relaxed) > 0; }

  // Whether this thread holds the lock; for checks.
  bool HeldByThisThread() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // The rest is guarded by the lock itself: the caller holds it.
  std::uint64_t hold_number() const { return hold_number_; }
  LockStats& stats() { return stats_; }
  const LockStats& stats() const { return stats_; }

 private:
  bool TryTake(Lane lane);
  bool Spin(Lane lane);
  bool Wait(Lane lane, std::optional<Clock::time_point> deadline);
  void WakeNext();

  const std::chrono::nanoseconds long_hold_;

  // Sequentially consistent: a waiter announces itself and then tries to take; a leaver frees and
  // then looks for waiters. One of the two must see the other.
  std::atomic<bool> held_{false};
  std::atomic<std::uint32_t> engine_waiters_{0};
  std::atomic<std::uint32_t> control_waiters_{0};
  // Relaxed: a thread only compares it with its own id, which only itself writes.
  std::atomic<std::thread::id> owner_{};

  std::mutex sleep_mutex_;  // Only for the two conditions.
  std::condition_variable engine_turn_;
  std::condition_variable control_turn_;

  // Of the present hold, guarded by the lock itself.
  std::uint64_t hold_number_ = 0;
  std::uint64_t held_since_ticks_ = 0;
  Lane lane_ = Lane::kEngine;
  const char* holder_ = "";
  LockStats stats_;
};

}  // namespace terrace
