// Prometheus' text format, version 0.0.4.
#pragma once

#include <string>
#include <string_view>

#include "node/metrics.h"

namespace terrace {

// A value as it stands between the quotes of a label: valid UTF-8, on one line. What is not UTF-8
// becomes "?", a byte each.
std::string EscapeLabelValue(std::string_view value);

// Whether Prometheus takes it as a metric's name.
bool IsMetricName(std::string_view name);

// Writes one metric after the other. Thread-compatible.
class MetricsText final : public MetricSink {
 public:
  // The samples that follow are of this metric. `labels` as in MetricDefinition.
  void Begin(std::string_view name, MetricType type, std::string_view labels,
             std::string_view help);
  void Add(Values labels, std::uint64_t value) override;
  void Add(Values labels, double value) override;
  void Add(Values labels, std::span<const Bucket> buckets, std::uint64_t count,
           double sum) override;
  // Pre: the names are those of Begin(), in order.
  void AddInfo(const MetricLabels& labels) override;

  std::string Take() && { return std::move(text_); }

 private:
  // `name{a="x",le="1"} value`.
  void Line(std::string_view suffix, std::string_view labels, std::string_view le,
            std::string_view value);
  // `a="x",b="y"`; empty without labels.
  std::string Pairs(Values labels) const;

  std::string name_;
  std::vector<std::string_view> labels_;
  std::string text_;
};

}  // namespace terrace
