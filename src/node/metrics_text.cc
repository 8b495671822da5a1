#include "node/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

// The length of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Too long a form, a surrogate, or beyond the last character.
  const bool wrong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F) ||
                     (byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F);
  return wrong ? 0 : length;
}

}  // namespace

std::string EscapeLabelValue(std::string_view value) {
  std::string escaped;
  while (!value.empty()) {
    const std::size_t length = Utf8Length(value);
    switch (value[0]) {
      case '\\':
        escaped += "\\\\";
        break;
      case '"':
        escaped += "\\\"";
        break;
      case '\n':
        escaped += "\\n";
        break;
      default:
        escaped += length == 0 ? "?" : value.substr(0, length);
    }
    value.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return escaped;
}

bool IsMetricName(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

void MetricsText::Begin(std::string_view name, MetricType type, std::string_view labels,
                        std::string_view help) {
  name_ = name;
  labels_.clear();
  while (!labels.empty()) {
    labels_.push_back(labels.substr(0, labels.find(',')));
    labels.remove_prefix(std::min(labels.size(), labels_.back().size() + 1));
  }
  text_ += fmt::format("# HELP {} {}.\n# TYPE {} {}\n", name, help, name, MetricTypeName(type));
}

void MetricsText::Add(Values labels, std::uint64_t value) {
  Line("", Pairs(labels), "", fmt::format("{}", value));
}

void MetricsText::Add(Values labels, double value) {
  Line("", Pairs(labels), "", fmt::format("{}", value));
}

void MetricsText::Add(Values labels, std::span<const Bucket> buckets, std::uint64_t count,
                      double sum) {
  const std::string pairs = Pairs(labels);
  for (const Bucket& bucket : buckets) {
    Line("_bucket", pairs, fmt::format("{}", bucket.le), fmt::format("{}", bucket.count));
  }
  Line("_bucket", pairs, "+Inf", fmt::format("{}", count));
  Line("_sum", pairs, "", fmt::format("{}", sum));
  Line("_count", pairs, "", fmt::format("{}", count));
}

void MetricsText::AddInfo(const MetricLabels& labels) {
  TERRACE_CHECK(labels.size() == labels_.size(), "an info metric with other labels than its own");
  std::string pairs;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    TERRACE_CHECK(labels[i].first == labels_[i], "an info metric with other labels than its own");
    if (i > 0) pairs += ',';
    pairs += fmt::format("{}=\"{}\"", labels[i].first, EscapeLabelValue(labels[i].second));
  }
  Line("", pairs, "", "1");
}

void MetricsText::Line(std::string_view suffix, std::string_view labels, std::string_view le,
                       std::string_view value) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty() || !le.empty()) {
    text_ += '{';
    text_ += labels;
    if (!le.empty()) text_ += fmt::format("{}le=\"{}\"", labels.empty() ? "" : ",", le);
    text_ += '}';
  }
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

std::string MetricsText::Pairs(Values labels) const {
  TERRACE_CHECK(labels.size() == labels_.size(), "a sample with other labels than its metric");
  std::string pairs;
  auto name = labels_.begin();
  for (const std::string_view value : labels) {
    if (!pairs.empty()) pairs += ',';
    pairs += fmt::format("{}=\"{}\"", *name++, EscapeLabelValue(value));
  }
  return pairs;
}

namespace {

bool InTable(std::string_view name) {
  const auto table = MetricDefinitions();
  return std::any_of(table.begin(), table.end(), [&](const MetricDefinition& metric) {
    if (metric.type != MetricType::kHistogram) return name == metric.name;
    if (!name.starts_with(metric.name)) return false;
    const std::string_view suffix = name.substr(metric.name.size());
    return suffix.empty() || suffix == "_bucket" || suffix == "_sum" || suffix == "_count";
  });
}

// All series of one name must stand together, so tiers of one kind are gone through name by name.
void RenderOwnCounters(std::span<const TierStats> tiers, MetricsText& text) {
  std::vector<std::string_view> names;
  for (const TierStats& tier : tiers) {
    for (const CounterValue& counter : tier.counters) {
      const bool is_new = std::find(names.begin(), names.end(), counter.name) == names.end();
      if (is_new && IsMetricName(counter.name) && !InTable(counter.name)) {
        names.push_back(counter.name);
      }
    }
  }
  for (const std::string_view name : names) {
    text.Begin(name, name.ends_with("_total") ? MetricType::kCounter : MetricType::kGauge, "tier",
               "Counted by the tier itself");
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      const auto& counters = tiers[i].counters;
      const auto found = std::find_if(counters.begin(), counters.end(),
                                      [&](const CounterValue& c) { return c.name == name; });
      if (found != counters.end()) text.Add({TierLabel(i + 1, tiers[i].type)}, found->value);
    }
  }
}

}  // namespace

std::string RenderMetrics(const NodeFacts& facts, const MetricsSnapshot& now) {
  MetricsText text;
  for (const MetricDefinition& metric : MetricDefinitions()) {
    text.Begin(metric.name, metric.type, metric.labels, metric.help);
    metric.collect(facts, now, text);
  }
  RenderOwnCounters(now.manager.tiers, text);
  return std::move(text).Take();
}

}  // namespace terrace
