// What a manager counted since it was made, and sizes now.
//
// Totals only grow; "now" values are those of the moment. docs/metrics.md lists the metrics made of
// them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "terrace/lock_stats.h"
#include "terrace/secondary_tier.h"
#include "terrace/types.h"

namespace terrace {

// Whether a tier is asked and given jobs.
enum class TierHealth : std::uint8_t {
  kUp,       // It is.
  kDown,     // Too many failures in a row: left alone for a while.
  kProbing,  // Tried again with one job.
};

// One direction of transfers between host memory and a tier.
struct TransferStats {
  std::uint64_t jobs = 0;         // Ended.
  std::uint64_t failed_jobs = 0;  // Of which some chunk or all failed.
  std::uint64_t chunks = 0;       // Arrived.
  std::uint64_t failed_chunks = 0;
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds time{0};  // From submission to the tier's own end of it, summed.
  std::uint64_t jobs_in_flight = 0;  // Now.
  std::uint64_t slots_in_flight =
      0;  // Now: pinned for a tier to read, or reserved for it to write.
  std::uint64_t overdue_jobs_total = 0;  // Passed their deadline.
  std::uint64_t overdue_jobs = 0;        // Now: and still not reported.
};

struct TierStats {
  std::string type;
  LoadSource source = LoadSource::kOther;
  // Chunks that requests asked it for, each once for a request, and of them those it had.
  std::uint64_t queried_chunks = 0;
  std::uint64_t hit_chunks = 0;
  DurationHistogram lookup_time;   // Of its definite answers, each chunk once for a request.
  DurationHistogram lookup_delay;  // From its first "not known yet" about a chunk to its answer.
  TransferStats promotion;         // From the tier.
  TransferStats cascade;           // To the tier.
  TransferStats serve;             // By the tier, to its peers.
  DurationHistogram promotion_latency;         // Of jobs that brought every chunk.
  DurationHistogram failed_promotion_latency;  // Of the others.
  std::uint64_t serve_refusals = 0;            // Jobs for peers that too many others read beside.
  // Chunks that it was not given.
  std::uint64_t waiting_chunks = 0;  // Now: stored, but the tier has too much under way already.
  std::uint64_t dropped_by_backpressure_chunks = 0;  // It is too slow.
  std::uint64_t dropped_while_down_chunks = 0;
  std::uint64_t dropped_while_waiting_chunks = 0;  // Gone before their turn, or overdue.
  double seconds_per_mib = 0;         // Now: smoothed, of cascades; 0 if back-pressure is off.
  std::uint64_t faults = 0;           // It threw, broke its contract or left a look-up unanswered.
  std::uint64_t unknown_reports = 0;  // Results of jobs that it does not have.
  TierHealth health = TierHealth::kUp;
  std::uint64_t downs = 0;             // Times it was taken down.
  std::vector<CounterValue> counters;  // Its own.
};

// The thread that serves peers between the engine's steps.
struct ControlStats {
  bool running = false;
  ThreadPriority priority = ThreadPriority::kNormal;  // What the system granted it.
  std::uint64_t rounds = 0;
  std::uint64_t failed_rounds = 0;   // Some tier threw, or the lock could not be had in time.
  std::uint64_t yielded_rounds = 0;  // Ended early: the engine waited, or the budget was used up.
  DurationHistogram round;           // Inside the lock.
};

struct ManagerStats {
  std::uint64_t slot_count = 0;    // Capacity.
  std::uint64_t ready_chunks = 0;  // Of which pinned_chunks are pinned.
  std::uint64_t pinned_chunks = 0;
  std::uint64_t writing_chunks = 0;  // Stores and promotions under way.
  std::uint64_t orphaned_slots = 0;  // Forgotten by a reset, still being copied.
  std::uint64_t stored_chunks = 0;   // Completed stores from the engine.
  std::uint64_t failed_store_chunks = 0;
  std::uint64_t loaded_chunks = 0;  // Handed out by PrepareLoad() and given back.
  std::uint64_t evicted_chunks = 0;
  std::uint64_t skipped_store_chunks = 0;   // Not offered often enough yet (store_threshold).
  std::uint64_t store_refusals = 0;         // PrepareStore() found no room.
  std::uint64_t promotion_refusals = 0;     // A tier had the chunk, host memory had no slot.
  std::uint64_t promotions_postponed = 0;   // Look-ups that had to wait for other promotions.
  std::uint64_t promotions_overdue = 0;     // Turned into misses at their deadline.
  std::uint64_t stuck_slots = 0;            // Now: overdue, and the tier has still not reported.
  std::uint64_t parked_chunks_overdue = 0;  // Promised to a tier, but their writing did not end.
  std::uint64_t peer_requests_overdue = 0;  // Of peers, left open by their tier too long.
  std::uint64_t lookups_overdue = 0;        // Requests that were told to compute at their deadline.
  // Looking in host memory, with tiers behind it, for chunks that were not there: each once for a
  // request.
  DurationHistogram miss_time;
  std::uint64_t resets = 0;
  // Chunks that one store needed room for: bucket i counts those of at most 4^i, the last one all.
  static constexpr std::size_t kAllocationBuckets = 10;
  std::array<std::uint64_t, kAllocationBuckets + 1> allocation_sizes{};
  std::uint64_t allocation_chunks = 0;  // Their sum.
  ControlStats control;
  LockStats lock;
  std::vector<TierStats> tiers;
};

}  // namespace terrace
