#include "stats_feed.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace terrace_kv {

using terrace::DurationHistogram;
using terrace::TierHealth;
using terrace::TierStats;
using terrace::TransferStats;

namespace {

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// A duration in the middle of a bucket: [2^(bucket-1), 2^bucket) ns.
double MiddleOf(std::size_t bucket) {
  return std::ldexp(std::sqrt(0.5) * 1e-9, static_cast<int>(bucket));
}

void Set(nb::handle dict, nb::handle key, nb::handle value) {
  if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) != 0) throw nb::python_error();
}

nb::object Get(nb::handle dict, nb::handle key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return nb::borrow(found);
}

}  // namespace

// What is said, as it is collected. Nothing that did not change.
class StatsFeed::Payload {
 public:
  Payload(nb::dict types, nb::dict values) : types_(std::move(types)), values_(std::move(values)) {}

  // Whether it grew or not.
  void PutCount(const Series& series, std::uint64_t increase) { Put(series, nb::int_(increase)); }
  void Count(const Series& series, std::uint64_t was, std::uint64_t now) {
    if (now > was) PutCount(series, now - was);
  }
  void Count(const Series& series, std::chrono::nanoseconds was, std::chrono::nanoseconds now) {
    if (now > was) Put(series, nb::float_(Seconds(now - was)));
  }
  // Whether it is as before or not.
  void PutGauge(const Series& series, double value) { Put(series, nb::float_(value)); }
  void Gauge(Series& series, double value) {
    if (series.said == value) return;
    series.said = value;
    PutGauge(series, value);
  }
  void Sample(const Series& series, nb::object value, std::uint64_t times) {
    if (times == 0) return;
    const nb::object of_metric = OfMetric(series);
    nb::object samples = Get(of_metric, series.labels);
    if (!samples.is_valid()) {
      samples = nb::list();
      Set(of_metric, series.labels, samples);
    }
    for (; times > 0; --times) nb::borrow<nb::list>(samples).append(value);
  }
  void Sample(const Series& series, const DurationHistogram& was, const DurationHistogram& now) {
    if (now.count == was.count) return;
    for (std::size_t i = 0; i < now.counts.size(); ++i) {
      if (now.counts[i] == was.counts[i]) continue;
      Sample(series, nb::float_(MiddleOf(i)), now.counts[i] - was.counts[i]);
    }
  }

 private:
  nb::object OfMetric(const Series& series) {
    nb::object found = Get(values_, series.metric.name);
    if (found.is_valid()) return found;
    found = nb::dict();
    Set(values_, series.metric.name, found);
    Set(types_, series.metric.name, series.metric.type);
    return found;
  }
  void Put(const Series& series, nb::object value) { Set(OfMetric(series), series.labels, value); }

  const nb::dict types_;
  const nb::dict values_;
};

StatsFeed::StatsFeed(std::shared_ptr<PyManager> manager, Words words)
    : manager_(std::move(manager)), words_(std::move(words)), host_(MakeHost()) {
  before_ = manager_->TakeSnapshot();
  for (std::size_t i = 0; i < before_.stats.tiers.size(); ++i) {
    tiers_.push_back(MakeTier(i, before_.stats.tiers[i]));
  }
}

StatsFeed::Metric StatsFeed::MetricOf(const char* statistic, const nb::object& type) const {
  return {nb::object(words_.metrics[statistic]), type};
}

StatsFeed::Host StatsFeed::MakeHost() const {
  const nb::object none = nb::tuple();
  const nb::object primary = nb::make_tuple("0:primary");
  auto counter = [&](const char* name, const nb::object& labels) {
    return Series{MetricOf(name, words_.counter), labels, {}};
  };
  auto gauge = [&](const char* name) { return Series{MetricOf(name, words_.gauge), none, {}}; };
  auto histogram = [&](const char* name, const nb::object& labels) {
    return Series{MetricOf(name, words_.histogram), labels, {}};
  };
  return {.usage = gauge("usage"),
          .write_usage = gauge("write_usage"),
          .read_usage = gauge("read_usage"),
          .allocation_size = histogram("allocation_size", none),
          .skipped_stores = counter("skipped_stores", none),
          .promotion_refusals = counter("promotion_refusals", none),
          .queried = counter("queried_chunks", primary),
          .hit = counter("hit_chunks", primary),
          .lookup_time = histogram("lookup_time", primary),
          .evicted = counter("evicted_chunks", none),
          .store_refusals = counter("store_refusals", none),
          .promotions_overdue = counter("promotions_overdue", none),
          .lookups_overdue = counter("lookups_overdue", none),
          .resets = counter("resets", none),
          .slots = gauge("slot_count"),
          .ready = gauge("ready_chunks"),
          .orphaned = gauge("orphaned_slots"),
          .stuck = gauge("stuck_slots"),
          .engine_wait = counter("lock_wait", nb::make_tuple("engine")),
          .control_wait = counter("lock_wait", nb::make_tuple("control"))};
}

