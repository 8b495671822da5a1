#include "base/ticks.h"

namespace terrace {
namespace {

double NanosecondsPerTick() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const std::uint64_t start_ticks = TicksNow();
  auto now = start;
  while (now - start < std::chrono::milliseconds(2)) now = Clock::now();
  const std::uint64_t ticks = TicksNow() - start_ticks;
  return std::chrono::duration<double, std::nano>(now - start).count() / static_cast<double>(ticks);
}

}  // namespace

std::chrono::nanoseconds TicksToNanoseconds(std::uint64_t ticks) {
  static const double rate = NanosecondsPerTick();
  return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(ticks) * rate));
}

}  // namespace terrace
