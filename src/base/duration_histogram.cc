#include <algorithm>
#include <bit>

#include "terrace/lock_stats.h"

namespace terrace {

void DurationHistogram::Add(std::chrono::nanoseconds duration) {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
  ++counts[std::min<std::size_t>(std::bit_width(ns), kBuckets - 1)];
  ++count;
  sum += duration;
  max = std::max(max, duration);
}

std::chrono::nanoseconds DurationHistogram::Quantile(double part) const {
  if (count == 0) return std::chrono::nanoseconds(0);
  const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(count));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i + 1 < kBuckets; ++i) {
    seen += counts[i];
    if (seen >= std::max<std::uint64_t>(wanted, 1)) {
      return std::min(max, std::chrono::nanoseconds(std::int64_t{1} << i));
    }
  }
  return max;
}

}  // namespace terrace
