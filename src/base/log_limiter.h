// Keeps a fault that repeats from filling the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
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

// For the end of a line; empty if none was held back.
inline std::string HeldBackNote(std::uint64_t count) {
  if (count == 0) return {};
  return " (" + std::to_string(count) + " more such since the last line)";
}

}  // namespace terrace

// A line that `limiter` lets through at `now` or counts. `format` is a literal, and its arguments
// are only looked at if the line is written.
#define TERRACE_LOG_LIMITED(log, limiter, now, format, ...)                            \
  do {                                                                                 \
    if (const auto held_back = (limiter).Admit(now)) {                                 \
      log(format "{}", __VA_ARGS__ __VA_OPT__(, )::terrace::HeldBackNote(*held_back)); \
    }                                                                                  \
  } while (false)
#define TERRACE_LOG_WARN_LIMITED(...) TERRACE_LOG_LIMITED(TERRACE_LOG_WARN, __VA_ARGS__)
#define TERRACE_LOG_INFO_LIMITED(...) TERRACE_LOG_LIMITED(TERRACE_LOG_INFO, __VA_ARGS__)
