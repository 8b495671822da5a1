// A snapshot of a node's numbers without a node, for tests of how they are shown.
#pragma once

#include <chrono>

#include "node/metrics.h"

namespace terrace::testing_support {

inline constexpr std::uint64_t kFirstNumber = 5001;

inline NodeFacts Facts() {
  NodeFacts facts;
  facts.start_time_s = 1.5;
  facts.build = {{"version", "1.2.3"},
                 {"compiler", "c"},
                 {"build_type", "b"},
                 {"sanitizers", "none"},
                 {"tiers", "memory, file"}};
  facts.tiers = {{{"tier", "0:host"},
                  {"source", "host"},
                  {"capacity_bytes", "8"},
                  {"chunk_bytes", "1"},
                  {"tokens_per_chunk", "2"},
                  {"eviction_policy", "lru"},
                  {"store_threshold", "0"},
                  {"model", "m\"\\\n\xff\xc3\xa9"},
                  {"identity", "ab"}}};
  return facts;
}

// Every number is another one, so that one in the wrong place shows.
inline MetricsSnapshot Snapshot() {
  MetricsSnapshot now;
  std::uint64_t next = kFirstNumber;
  ManagerStats& m = now.manager;
  m.slot_count = 90'000;
  for (std::uint64_t* n : {&m.ready_chunks,
                           &m.pinned_chunks,
                           &m.writing_chunks,
                           &m.orphaned_slots,
                           &m.stored_chunks,
                           &m.failed_store_chunks,
                           &m.loaded_chunks,
                           &m.evicted_chunks,
                           &m.skipped_store_chunks,
                           &m.store_refusals,
                           &m.promotion_refusals,
                           &m.promotions_postponed,
                           &m.promotions_overdue,
                           &m.stuck_slots,
                           &m.parked_chunks_overdue,
                           &m.lookups_overdue,
                           &m.resets,
                           &m.control.rounds,
                           &m.control.failed_rounds,
                           &m.control.yielded_rounds,
                           &m.lock.long_holds}) {
    *n = next++;
  }
  m.allocation_sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  m.allocation_chunks = next++;
  m.control.running = true;
  m.control.priority = ThreadPriority::kHigh;
  m.control.round.Add(std::chrono::microseconds(3));
  m.lock.wait[0].Add(std::chrono::microseconds(1));
  m.lock.wait[1].Add(std::chrono::microseconds(10));
  m.lock.hold[0].Add(std::chrono::microseconds(100));
  m.lock.hold[1].Add(std::chrono::milliseconds(1));
  for (int i = 0; i < 2; ++i) {
    TierStats t;
    t.type = i == 0 ? "memory" : "file";
    for (TransferStats* d : {&t.promotion, &t.cascade, &t.serve}) {
      d->jobs = next++;
      for (std::uint64_t* n :
           {&d->failed_jobs, &d->chunks, &d->failed_chunks, &d->bytes, &d->jobs_in_flight,
            &d->slots_in_flight, &d->overdue_jobs_total, &d->overdue_jobs}) {
        *n = next++;
      }
      d->jobs += d->failed_jobs;  // The others are shown.
      d->time = std::chrono::milliseconds(next++);
    }
    for (std::uint64_t* n :
         {&t.queried_chunks, &t.hit_chunks, &t.waiting_chunks, &t.dropped_by_backpressure_chunks,
          &t.dropped_while_down_chunks, &t.dropped_while_waiting_chunks, &t.faults,
          &t.unknown_reports, &t.downs}) {
      *n = next++;
    }
    t.seconds_per_mib = 0.25;
    t.lookup_delay.Add(std::chrono::milliseconds(2));
    t.promotion_latency.Add(std::chrono::milliseconds(20));
    t.failed_promotion_latency.Add(std::chrono::milliseconds(200));
    t.health = i == 0 ? TierHealth::kUp : TierHealth::kProbing;
    t.counters = {{"terrace_x_things_total", next++}, {"terrace_x_things", next++}};
    m.tiers.push_back(t);
  }
  ConnectorStats& c = now.connector;
  c.matched_requests = next++;
  c.asked_chunks = 100;
  c.matched_chunks = {1, 2, 3, 4, 5, 6};
  c.matched_tokens = next++;
  c.lookup_sync.Add(std::chrono::microseconds(30));
  c.lookup_async.Add(std::chrono::milliseconds(30));
  for (EngineTransferStats* d : {&c.load, &c.store}) {
    d->jobs = next++;
    for (std::uint64_t* n : {&d->failed_jobs, &d->chunks, &d->failed_chunks, &d->bytes,
                             &d->jobs_in_flight, &d->chunks_in_flight}) {
      *n = next++;
    }
    d->jobs += d->failed_jobs;
    d->time = std::chrono::milliseconds(next++);
    d->sizes = {1, 1, 0, 0, 0, 0, 0, 0, 2};
  }
  c.store_refusals = next++;
  c.unstored_chunks = next++;
  now.refused_scrapes = next++;
  return now;
}

}  // namespace terrace::testing_support