StatsFeed::Direction StatsFeed::MakeDirection(const std::string& name,
                                              const nb::object& labels) const {
  auto metric = [&](const char* of, const nb::object& type) {
    return Series{MetricOf((name + "_" + of).c_str(), type), labels, {}};
  };
  return {.bytes = metric("bytes", words_.counter),
          .seconds = metric("time", words_.counter),
          .failed_jobs = metric("failed_jobs", words_.counter),
          .jobs_in_flight = metric("jobs_in_flight", words_.gauge),
          .slots_in_flight = metric("slots_in_flight", words_.gauge)};
}

StatsFeed::Tier StatsFeed::MakeTier(std::size_t place, const TierStats& stats) const {
  const std::string name = std::to_string(place + 1) + ":" + stats.type;
  const nb::str label(name.c_str());
  const nb::object labels = nb::make_tuple(label);
  auto counter = [&](const char* of) { return Series{MetricOf(of, words_.counter), labels, {}}; };
  auto gauge = [&](const char* of) { return Series{MetricOf(of, words_.gauge), labels, {}}; };
  auto histogram = [&](const char* of, const nb::object& with) {
    return Series{MetricOf(of, words_.histogram), with, {}};
  };
  return {
      .queried = counter("queried_chunks"),
      .hit = counter("hit_chunks"),
      .lookup_time = histogram("lookup_time", labels),
      .lookup_delay = histogram("lookup_delay", labels),
      .promotion_latency = histogram("promotion_latency", nb::make_tuple(label, "success")),
      .failed_promotion_latency = histogram("promotion_latency", nb::make_tuple(label, "failure")),
      .promotion = MakeDirection("promotion", labels),
      .cascade = MakeDirection("cascade", labels),
      .seconds_per_mib = gauge("seconds_per_mib"),
      .backpressure_drops = counter("dropped_by_backpressure"),
      .faults = counter("faults"),
      .downs = counter("downs"),
      .unknown_reports = counter("unknown_reports"),
      .dropped = counter("dropped"),
      .up = gauge("up"),
      .label = label,
      .own = {}};
}

void StatsFeed::Take(nb::dict types, nb::dict values) {
  // At once: if Python raises on the way, what it kept is not said again.
  const PyManager::Snapshot was = std::exchange(before_, manager_->TakeSnapshot());
  const PyManager::Snapshot& now = before_;
  Payload out(std::move(types), std::move(values));
  TakeHost(out, was, now);
  const double slots = static_cast<double>(std::max<std::uint64_t>(now.stats.slot_count, 1));
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    TakeTier(out, tiers_[i], was.stats.tiers[i], now.stats.tiers[i], slots);
  }
}

