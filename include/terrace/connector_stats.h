// What a connector counted since it was made. docs/metrics.md lists the metrics made of it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "terrace/lock_stats.h"
#include "terrace/types.h"

namespace terrace {

// Copies in one direction between the engine's memory and host memory.
struct EngineTransferStats {
  std::uint64_t jobs = 0;         // Ended.
  std::uint64_t failed_jobs = 0;  // Of which this many failed, as a whole.
  std::uint64_t chunks = 0;       // Copied.
  std::uint64_t failed_chunks = 0;
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds time{0};    // Spent copying, summed.
  std::uint64_t jobs_in_flight = 0;    // Now: planned and not reported.
  std::uint64_t chunks_in_flight = 0;  // Now.
  // Jobs by their bytes: bucket i counts those of at most kSmallestSize * 4^i, the last one all.
  static constexpr std::uint64_t kSmallestSize = std::uint64_t{64} << 10;
  static constexpr std::size_t kSizeBuckets = 8;  // Up to 1 GiB.
  std::array<std::uint64_t, kSizeBuckets + 1> sizes{};
};

struct ConnectorStats {
  // Each request is counted here once, when it is first known what of it can be loaded, however
  // often it was looked up until then and after. One that ends before is never counted.
  std::uint64_t matched_requests = 0;
  std::uint64_t asked_chunks = 0;  // Behind what the engine had computed, up to its limit.
  // Of them, those found one behind the other from the first on, by where they came from. The
  // others are missed: in no tier, lost on their way, or behind a hole.
  std::array<std::uint64_t, kLoadSourceCount> matched_chunks{};
  std::uint64_t matched_tokens = 0;

  DurationHistogram lookup_sync;   // What one GetMatchedTokens() that looked took of a step.
  DurationHistogram lookup_async;  // Of requests that were told to ask again: from the first time
                                   // to the answer, or to their end.

  EngineTransferStats load;
  EngineTransferStats store;
  std::uint64_t store_refusals = 0;   // Offers that host memory had no room for, whole.
  std::uint64_t unstored_chunks = 0;  // Of finished requests: there was no room until the end.
};

}  // namespace terrace
