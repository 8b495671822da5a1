// std::mutex with thread-safety annotations (libstdc++'s own has none). For leaf locks: a class
// that holds one calls nobody.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "terrace/thread_annotations.h"

namespace terrace {

class TERRACE_CAPABILITY("mutex") Mutex {
 public:
  void Lock() TERRACE_ACQUIRE() { mutex_.lock(); }
  void Unlock() TERRACE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TERRACE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TERRACE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() TERRACE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits are in loops at the call site, so that the analysis sees the guarded reads:
//   while (!ready_) cond_.Wait(mutex_);
class CondVar {
 public:
  void Wait(Mutex& mutex) TERRACE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // False if `deadline` passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      TERRACE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = cond_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace terrace
