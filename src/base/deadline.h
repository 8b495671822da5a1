// A point in time from a span.
#pragma once

#include <algorithm>
#include <chrono>

namespace terrace {

// `timeout` from now, without overflow for a timeout that means "for ever".
inline std::chrono::steady_clock::time_point DeadlineIn(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kForEver = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::min(timeout, kForEver);
}

// Milliseconds for ever are more than nanoseconds can count.
inline std::chrono::steady_clock::time_point DeadlineIn(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);
  return DeadlineIn(std::chrono::nanoseconds(std::min(timeout, kForEver)));
}

}  // namespace terrace
