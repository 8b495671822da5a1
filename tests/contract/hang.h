// A place where threads of a tier hang until the test lets them go.
#pragma once

#include <cstddef>

#include "base/mutex.h"

namespace terrace::testing {

// Thread-safe.
class Hang {
 public:
  void Begin() { Set(true); }
  // Nothing hangs any more.
  void End() { Set(false); }

  // What hangs calls this.
  void Pass() {
    MutexLock lock(mutex_);
    if (!active_) return;
    ++hanging_;
    changed_.NotifyAll();
    while (active_) changed_.Wait(mutex_);
    --hanging_;
  }
  // Blocks until `count` threads hang.
  void Await(std::size_t count) {
    MutexLock lock(mutex_);
    while (hanging_ < count) changed_.Wait(mutex_);
  }

 private:
  void Set(bool active) {
    MutexLock lock(mutex_);
    active_ = active;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool active_ TERRACE_GUARDED_BY(mutex_) = false;
  std::size_t hanging_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::testing
