#include "node/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "node/metrics_text.h"
#include "tests/support/metrics_parser.h"
#include "tests/support/metrics_snapshot.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::Facts;
using testing_support::Metrics;
using testing_support::ParseMetrics;
using testing_support::Snapshot;

// The lines of one metric, its HELP and TYPE included.
std::string Lines(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find("# HELP " + name + " ");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find("# HELP ", begin + 1) - begin);
}

TEST(RenderMetrics, WritesEachKindAsPrometheusHasIt) {
  const std::string text = RenderMetrics(Facts(), Snapshot());
  EXPECT_EQ(Lines(text, "terrace_host_slots"),
            "# HELP terrace_host_slots Chunks that host memory holds when it is full.\n"
            "# TYPE terrace_host_slots gauge\n"
            "terrace_host_slots 90000\n");
  EXPECT_EQ(Lines(text, "terrace_node_start_time_seconds"),
            "# HELP terrace_node_start_time_seconds When the node started, since 1970; everything "
            "is counted from then.\n"
            "# TYPE terrace_node_start_time_seconds gauge\n"
            "terrace_node_start_time_seconds 1.5\n");
  EXPECT_EQ(Lines(text, "terrace_host_allocation_chunks"),
            "# HELP terrace_host_allocation_chunks Chunks that one reservation needed room for.\n"
            "# TYPE terrace_host_allocation_chunks histogram\n"
            "terrace_host_allocation_chunks_bucket{le=\"1\"} 1\n"
            "terrace_host_allocation_chunks_bucket{le=\"4\"} 3\n"
            "terrace_host_allocation_chunks_bucket{le=\"16\"} 6\n"
            "terrace_host_allocation_chunks_bucket{le=\"64\"} 10\n"
            "terrace_host_allocation_chunks_bucket{le=\"256\"} 15\n"
            "terrace_host_allocation_chunks_bucket{le=\"1024\"} 21\n"
            "terrace_host_allocation_chunks_bucket{le=\"4096\"} 28\n"
            "terrace_host_allocation_chunks_bucket{le=\"16384\"} 36\n"
            "terrace_host_allocation_chunks_bucket{le=\"65536\"} 45\n"
            "terrace_host_allocation_chunks_bucket{le=\"262144\"} 55\n"
            "terrace_host_allocation_chunks_bucket{le=\"+Inf\"} 66\n"
            "terrace_host_allocation_chunks_sum 5022\n"
            "terrace_host_allocation_chunks_count 66\n");
  EXPECT_EQ(
      Lines(text, "terrace_config_info"),
      "# HELP terrace_config_info Always 1, for host memory (0:host) and each tier; what it "
      "was configured to be.\n"
      "# TYPE terrace_config_info gauge\n"
      "terrace_config_info{tier=\"0:host\",source=\"host\",capacity_bytes=\"8\","
      "chunk_bytes=\"1\",tokens_per_chunk=\"2\",eviction_policy=\"lru\",store_threshold=\"0\","
      "model=\"m\\\"\\\\\\n?\xc3\xa9\",identity=\"ab\"} 1\n");
}

TEST(RenderMetrics, WritesDurationsInSecondsBelowPowersOfTwo) {
  MetricsSnapshot now;
  for (const int ns : {0, 255, 256, 511, 512}) {
    now.connector.lookup_sync.Add(std::chrono::nanoseconds(ns));
  }
  now.connector.lookup_sync.Add(std::chrono::seconds(2));
  const std::string text =
      Lines(RenderMetrics(Facts(), now), "terrace_request_lookup_sync_seconds");
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"2.56e-07\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"5.12e-07\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"1.024e-06\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"1.073741824\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"+Inf\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("_sum 2.000001534\n"));
  EXPECT_THAT(text, HasSubstr("_count 6\n"));
}

TEST(RenderMetrics, EveryMetricOfTheTableIsThereAndNoOther) {
  const Metrics metrics = ParseMetrics(RenderMetrics(Facts(), Snapshot()));
  ASSERT_EQ(metrics.error, "");
  std::set<std::string> wanted = {"terrace_x_things_total", "terrace_x_things"};
  for (const MetricDefinition& metric : MetricDefinitions()) {
    wanted.emplace(metric.name);
    const auto found = metrics.families.find(std::string(metric.name));
    ASSERT_NE(found, metrics.families.end()) << metric.name;
    EXPECT_EQ(found->second.type, MetricTypeName(metric.type)) << metric.name;
    EXPECT_FALSE(found->second.samples.empty()) << metric.name;
    for (const auto& sample : found->second.samples) {
      std::string labels;
      for (const auto& [name, value] : sample.labels) {
        if (name != "le") labels += (labels.empty() ? "" : ",") + name;
      }
      EXPECT_EQ(labels, metric.labels) << metric.name;
    }
  }
  std::set<std::string> there;
  for (const auto& [name, family] : metrics.families) there.insert(name);
  EXPECT_EQ(there, wanted);
}

