// Keeps a fault that repeats from filling the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace terrace {

// Lets the first line through, then at most one each minute. Thread-safe.
class LogLimiter {
 public:
  static constexpr std::chrono::seconds kPeriod{60};

  // How many lines were held back since the last one, if this one may be written.
  std::optional<std::uint64_t> Admit(std::chrono::steady_clock::time_point now) {
    MutexLock lock(mutex_);
    if (next_ && now < *next_) {
      ++held_back_;
      return std::nullopt;
    }
    next_ = now + kPeriod;
    return std::exchange(held_back_, 0);
  }

 private:
  Mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> next_ TERRACE_GUARDED_BY(mutex_);
  std::uint64_t held_back_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
