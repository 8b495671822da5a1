// What the table of metrics.cc is made with: how numbers of a snapshot become samples.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <string>

#include "node/metrics.h"

namespace terrace::metric_samples {

using Label = std::string_view;

inline double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// Times, as far as a metric shows them: from 2^first to 2^last nanoseconds, each bound twice the
// one before it. What is counted below a bound is shorter than it.
struct Range {
  std::size_t first;
  std::size_t last;
};
inline constexpr Range kShort{8, 30};  // Of locks and of what is done under one.
inline constexpr Range kLong{16, 36};  // Of I/O.
inline constexpr std::string_view kShortWords = "2.56e-07 s to 1.07 s, each twice the one before";
inline constexpr std::string_view kLongWords = "6.55e-05 s to 68.7 s, each twice the one before";

template <Range kRange>
void AddDurations(MetricSink& sink, MetricSink::Values labels, const DurationHistogram& durations) {
  std::array<MetricSink::Bucket, kRange.last - kRange.first + 1> buckets;
  std::uint64_t below = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::size_t bound = kRange.first + i;
    for (; next <= bound; ++next) below += durations.counts[next];
    buckets[i] = {Seconds(std::chrono::nanoseconds(std::int64_t{1} << bound)), below};
  }
  sink.Add(labels, buckets, durations.count, Seconds(durations.sum));
}

// Counts by sizes `first`, 4 * `first` and so on; the last one has all that are larger.
template <std::size_t kCount>
void AddSizes(MetricSink& sink, MetricSink::Values labels, std::uint64_t first,
              const std::array<std::uint64_t, kCount>& sizes, std::uint64_t sum) {
  std::array<MetricSink::Bucket, kCount - 1> buckets;
  std::uint64_t count = 0;
  std::uint64_t bound = first;
  for (std::size_t i = 0; i < buckets.size(); ++i, bound *= 4) {
    buckets[i] = {static_cast<double>(bound), count += sizes[i]};
  }
  sink.Add(labels, buckets, count + sizes.back(), static_cast<double>(sum));
}

// A number that stands somewhere in the snapshot.
template <auto kMember>
void Manager(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  sink.Add({}, std::uint64_t{now.manager.*kMember});
}
template <auto kMember>
void Control(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  sink.Add({}, std::uint64_t{now.manager.control.*kMember});
}
template <auto kMember>
void OfConnector(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  sink.Add({}, std::uint64_t{now.connector.*kMember});
}

template <typename Visit>
void ForEachTier(const MetricsSnapshot& now, const Visit& visit) {
  for (std::size_t i = 0; i < now.manager.tiers.size(); ++i) {
    const TierStats& tier = now.manager.tiers[i];
    const std::string label = TierLabel(i + 1, tier.type);
    visit(Label(label), tier);
  }
}
template <auto kMember>
void Tier(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  ForEachTier(now, [&](Label label, const TierStats& tier) { sink.Add({label}, tier.*kMember); });
}

// Of each direction between host memory and a tier.
template <typename Visit>
void ForEachTransfer(const MetricsSnapshot& now, const Visit& visit) {
  ForEachTier(now, [&](Label label, const TierStats& tier) {
    visit(label, Label("promotion"), tier.promotion);
    visit(label, Label("cascade"), tier.cascade);
    visit(label, Label("serve"), tier.serve);
  });
}
template <auto kMember>
void Transfer(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  ForEachTransfer(now, [&](Label tier, Label direction, const TransferStats& stats) {
    sink.Add({tier, direction}, stats.*kMember);
  });
}

// Of each direction between the engine's memory and host memory.
template <typename Visit>
void ForEachCopy(const MetricsSnapshot& now, const Visit& visit) {
  visit(Label("load"), now.connector.load);
  visit(Label("store"), now.connector.store);
}
template <auto kMember>
void Copy(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  ForEachCopy(now, [&](Label direction, const EngineTransferStats& stats) {
    sink.Add({direction}, stats.*kMember);
  });
}

template <auto kMember>
void OfLock(const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
  static_assert(kLaneCount == 2);
  const auto& by_lane = now.manager.lock.*kMember;
  AddDurations<kShort>(sink, {"engine"}, by_lane[static_cast<std::size_t>(Lane::kEngine)]);
  AddDurations<kShort>(sink, {"control"}, by_lane[static_cast<std::size_t>(Lane::kControl)]);
}

inline std::uint64_t FreeSlots(const ManagerStats& stats) {
  const std::uint64_t used = stats.ready_chunks + stats.writing_chunks + stats.orphaned_slots;
  return stats.slot_count - std::min(used, stats.slot_count);
}

inline std::uint64_t MissedChunks(const ConnectorStats& stats) {
  std::uint64_t missed = stats.asked_chunks;
  for (const std::uint64_t matched : stats.matched_chunks) missed -= matched;
  return missed;
}

}  // namespace terrace::metric_samples
