// What changed in a manager's statistics, in the shape of vLLM's payload: made once a step, so
// without a dictionary of everything.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "py_manager.h"
#include "terrace/manager_stats.h"

namespace terrace_kv {

// With the interpreter held.
class StatsFeed {
 public:
  // What metrics.py says of each metric.
  struct Words {
    nb::object counter, gauge, histogram;  // What vLLM calls these types.
    // By our name of a statistic: the metric's name, or an exception if that is missing.
    nb::dict metrics;
  };

  // All that is counted from now on.
  StatsFeed(std::shared_ptr<PyManager> manager, Words words);

  // Fills types[metric] and values[metric][labels] with what changed since the last call: of a
  // counter the increase, of a histogram samples, of a gauge its value. Both are vLLM's. What was
  // not said since Python raised is lost.
  void Take(nb::dict types, nb::dict values);

 private:
  struct Metric {
    nb::object name;
    nb::object type;
  };
  // A metric with its labels.
  struct Series {
    Metric metric;
    nb::object labels;
    std::optional<double> said;  // A gauge keeps its value until another is said.
  };
  struct Direction {
    Series bytes, seconds, failed_jobs, jobs_in_flight, slots_in_flight;
  };
  struct Tier {
    Series queried, hit, lookup_time, lookup_delay, promotion_latency, failed_promotion_latency;
    Direction promotion, cascade;
    Series seconds_per_mib, backpressure_drops, faults, downs, unknown_reports, dropped, up;
    nb::str label;
    std::vector<std::pair<std::string, Series>> own;  // In the order of TierStats::counters.
  };
  struct Host {
    Series usage, write_usage, read_usage;
    Series allocation_size, skipped_stores, promotion_refusals;
    Series queried, hit, lookup_time;
    Series evicted, store_refusals, promotions_overdue, lookups_overdue, resets;
    Series slots, ready, orphaned, stuck;
    Series engine_wait, control_wait;
  };
  class Payload;

  Metric MetricOf(const char* statistic, const nb::object& type) const;
  Host MakeHost() const;
  Tier MakeTier(std::size_t place, const terrace::TierStats& stats) const;
  Direction MakeDirection(const std::string& name, const nb::object& labels) const;
  void TakeHost(Payload& out, const PyManager::Snapshot& before, const PyManager::Snapshot& now);
  static void TakeDirection(Payload& out, Direction& direction, const terrace::TransferStats& was,
                            const terrace::TransferStats& now, double slots);
  void TakeTier(Payload& out, Tier& tier, const terrace::TierStats& was,
                const terrace::TierStats& now, double slots) const;
  void TakeOwn(Payload& out, Tier& tier, const terrace::TierStats& now) const;

  const std::shared_ptr<PyManager> manager_;
  const Words words_;
  Host host_;
  std::vector<Tier> tiers_;
  PyManager::Snapshot before_;
};

}  // namespace terrace_kv
