// What serves peers between the engine's steps: rounds, each one short hold of the manager's lock
// in the control lane.
//
// ControlLoop is the logic, which a test drives with one thread and a clock of its own;
// ControlThread runs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "manager/tiering_manager.h"

namespace terrace {

struct ControlLoopOptions {
  // Between rounds that found nothing; longer once nothing has happened for a while.
  std::chrono::nanoseconds interval{std::chrono::milliseconds(1)};
  std::chrono::nanoseconds lock_timeout{std::chrono::seconds(1)};
  std::chrono::nanoseconds backoff_max{std::chrono::seconds(1)};  // After failed rounds.
};

// Confined to one thread.
class ControlLoop {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  ControlLoop(TieringManager& manager, const ControlLoopOptions& options)
      : manager_(manager), options_(options) {}

  struct Next {
    std::chrono::nanoseconds wait{0};  // Until the next round is due; sooner if something arrives.
    bool active = false;               // This one did something: more may follow at once.
    bool failed = false;               // Not sooner, whatever arrives.
  };
  // One round, unless a failure of the last ones asks for more patience. Blocks for the lock, at
  // most for lock_timeout. A failed round is counted, and tried again after a back-off, for ever.
  // `woken`: something arrived, or somebody asked for it; it is not only the time.
  Next RunOnce(TimePoint now, bool woken);

 private:
  TieringManager& manager_;
  const ControlLoopOptions options_;
  std::chrono::nanoseconds backoff_{0};
  TimePoint not_before_{};
  std::optional<TimePoint> last_event_;
  std::uint64_t uncounted_failures_ =
      0;  // Rounds that did not get the lock, under which counts live.
  std::optional<TimePoint> lockless_since_;  // First of the rounds in a row that did not get it.
  TimePoint last_warning_{};
};

}  // namespace terrace
