#include "tier/file/hung_operations.h"

#include <utility>

#include "base/log.h"

namespace terrace {

HungOperations::HungOperations(Options options, SteadyNow now)
    : options_(std::move(options)), now_(std::move(now)) {}

HungOperations::Seen HungOperations::Look() {
  const auto now = now_();
  Seen before;
  Seen after;
  {
    MutexLock lock(mutex_);
    before = seen_;
    for (Operation& operation : running_) {
      if (now - operation.begun < options_.after) break;
      if (std::exchange(operation.hung, true)) continue;
      ++seen_.now;
      ++seen_.total;
    }
    after = seen_;
  }
  if (before.now == 0 && after.now > 0 && log_.Admit(now)) {
    TERRACE_LOG_WARN(
        "{}: operations that have been running for {} s or more: {}. The storage does not "
        "answer, and what waits for it may be given up by now",
        options_.what, options_.after.count(), after.now);
  }
  return after;
}

HungOperations::Running::iterator HungOperations::Begin() {
  MutexLock lock(mutex_);
  return running_.insert(running_.end(), {now_()});
}

void HungOperations::End(Running::iterator operation) {
  Look();  // It may have hung while nobody looked.
  MutexLock lock(mutex_);
  if (operation->hung) --seen_.now;
  running_.erase(operation);
}

}  // namespace terrace
