// The thread that runs the control loop.
//
// Event driven: it sleeps until one of the tiers' descriptors is readable, somebody wakes it, or
// the time that the loop asks for has passed. After a round that did something it looks again for a
// moment before it sleeps, since work comes in bursts and waking takes tens of microseconds.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/thread.h"
#include "manager/control_loop.h"
#include "terrace/result.h"

namespace terrace {

// Thread-safe.
class ControlThread {
 public:
  // `manager` outlives it. The priority is given if the system allows it; the log says so.
  // kResourceExhausted if the system has no threads or descriptors left.
  static Result<std::unique_ptr<ControlThread>> Start(TieringManager& manager,
                                                      const ControlLoopOptions& options,
                                                      ThreadPriority priority);
  // Aborts if the thread still runs: Stop() said so.
  ~ControlThread();

  // Makes it look now. Cheap; never blocks.
  void Wake();

  // What the system granted; the normal one until the thread has asked.
  ThreadPriority priority() const { return priority_.load(std::memory_order_relaxed); }

  // Ends after the round that is running. False if that did not end in time: a tier holds the
  // manager's lock and does not come back. Idempotent.
  [[nodiscard]] bool Stop(std::chrono::milliseconds timeout);

 private:
  ControlThread(TieringManager& manager, const ControlLoopOptions& options, ThreadPriority priority,
                UniqueFd wake);
  void TakePriority();
  void Run();
  bool SomethingArrives(std::chrono::nanoseconds time);
  bool PollOnce(std::chrono::nanoseconds timeout);

  const UniqueFd wake_;  // An eventfd.
  const ThreadPriority wanted_priority_;

  // The thread's alone once it runs.
  ControlLoop loop_;
  std::vector<pollfd> polled_;     // wake_, then the tiers'.
  bool descriptors_rest_ = false;  // The tiers' are not looked at until the next round.
  bool woken_by_descriptor_ = false;
  bool woken_ = false;  // By anything but the time, since the last round.

  std::atomic<bool> stop_{false};
  std::atomic<ThreadPriority> priority_{ThreadPriority::kNormal};  // A number for people: relaxed.
  EndingThread thread_;
};

}  // namespace terrace
