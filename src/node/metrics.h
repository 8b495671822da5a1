// The metrics of a node: one table, from which come the exposition and (checked by tests/metrics/)
// docs/metrics.md, so that the two can't drift apart.
//
// Nothing is counted here. A scrape takes a snapshot of what manager, connector and tiers count
// anyway, and the table says which number of it is which metric. That is why there is no client
// library: prometheus-cpp keeps counters of its own, which would have to be brought up to date from
// the snapshot, and what would be left of it, its writer, is a page.
//
// To add a metric: a line in the table, a line in the docs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/connector_stats.h"
#include "terrace/manager_stats.h"

namespace terrace {

// Names and values of labels, in order.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// What does not change while a node runs.
struct NodeFacts {
  double start_time_s = 0;          // Since 1970.
  MetricLabels build;               // Of terrace_build_info.
  std::vector<MetricLabels> tiers;  // Of terrace_config_info: host memory, then the tiers.
};

// Taken under one hold of the manager's lock, so that all of it agrees.
struct MetricsSnapshot {
  ManagerStats manager;
  ConnectorStats connector;
  std::uint64_t refused_scrapes = 0;
};

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };
std::string_view MetricTypeName(MetricType type);

// Where a metric's samples go, one call each. Values of labels are in the order of the definition.
class MetricSink {
 public:
  // A histogram's buckets: cumulative counts and their upper bounds, without +Inf.
  struct Bucket {
    double le = 0;
    std::uint64_t count = 0;
  };
  using Values = std::initializer_list<std::string_view>;

  virtual ~MetricSink() = default;
  virtual void Add(Values labels, std::uint64_t value) = 0;
  virtual void Add(Values labels, double value) = 0;
  virtual void Add(Values labels, std::span<const Bucket> buckets, std::uint64_t count,
                   double sum) = 0;
  // A sample of 1.
  virtual void AddInfo(const MetricLabels& labels) = 0;
};

struct MetricDefinition {
  std::string_view name;  // `terrace_<part>_<noun>_<unit>[_total]`.
  MetricType type;
  std::string_view labels;   // Names, with commas between them.
  std::string_view buckets;  // Of a histogram, in words.
  std::string_view help;     // A sentence without its full stop.
  void (*collect)(const NodeFacts& facts, const MetricsSnapshot& now, MetricSink& sink);
};

std::span<const MetricDefinition> MetricDefinitions();

// How tiers are named in labels: 0 is host memory, `i` + 1 the i-th behind it. "1:file".
std::string TierLabel(std::size_t number, std::string_view type);

// All of it in Prometheus' text format, version 0.0.4, UTF-8. Behind the table's metrics come the
// tiers' own counters, with the label `tier`; one whose name is not fit for a metric, or is in the
// table, is left out.
std::string RenderMetrics(const NodeFacts& facts, const MetricsSnapshot& now);

}  // namespace terrace
