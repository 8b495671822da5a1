#include "manager/control_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace terrace {
namespace {

constexpr std::chrono::seconds kLockPatience{10};
// Where whatever happens wakes the loop, only deadlines need rounds besides. A round where all
// processors compute interrupts a model, for 50 us on a virtual machine: 1000 a second are a
// twentieth of it. So the pause becomes as long as nothing has happened, and ends at this length,
// which is how late a deadline may be seen.
constexpr std::chrono::milliseconds kLongestRest{20};

}  // namespace

ControlLoop::Next ControlLoop::RunOnce(TimePoint now, bool woken) {
  if (woken || !last_event_) last_event_ = now;
  if (now < not_before_) return {not_before_ - now, false, true};
  if (!manager_.TryLockFor(options_.lock_timeout, Lane::kControl, "the control thread")) {
    ++uncounted_failures_;
    if (!lockless_since_) lockless_since_ = now;
    if (now - *lockless_since_ >= kLockPatience && now - last_warning_ >= kLockPatience) {
      last_warning_ = now;
      TERRACE_LOG_WARN(
          "the control thread did not get the manager's lock for {} s: peers are not served. Is a "
          "step of the engine left open?",
          std::chrono::duration_cast<std::chrono::seconds>(now - *lockless_since_).count());
    }
    // Asking for the lock has been the pause.
    return {std::chrono::nanoseconds(0), false, false};
  }
  lockless_since_.reset();
  const auto began = std::chrono::steady_clock::now();
  const TieringManager::RoundReport report = manager_.ServeRound();
  ControlStats& stats = manager_.control_stats();
  ++stats.rounds;
  stats.failed_rounds += (report.failed ? 1 : 0) + std::exchange(uncounted_failures_, 0);
  stats.yielded_rounds += report.yielded ? 1 : 0;
  stats.round.Add(std::chrono::steady_clock::now() - began);
  manager_.Unlock();

  if (report.failed) {
    backoff_ =
        std::clamp<std::chrono::nanoseconds>(backoff_ * 2, options_.interval, options_.backoff_max);
    not_before_ = now + backoff_;
    return {backoff_, report.active, true};
  }
  backoff_ = std::chrono::nanoseconds(0);
  if (report.active || report.yielded || report.needs_timer) last_event_ = now;
  // After a yield at once: the lock's lanes see to it that the engine comes first.
  if (report.active || report.yielded) return {std::chrono::nanoseconds(0), true, false};
  const std::chrono::nanoseconds longest =
      std::max<std::chrono::nanoseconds>(options_.interval, kLongestRest);
  return {std::clamp<std::chrono::nanoseconds>(now - *last_event_, options_.interval, longest),
          false, false};
}

}  // namespace terrace
