// docs/metrics.md has a row for every metric, as the table in src/node/metrics.cc has it; and a
// whole exposition, byte for byte, in rendered.txt beside this file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "node/metrics.h"
#include "terrace/node.h"
#include "tests/contract/temp_dir.h"
#include "tests/support/http_client.h"
#include "tests/support/metrics_parser.h"
#include "tests/support/metrics_snapshot.h"

namespace terrace {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Page() { return ReadFile(TERRACE_SOURCE_DIR "/docs/metrics.md"); }

std::string Code(std::string_view text) {
  return text.empty() ? "" : "`" + std::string(text) + "`";
}

std::string RowOf(const MetricDefinition& metric) {
  std::string labels;
  for (const char c : Code(metric.labels)) labels += c == ',' ? "`, `" : std::string(1, c);
  return "| " + Code(metric.name) + " | " + std::string(MetricTypeName(metric.type)) + " | " +
         labels + " | " + std::string(metric.buckets) + " | " + std::string(metric.help) + ". |";
}

// The table rows under one heading that begin with a name in backquotes.
std::vector<std::string> RowsUnder(const std::string& heading) {
  std::istringstream page(Page());
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) inside = line == "## " + heading;
    if (inside && line.starts_with("| `")) rows.push_back(line);
  }
  return rows;
}

TEST(MetricsPage, HasTheRowsOfEveryMetric) {
  std::vector<std::string> wanted;
  std::string text;
  for (const MetricDefinition& metric : MetricDefinitions()) {
    wanted.push_back(RowOf(metric));
    text += wanted.back() + "\n";
  }
  EXPECT_THAT(RowsUnder("Metrics"), ElementsAreArray(wanted)) << "wanted:\n" << text;
}

TEST(MetricsPage, NamesWhatEachTierCountsItself) {
  const testing::TempDir dir;
  const testing::TempDir vllm_dir;
  const auto identity =
      CacheIdentity::Create({"model", "1", "byte", "toy", 1, 16, 16, 0, 1, "toy"}).value();
  const auto node = Node::Create(
      ParseNodeConfig(R"({"cpu_bytes_to_use": 4096, "metrics_listen": "127.0.0.1:0",
          "secondary_tiers": [{"type": "memory", "bytes": 4096},
                              {"type": "peer", "port": 0},
                              {"type": "file", "root_dir": ")" +
                      dir.path() + R"("}, {"type": "file", "layout": "vllm", "root_dir": ")" +
                      vllm_dir.path() + "\"}]}")
          .value(),
      identity);
  ASSERT_TRUE(node.ok()) << node.error().message;
  const std::string answer = testing_support::HttpGet(node.value()->metrics_address(), "/metrics");
  const auto metrics = testing_support::ParseMetrics(answer.substr(answer.find("# HELP")));
  ASSERT_EQ(metrics.error, "");
  std::string rows;
  for (const std::string& row : RowsUnder("What tiers count themselves")) rows += row + "\n";
  std::size_t own = 0;
  for (const auto& [name, family] : metrics.families) {
    if (family.help != "Counted by the tier itself.") continue;
    ++own;
    EXPECT_THAT(rows, HasSubstr("| `" + name + "` | " + family.type + " |"));
  }
  EXPECT_EQ(own, RowsUnder("What tiers count themselves").size());
}

TEST(MetricsText, IsWhatItWasByteForByte) {
  const std::string text = RenderMetrics(testing_support::Facts(), testing_support::Snapshot());
  if (text != ReadFile(TERRACE_SOURCE_DIR "/tests/metrics/rendered.txt")) {
    std::ofstream("rendered.txt") << text;
    ADD_FAILURE() << "compare tests/metrics/rendered.txt with the rendered.txt written here; if "
                     "the change is right, copy it there";
  }
}

}  // namespace
}  // namespace terrace
