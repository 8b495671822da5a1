// PyManager::Stats(): terrace/manager_stats.h as a dictionary.
#include <nanobind/stl/string.h>

#include <chrono>

#include "py_manager.h"
#include "terrace/manager_stats.h"

namespace terrace_kv {
namespace {

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// `counts` by bucket: i holds what is below 2^i ns and not below 2^(i-1). Those that are empty are
// left out.
nb::dict DictOf(const terrace::DurationHistogram& histogram) {
  nb::dict out;
  nb::dict counts;
  for (std::size_t i = 0; i < histogram.counts.size() && histogram.count > 0; ++i) {
    if (histogram.counts[i] > 0) counts[nb::int_(i)] = histogram.counts[i];
  }
  out["counts"] = counts;
  out["count"] = histogram.count;
  out["sum_s"] = Seconds(histogram.sum);
  out["max_s"] = Seconds(histogram.max);
  return out;
}

nb::dict DictOf(const terrace::TransferStats& stats) {
  nb::dict out;
  out["jobs"] = stats.jobs;
  out["failed_jobs"] = stats.failed_jobs;
  out["chunks"] = stats.chunks;
  out["failed_chunks"] = stats.failed_chunks;
  out["bytes"] = stats.bytes;
  out["time_s"] = Seconds(stats.time);
  out["jobs_in_flight"] = stats.jobs_in_flight;
  out["slots_in_flight"] = stats.slots_in_flight;
  out["overdue_jobs_total"] = stats.overdue_jobs_total;
  out["overdue_jobs"] = stats.overdue_jobs;
  return out;
}

const char* NameOf(terrace::TierHealth health) {
  switch (health) {
    case terrace::TierHealth::kUp:
      return "up";
    case terrace::TierHealth::kDown:
      return "down";
    case terrace::TierHealth::kProbing:
      return "probing";
  }
  return "up";
}

nb::dict DictOf(const terrace::TierStats& stats) {
  nb::dict out;
  out["type"] = stats.type;
  out["source"] = std::string(LoadSourceName(stats.source));
  out["queried_chunks"] = stats.queried_chunks;
  out["hit_chunks"] = stats.hit_chunks;
  out["lookup_time"] = DictOf(stats.lookup_time);
  out["lookup_delay"] = DictOf(stats.lookup_delay);
  out["promotion"] = DictOf(stats.promotion);
  out["cascade"] = DictOf(stats.cascade);
  out["serve"] = DictOf(stats.serve);
  out["promotion_latency"] = DictOf(stats.promotion_latency);
  out["failed_promotion_latency"] = DictOf(stats.failed_promotion_latency);
  out["serve_refusals"] = stats.serve_refusals;
  out["waiting_chunks"] = stats.waiting_chunks;
  out["dropped_by_backpressure_chunks"] = stats.dropped_by_backpressure_chunks;
  out["dropped_while_down_chunks"] = stats.dropped_while_down_chunks;
  out["dropped_while_waiting_chunks"] = stats.dropped_while_waiting_chunks;
  out["seconds_per_mib"] = stats.seconds_per_mib;
  out["faults"] = stats.faults;
  out["unknown_reports"] = stats.unknown_reports;
  out["health"] = NameOf(stats.health);
  out["downs"] = stats.downs;
  nb::dict counters;
  for (const terrace::CounterValue& counter : stats.counters) {
    counters[nb::str(counter.name.data(), counter.name.size())] = counter.value;
  }
  out["counters"] = counters;
  return out;
}

}  // namespace

nb::dict PyManager::Stats() {
  const Snapshot now = TakeSnapshot();
  const terrace::ManagerStats& stats = now.stats;
  nb::dict out;
  out["slot_count"] = stats.slot_count;
  out["ready_chunks"] = stats.ready_chunks;
  out["pinned_chunks"] = stats.pinned_chunks;
  out["writing_chunks"] = stats.writing_chunks;
  out["orphaned_slots"] = stats.orphaned_slots;
  out["stored_chunks"] = stats.stored_chunks;
  out["failed_store_chunks"] = stats.failed_store_chunks;
  out["loaded_chunks"] = stats.loaded_chunks;
  out["evicted_chunks"] = stats.evicted_chunks;
  out["skipped_store_chunks"] = stats.skipped_store_chunks;
  out["store_refusals"] = stats.store_refusals;
  out["promotion_refusals"] = stats.promotion_refusals;
  out["promotions_postponed"] = stats.promotions_postponed;
  out["promotions_overdue"] = stats.promotions_overdue;
  out["stuck_slots"] = stats.stuck_slots;
  out["parked_chunks_overdue"] = stats.parked_chunks_overdue;
  out["peer_requests_overdue"] = stats.peer_requests_overdue;
  out["lookups_overdue"] = stats.lookups_overdue;
  out["miss_time"] = DictOf(stats.miss_time);
  out["hit_time"] = DictOf(now.hit_time);
  out["misses"] = now.misses;
  out["resets"] = stats.resets;
  out["store_threshold"] = now.store_threshold;
  nb::dict store_sizes;
  for (const auto& [size, count] : now.store_sizes) store_sizes[nb::int_(size)] = count;
  out["store_sizes"] = store_sizes;
  nb::list sizes;
  for (const std::uint64_t count : stats.allocation_sizes) sizes.append(count);
  out["allocation_sizes"] = sizes;
  out["allocation_chunks"] = stats.allocation_chunks;
  nb::dict control;
  control["running"] = stats.control.running;
  control["priority"] = std::string(ThreadPriorityName(stats.control.priority));
  control["rounds"] = stats.control.rounds;
  control["failed_rounds"] = stats.control.failed_rounds;
  control["yielded_rounds"] = stats.control.yielded_rounds;
  control["round"] = DictOf(stats.control.round);
  out["control"] = control;
  nb::dict lock;
  for (const auto& [name, lane] : {std::pair{"engine", terrace::Lane::kEngine},
                                   std::pair{"control", terrace::Lane::kControl}}) {
    nb::dict one;
    one["wait"] = DictOf(stats.lock.wait[static_cast<std::size_t>(lane)]);
    one["hold"] = DictOf(stats.lock.hold[static_cast<std::size_t>(lane)]);
    lock[name] = one;
  }
  lock["long_holds"] = stats.lock.long_holds;
  out["lock"] = lock;
  nb::list tiers;
  for (const terrace::TierStats& tier : stats.tiers) tiers.append(DictOf(tier));
  out["tiers"] = tiers;
  return out;
}

}  // namespace terrace_kv