// A number of the snapshot that no metric shows would be a hole in the table.
TEST(RenderMetrics, ShowsEveryNumberOfTheSnapshot) {
  const MetricsSnapshot now = Snapshot();
  const Metrics metrics = ParseMetrics(RenderMetrics(Facts(), now));
  std::multiset<double> values;
  for (const auto& [name, family] : metrics.families) {
    for (const auto& sample : family.samples) values.insert(sample.value);
  }
  for (std::uint64_t n = testing_support::kFirstNumber; n <= now.refused_scrapes; ++n) {
    const auto value = static_cast<double>(n);
    EXPECT_GE(values.count(value) + values.count(value / 1000), 1u) << n;
  }
}

TEST(RenderMetrics, PartsAddUpToTheWhole) {
  MetricsSnapshot now = Snapshot();
  const Metrics metrics = ParseMetrics(RenderMetrics(Facts(), now));
  EXPECT_EQ(metrics.Value("terrace_request_missed_chunks_total"), 100 - 21);
  EXPECT_EQ(metrics.Value("terrace_host_free_slots"), 90'000 - 5001 - 5003 - 5004);
}

TEST(RenderMetrics, LeavesOutCountersOfTiersThatWouldBreakTheRest) {
  MetricsSnapshot now;
  now.manager.tiers.resize(3);
  now.manager.tiers[0].type = "a\"b";
  now.manager.tiers[0].counters = {{"", 1},
                                   {"9x", 2},
                                   {"a b", 3},
                                   {"a{b}", 4},
                                   {"x\n", 5},
                                   {"terrace_host_slots", 6},
                                   {"terrace_lock_wait_seconds_sum", 7},
                                   {"good_total", 8},
                                   {"good_total", 9}};
  now.manager.tiers[2].type = "c";
  now.manager.tiers[2].counters = {{"other", 10}, {"good_total", 11}};
  const std::string text = RenderMetrics(Facts(), now);
  const Metrics metrics = ParseMetrics(text);
  EXPECT_EQ(metrics.error, "");
  EXPECT_EQ(metrics.families.size(), MetricDefinitions().size() + 2);
  EXPECT_EQ(Lines(text, "good_total"),
            "# HELP good_total Counted by the tier itself.\n# TYPE good_total counter\n"
            "good_total{tier=\"1:a\\\"b\"} 8\ngood_total{tier=\"3:c\"} 11\n");
}

TEST(RenderMetrics, WithoutTiersItsMetricsHaveNoSeries) {
  const Metrics metrics = ParseMetrics(RenderMetrics(Facts(), {}));
  EXPECT_EQ(metrics.error, "");
  EXPECT_TRUE(metrics.families.at("terrace_tier_jobs_total").samples.empty());
  EXPECT_EQ(metrics.Value("terrace_host_free_slots"), 0);
}

TEST(EscapeLabelValue, KeepsUtf8AndNothingElse) {
  EXPECT_EQ(EscapeLabelValue("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
  EXPECT_EQ(EscapeLabelValue("é€😀"), "é€😀");
  EXPECT_EQ(
      EscapeLabelValue("\xc0\x80|\xed\xa0\x80|\xf4\x90\x80\x80|\xe2\x82|\x80|\xf0\x80\x80\x80"),
      "??|???|????|??|?|????");
}

// Names tell part, noun and unit, and only counters end in _total.
TEST(MetricDefinitions, FollowTheConventions) {
  std::set<std::string_view> names;
  for (const MetricDefinition& metric : MetricDefinitions()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_TRUE(IsMetricName(metric.name)) << metric.name;
    EXPECT_TRUE(metric.name.starts_with("terrace_")) << metric.name;
    EXPECT_EQ(metric.name.ends_with("_total"), metric.type == MetricType::kCounter) << metric.name;
    EXPECT_EQ(metric.buckets.empty(), metric.type != MetricType::kHistogram) << metric.name;
    EXPECT_FALSE(metric.help.empty() || metric.help.ends_with('.')) << metric.name;
    EXPECT_THAT(std::string(metric.help), Not(testing::AnyOf(HasSubstr("\n"), HasSubstr("\\"))));
  }
}

}  // namespace
}  // namespace terrace