void StatsFeed::TakeHost(Payload& out, const PyManager::Snapshot& before,
                         const PyManager::Snapshot& now) {
  const terrace::ManagerStats& stats = now.stats;
  const terrace::ManagerStats& was = before.stats;
  const double slots = static_cast<double>(std::max<std::uint64_t>(stats.slot_count, 1));
  const auto pinned = static_cast<double>(stats.pinned_chunks);
  const auto writing = static_cast<double>(stats.writing_chunks);
  // vLLM's own payload always has these.
  out.PutGauge(host_.usage, (pinned + writing) / slots);
  out.PutGauge(host_.write_usage, writing / slots);
  out.PutGauge(host_.read_usage, pinned / slots);
  // Slots for a promotion are taken one by one.
  std::uint64_t singles = stats.allocation_sizes[0] - was.allocation_sizes[0];
  for (std::size_t i = 0; i < now.store_sizes.size(); ++i) {
    const auto [size, count] = now.store_sizes[i];
    const std::uint64_t more =
        count - (i < before.store_sizes.size() ? before.store_sizes[i].second : 0);
    if (size == 1) singles -= more;
    out.Sample(host_.allocation_size, nb::int_(size), more);
  }
  out.Sample(host_.allocation_size, nb::int_(1), singles);
  if (now.store_threshold >= 2) {
    out.PutCount(host_.skipped_stores, stats.skipped_store_chunks - was.skipped_store_chunks);
  }
  out.Count(host_.promotion_refusals, was.promotion_refusals, stats.promotion_refusals);
  const std::uint64_t hits = now.hit_time.count - before.hit_time.count;
  std::uint64_t misses = now.misses - before.misses;
  if (!tiers_.empty()) {
    misses = stats.miss_time.count - was.miss_time.count;
    out.Sample(host_.lookup_time, before.hit_time, now.hit_time);
    out.Sample(host_.lookup_time, was.miss_time, stats.miss_time);
  }
  out.Count(host_.queried, 0, hits + misses);
  out.Count(host_.hit, 0, hits);
  out.Count(host_.evicted, was.evicted_chunks, stats.evicted_chunks);
  out.Count(host_.store_refusals, was.store_refusals, stats.store_refusals);
  out.Count(host_.promotions_overdue, was.promotions_overdue, stats.promotions_overdue);
  out.Count(host_.lookups_overdue, was.lookups_overdue, stats.lookups_overdue);
  out.Count(host_.resets, was.resets, stats.resets);
  out.Gauge(host_.slots, static_cast<double>(stats.slot_count));
  out.Gauge(host_.ready, static_cast<double>(stats.ready_chunks));
  out.Gauge(host_.orphaned, static_cast<double>(stats.orphaned_slots));
  out.Gauge(host_.stuck, static_cast<double>(stats.stuck_slots));
  const auto engine = static_cast<std::size_t>(terrace::Lane::kEngine);
  const auto control = static_cast<std::size_t>(terrace::Lane::kControl);
  out.Count(host_.engine_wait, was.lock.wait[engine].sum, stats.lock.wait[engine].sum);
  out.Count(host_.control_wait, was.lock.wait[control].sum, stats.lock.wait[control].sum);
}

void StatsFeed::TakeDirection(Payload& out, Direction& direction, const TransferStats& was,
                              const TransferStats& now, double slots) {
  out.Count(direction.bytes, was.bytes, now.bytes);
  out.Count(direction.seconds, was.time, now.time);
  out.Count(direction.failed_jobs, was.failed_jobs, now.failed_jobs);
  out.Gauge(direction.jobs_in_flight, static_cast<double>(now.jobs_in_flight));
  out.Gauge(direction.slots_in_flight, static_cast<double>(now.slots_in_flight) / slots);
}

void StatsFeed::TakeTier(Payload& out, Tier& tier, const TierStats& was, const TierStats& now,
                         double slots) const {
  const auto dropped = [](const TierStats& stats) {
    return stats.dropped_by_backpressure_chunks + stats.dropped_while_down_chunks +
           stats.dropped_while_waiting_chunks;
  };
  out.Count(tier.queried, was.queried_chunks, now.queried_chunks);
  out.Count(tier.hit, was.hit_chunks, now.hit_chunks);
  TakeDirection(out, tier.promotion, was.promotion, now.promotion, slots);
  TakeDirection(out, tier.cascade, was.cascade, now.cascade, slots);
  out.Sample(tier.lookup_time, was.lookup_time, now.lookup_time);
  out.Sample(tier.lookup_delay, was.lookup_delay, now.lookup_delay);
  out.Sample(tier.promotion_latency, was.promotion_latency, now.promotion_latency);
  out.Sample(tier.failed_promotion_latency, was.failed_promotion_latency,
             now.failed_promotion_latency);
  if (now.seconds_per_mib > 0) out.Gauge(tier.seconds_per_mib, now.seconds_per_mib);
  out.Count(tier.backpressure_drops, was.dropped_by_backpressure_chunks,
            now.dropped_by_backpressure_chunks);
  out.Count(tier.faults, was.faults, now.faults);
  out.Count(tier.downs, was.downs, now.downs);
  out.Count(tier.unknown_reports, was.unknown_reports, now.unknown_reports);
  out.Count(tier.dropped, dropped(was), dropped(now));
  out.Gauge(tier.up, now.health == TierHealth::kDown ? 0 : 1);
  TakeOwn(out, tier, now);
}

void StatsFeed::TakeOwn(Payload& out, Tier& tier, const TierStats& now) const {
  tier.own.resize(now.counters.size());
  for (std::size_t i = 0; i < now.counters.size(); ++i) {
    const terrace::CounterValue& counter = now.counters[i];
    auto& [name, series] = tier.own[i];
    if (name != counter.name) {
      name = std::string(counter.name);
      series = {MetricOf("own", words_.gauge), nb::make_tuple(tier.label, name.c_str()), {}};
    }
    out.Gauge(series, static_cast<double>(counter.value));
  }
}

}  // namespace terrace_kv
