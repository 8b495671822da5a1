#include "terrace/offloading_manager.h"

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/log_limiter.h"
#include "manager/lane_lock.h"

namespace terrace {

OffloadingManager::OffloadingManager()
    : lock_(std::make_unique<LaneLock>(kLongHold)),
      long_holds_said_(std::make_unique<LogLimiter>()) {}
OffloadingManager::~OffloadingManager() = default;

void OffloadingManager::Lock(Lane lane, const char* holder) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  TERRACE_DCHECK(!lock_->HeldByThisThread(), "this thread holds the manager's lock already");
  lock_->Lock(lane, holder);
}

bool OffloadingManager::TryLockFor(std::chrono::nanoseconds timeout, Lane lane,
                                   const char* holder) TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  TERRACE_DCHECK(!lock_->HeldByThisThread(), "this thread holds the manager's lock already");
  return lock_->Lock(lane, holder, DeadlineIn(timeout));
}

void OffloadingManager::Unlock() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  AssertHeld();
  const LaneLock::Hold hold = lock_->Unlock();
  if (!hold.is_long) return;
  const auto unsaid = long_holds_said_->Admit(std::chrono::steady_clock::now());
  if (!unsaid) return;
  TERRACE_LOG_WARN(
      "{} held the manager's lock for {:.1f} ms: nobody was served meanwhile ({} such holds "
      "before)",
      hold.holder, std::chrono::duration<double, std::milli>(hold.length).count(), *unsaid);
}

void OffloadingManager::AssertHeld() const {
  TERRACE_DCHECK(lock_->HeldByThisThread(), "the manager's lock is not held by this thread");
}

bool OffloadingManager::EngineWaits() const { return lock_->EngineWaits(); }
const LockStats& OffloadingManager::lock_stats() const { return lock_->stats(); }
std::uint64_t OffloadingManager::hold_number() const { return lock_->hold_number(); }

}  // namespace terrace
