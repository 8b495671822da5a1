// A strict reader of Prometheus' text format 0.0.4, to check what is written: it takes less than
// Prometheus does, and names the first thing that it does not take.
#pragma once

#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::testing_support {

struct Sample {
  std::string name;  // With _bucket, _sum, _count.
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};

struct MetricFamily {
  std::string type;
  std::string help;
  std::vector<Sample> samples;
};

struct Metrics {
  std::string error;  // Empty if all is right.
  std::map<std::string, MetricFamily> families;

  // Of the one sample with exactly these label values, in order; -1 if there is none.
  double Value(const std::string& name, const std::vector<std::string>& labels = {}) const {
    for (const auto& [family_name, family] : families) {
      for (const Sample& sample : family.samples) {
        std::vector<std::string> values;
        for (const auto& [label, value] : sample.labels) values.push_back(value);
        if (sample.name == name && values == labels) return sample.value;
      }
    }
    return -1;
  }
};

namespace metrics_parser {

inline bool TakeName(std::string_view& text, std::string& name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  std::size_t size = 0;
  while (size < text.size() &&
         (letter(text[size]) || (size > 0 && text[size] >= '0' && text[size] <= '9'))) {
    ++size;
  }
  name = text.substr(0, size);
  text.remove_prefix(size);
  return size > 0;
}

inline bool TakeText(std::string_view& text, std::string_view wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(wanted.size());
  return true;
}

// What stands between quotes.
inline bool TakeLabelValue(std::string_view& text, std::string& value) {
  if (!TakeText(text, "\"")) return false;
  while (!text.empty() && text[0] != '"') {
    char c = text[0];
    text.remove_prefix(1);
    if (c == '\\') {
      if (text.empty()) return false;
      c = text[0] == 'n' ? '\n' : text[0];
      if (c != '\n' && c != '\\' && c != '"') return false;
      text.remove_prefix(1);
    }
    value += c;
  }
  return TakeText(text, "\"");
}

inline bool TakeLabels(std::string_view& text, Sample& sample) {
  if (!TakeText(text, "{")) return true;
  do {
    std::string name, value;
    if (!TakeName(text, name) || !TakeText(text, "=") || !TakeLabelValue(text, value)) return false;
    for (const auto& label : sample.labels) {
      if (label.first == name) return false;
    }
    sample.labels.emplace_back(name, value);
  } while (TakeText(text, ","));
  return TakeText(text, "}");
}

inline bool TakeValue(std::string_view text, double& value) {
  if (text == "+Inf") return value = INFINITY, true;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

// Of one series: bounds and counts that grow, the last bound +Inf and its count that of all.
inline std::string CheckHistogram(const std::string& name, const MetricFamily& family) {
  struct Series {
    double le = -INFINITY, count = 0, total = -1;
    bool sum = false;
  };
  std::map<std::string, Series> series;
  for (const Sample& sample : family.samples) {
    std::string key;
    double le = NAN;
    for (const auto& [label, value] : sample.labels) {
      if (label == "le") {
        if (!TakeValue(value, le)) return name + ": a bound is no number: " + value;
      } else {
        key += label + "=" + value + ";";
      }
    }
    Series& s = series[key];
    if (sample.name == name + "_bucket") {
      if (!(le > s.le) || sample.value < s.count) return name + ": buckets do not grow: " + key;
      s.le = le;
      s.count = sample.value;
    } else if (sample.name == name + "_sum") {
      s.sum = true;
    } else {
      s.total = sample.value;
    }
  }
  for (const auto& [key, s] : series) {
    if (s.le != INFINITY || s.total != s.count || !s.sum) return name + ": incomplete: " + key;
  }
  return "";
}

}  // namespace metrics_parser

inline Metrics ParseMetrics(std::string_view text) {
  using namespace metrics_parser;  // NOLINT: a test's
  Metrics metrics;
  std::set<std::string> seen;  // Series.
  std::string current;
  const auto fail = [&](std::string_view line, const char* why) {
    metrics.error = std::string(why) + ": " + std::string(line);
    return metrics;
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == text.npos) return fail(text, "no newline at the end");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    std::string_view rest = line;
    std::string name;
    if (TakeText(rest, "# HELP ")) {
      if (!TakeName(rest, name) || !TakeText(rest, " ") || rest.empty()) return fail(line, "HELP");
      if (metrics.families.contains(name)) return fail(line, "a second time");
      metrics.families[name].help = rest;
      current = name;
    } else if (TakeText(rest, "# TYPE ")) {
      if (!TakeName(rest, name) || name != current || !TakeText(rest, " "))
        return fail(line, "TYPE");
      if (rest != "counter" && rest != "gauge" && rest != "histogram") return fail(line, "TYPE");
      if (!metrics.families[name].type.empty()) return fail(line, "a second time");
      metrics.families[name].type = rest;
    } else {
      Sample sample;
      if (!TakeName(rest, sample.name) || !TakeLabels(rest, sample)) return fail(line, "sample");
      const std::string series(line.substr(0, line.size() - rest.size()));
      if (!seen.insert(series).second) return fail(line, "a second time");
      if (!TakeText(rest, " ") || !TakeValue(rest, sample.value)) return fail(line, "value");
      MetricFamily& family = metrics.families[current];
      std::string_view suffix = sample.name;
      if (!TakeText(suffix, current)) return fail(line, "not in its family");
      const bool is_histogram = family.type == "histogram";
      if (is_histogram ? suffix != "_bucket" && suffix != "_sum" && suffix != "_count"
                       : !suffix.empty()) {
        return fail(line, "not in its family");
      }
      if (family.type.empty()) return fail(line, "without a type");
      if (family.type != "gauge" && sample.value < 0) return fail(line, "below zero");
      family.samples.push_back(std::move(sample));
    }
  }
  for (const auto& [name, family] : metrics.families) {
    if (family.type == "histogram") {
      if (metrics.error = CheckHistogram(name, family); !metrics.error.empty()) break;
    }
  }
  return metrics;
}

}  // namespace terrace::testing_support
