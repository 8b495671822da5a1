// How long the manager's lock was waited for and held.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "terrace/export.h"

namespace terrace {

// Who may go first. The engine's scheduler waits for nobody but the one who is inside; everything
// that serves others between its steps takes the control lane and gives way.
enum class Lane : std::uint8_t { kEngine, kControl };
inline constexpr std::size_t kLaneCount = 2;

// Counts by powers of two: bucket i holds durations below 2^i ns and not below 2^(i-1); the last
// one holds all longer ones, too.
//
// Thread-compatible, as all that is here; a plain value.
struct TERRACE_API DurationHistogram {
  static constexpr std::size_t kBuckets = 40;  // Up to 9 minutes.
  std::array<std::uint64_t, kBuckets> counts{};
  std::uint64_t count = 0;
  std::chrono::nanoseconds sum{0};
  std::chrono::nanoseconds max{0};

  void Add(std::chrono::nanoseconds duration);
  // The upper bound of the bucket that holds the given part, 0 to 1, of all; 0 if there are none.
  // So at most twice the true value.
  std::chrono::nanoseconds Quantile(double part) const;
};

struct LockStats {
  std::array<DurationHistogram, kLaneCount> wait;
  std::array<DurationHistogram, kLaneCount> hold;
  std::uint64_t long_holds = 0;  // Of more than OffloadingManager::kLongHold.
};

}  // namespace terrace
