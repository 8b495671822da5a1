// The processor's own clock, for measuring many short spans: about 10 ns a reading, a third of
// steady_clock's.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace terrace {

// A point in time, in units that only TicksToNanoseconds() knows. Never goes back on processors
// with a constant counter.
inline std::uint64_t TicksNow() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// The length of a span of ticks. The rate is taken from steady_clock once, at the first call, which
// takes 2 ms.
std::chrono::nanoseconds TicksToNanoseconds(std::uint64_t ticks);

}  // namespace terrace
