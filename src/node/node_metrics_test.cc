// A node's metrics as a scraper sees them: BR-54's scenario through manager, connector and a fake
// tier; and real nodes whose engine works while others scrape.
#include "node/node_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "manager/tiering_manager.h"
#include "terrace/eviction_policy.h"
#include "terrace/node.h"
#include "tests/support/fake_tier.h"
#include "tests/support/http_client.h"
#include "tests/support/keys.h"
#include "tests/support/metrics_parser.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing_support::FakeTier;
using testing_support::HttpGet;
using testing_support::Key;
using testing_support::Keys;
using testing_support::Metrics;
using testing_support::ParseMetrics;
using Status = MatchedTokens::Status;

constexpr std::uint32_t kChunk = 16;

CacheIdentity Identity() {
  return CacheIdentity::Create({"model", "1", "byte", "toy", 1, kChunk, kChunk, 0, 1, "toy"})
      .value();
}

std::string BodyOf(const std::string& answer) {
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  const std::size_t end = answer.find("\r\n\r\n");
  return end == answer.npos ? "" : answer.substr(end + 4);
}

// Scrapes, and finds fault with what is no proper exposition and with a counter that went down.
class Scraper {
 public:
  explicit Scraper(std::string address) : address_(std::move(address)) {}

  Metrics Scrape() {
    Metrics now = ParseMetrics(BodyOf(HttpGet(address_, "/metrics")));
    EXPECT_EQ(now.error, "");
    for (const auto& [name, family] : now.families) {
      if (family.type == "gauge") continue;
      for (const testing_support::Sample& sample : family.samples) {
        std::string series = sample.name;
        for (const auto& [label, value] : sample.labels) series += "," + label + "=" + value;
        double& last = last_[series];
        EXPECT_GE(sample.value, last) << series;
        last = sample.value;
      }
    }
    return now;
  }

 private:
  const std::string address_;
  std::map<std::string, double> last_;
};

// BR-54: of a request's 100 chunks the engine has 60; of the other 40 host memory has 20, the tier
// says it has 10, of which 2 do not arrive.
TEST(NodeMetrics, PartsOfARequestAddUpToTheWhole) {
  constexpr RequestId kOther{1}, kRequest{2}, kAborted{3};
  auto owned = std::make_unique<FakeTier>();
  FakeTier& tier = *owned;
  std::vector<std::unique_ptr<SecondaryTier>> tiers;
  tiers.push_back(std::move(owned));
  TieringManager manager(
      std::make_unique<HostTier>(64, MakeEvictionPolicy("lru", 64).value(), EventRecording::kOff),
      std::move(tiers));
  const auto connector = Connector::Create(manager, {.tokens_per_chunk = kChunk}).value();
  const auto metrics =
      NodeMetrics::Start({.metrics_listen = "127.0.0.1:0"}, Identity(), manager, *connector)
          .value();
  Scraper scraper(metrics->address());
  const auto done = [&](const EngineJob& job) {
    const TransferResult result{
        .id = job.id, .request = job.request, .bytes = job.chunks.size() * kChunk, .error = ""};
    connector->OnTransfersDone({&result, 1});
  };
  const auto blocks = [](std::int64_t first, std::int64_t count) {
    std::vector<BlockId> ids;
    for (std::int64_t i = 0; i < count; ++i) ids.emplace_back(first + i);
    return ids;
  };

  // Another request has left chunks 61 to 80 in host memory.
  connector->OnNewRequest(kOther, {.prompt_tokens = 20 * kChunk});
  connector->AppendKeys(kOther, Keys(61, 20));
  const auto other_blocks = blocks(1000, 20);
  const ScheduledRequest other{kOther, other_blocks, 0, 20 * kChunk};
  done(connector->BuildStep({.scheduled = {&other, 1}, .preempted = {}}).stores.at(0));
  connector->OnRequestFinished(kOther, 20 * kChunk);
  connector->BuildStep({});
  tier.FinishStore();
  connector->BuildStep({});
  tier.chunks.clear();
  for (const ChunkKey& key : Keys(81, 10)) tier.chunks.insert(key);

  connector->OnNewRequest(kRequest, {.prompt_tokens = 100 * kChunk});
  connector->AppendKeys(kRequest, Keys(1, 100));
  const auto match = [&] {
    return connector->GetMatchedTokens(kRequest, 60 * kChunk, 100 * kChunk);
  };
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(match().status, Status::kLater);
    connector->BuildStep({});
    EXPECT_EQ(scraper.Scrape().Value("terrace_request_asked_chunks_total"), 0);
  }
  EXPECT_EQ(scraper.Scrape().Value("terrace_tier_slots_in_flight", {"1:fake", "promotion"}), 10);
  std::vector<CopyOutcome> outcomes(10, CopyOutcome::kOk);
  outcomes[8] = outcomes[9] = CopyOutcome::kFailed;
  tier.chunks.erase(Key(89));
  tier.chunks.erase(Key(90));
  tier.FinishLoad(outcomes);
  connector->BuildStep({});
  MatchedTokens found = match();
  connector->BuildStep({});  // No blocks for it yet.
  found = match();
  ASSERT_EQ(found.tokens, 28 * kChunk);
  connector->UpdateAfterAlloc(kRequest, blocks(0, 100), 60 * kChunk, found.tokens);
  StepPlan plan = connector->BuildStep({});
  EXPECT_EQ(scraper.Scrape().Value("terrace_engine_chunks_in_flight", {"load"}), 28);
  EXPECT_EQ(scraper.Scrape().Value("terrace_host_pinned_chunks"), 28);
  done(plan.loads.at(0));

  connector->OnNewRequest(kAborted, {.prompt_tokens = 20 * kChunk});
  connector->AppendKeys(kAborted, Keys(201, 20));
  for (const ChunkKey& key : Keys(201, 20)) tier.chunks.insert(key);
  EXPECT_EQ(connector->GetMatchedTokens(kAborted, 0, 20 * kChunk).status, Status::kLater);
  connector->BuildStep({});
  connector->OnRequestFinished(kAborted, 0);
  connector->BuildStep({});
  tier.FinishLoad();
  connector->BuildStep({});

  const Metrics now = scraper.Scrape();
  const double asked = now.Value("terrace_request_asked_chunks_total");
  const double host = now.Value("terrace_request_matched_chunks_total", {"host"});
  const double disk = now.Value("terrace_request_matched_chunks_total", {"disk"});
  const double missed = now.Value("terrace_request_missed_chunks_total");
  EXPECT_EQ(asked, 40);
  EXPECT_EQ(host, 20);
  EXPECT_EQ(disk, 8);
  EXPECT_EQ(missed, 12);
  EXPECT_EQ(host + disk + missed, asked);
  EXPECT_EQ(now.Value("terrace_request_matched_tokens_total"), 28 * kChunk);
  EXPECT_EQ(now.Value("terrace_request_matches_total"), 1);
  // The aborted request's 20 are hits, too: they were found and fetched.
  EXPECT_EQ(now.Value("terrace_tier_hit_chunks_total", {"1:fake"}), 10 + 20);
  EXPECT_EQ(now.Value("terrace_tier_queried_chunks_total", {"1:fake"}), 10 + 1 + 20)
      << "nothing behind the first missing chunk";
  EXPECT_EQ(now.Value("terrace_tier_chunks_total", {"1:fake", "promotion", "ok"}), 8 + 20);
  EXPECT_EQ(now.Value("terrace_tier_chunks_total", {"1:fake", "promotion", "failed"}), 2);
  EXPECT_EQ(now.Value("terrace_tier_jobs_total", {"1:fake", "promotion", "failed"}), 1);
  EXPECT_EQ(now.Value("terrace_tier_promotion_latency_seconds_count", {"1:fake", "failed"}), 1);
  EXPECT_EQ(now.Value("terrace_tier_bytes_total", {"1:fake", "promotion"}), (8 + 20) * 100);
  EXPECT_EQ(now.Value("terrace_engine_chunks_total", {"load", "ok"}), 28);
  EXPECT_EQ(now.Value("terrace_engine_bytes_total", {"load"}), 28 * kChunk);
  EXPECT_EQ(now.Value("terrace_host_loaded_chunks_total"), 28);
  EXPECT_EQ(now.Value("terrace_request_lookup_sync_seconds_count"), 10);
  EXPECT_EQ(now.Value("terrace_request_lookup_async_seconds_count"), 2);
  EXPECT_EQ(now.Value("terrace_host_ready_chunks"), 20 + 8 + 20);
  EXPECT_EQ(now.Value("terrace_host_pinned_chunks"), 0);
  EXPECT_EQ(now.Value("terrace_host_free_slots"), 64 - 48);
  for (const char* direction : {"promotion", "cascade", "serve"}) {
    EXPECT_EQ(now.Value("terrace_tier_jobs_in_flight", {"1:fake", direction}), 0);
    EXPECT_EQ(now.Value("terrace_tier_slots_in_flight", {"1:fake", direction}), 0);
  }
  connector->OnRequestFinished(kRequest, 60 * kChunk);
  connector->BuildStep({});
}

struct ToyMemory final : EngineMemory {
  Result<void> ReadChunk(std::span<const BlockId>, std::span<std::byte>) override { return {}; }
  Result<void> WriteChunk(std::span<const std::byte>, std::span<const BlockId>) override {
    return {};
  }
};

std::unique_ptr<Node> MakeNode(const std::string& listen = "127.0.0.1:0") {
  auto node = Node::Create(
      ParseNodeConfig(R"({"cpu_bytes_to_use": "64KiB", "metrics_listen": ")" + listen + R"(",
          "secondary_tiers": [{"type": "memory", "bytes": "1MiB"}]})")
          .value(),
      Identity());
  EXPECT_TRUE(node.ok()) << (node.ok() ? "" : node.error().message);
  return node.ok() ? std::move(node).value() : nullptr;
}

// A request of ten chunks, from its start to its end, as an engine would have it.
void ServeOne(Node& node, Worker& worker, RequestId id) {
  Connector& connector = node.connector();
  connector.OnNewRequest(id, {.prompt_tokens = 10 * kChunk});
  connector.AppendKeys(id, Keys(id.value % 7 * 10, 10));
  MatchedTokens match;
  while ((match = connector.GetMatchedTokens(id, 0, 10 * kChunk)).status == Status::kLater) {
    connector.BuildStep({});
    node.WaitForProgress(std::chrono::milliseconds(10));
  }
  std::vector<BlockId> blocks(10);
  connector.UpdateAfterAlloc(id, blocks, 0, match.tokens);
  const ScheduledRequest step{id, {}, match.tokens, 10 * kChunk - match.tokens};
  connector.OnRequestFinished(id, 10 * kChunk);
  StepPlan plan = connector.BuildStep({.scheduled = {&step, 1}, .preempted = {}});
  worker.SubmitLoads(std::move(plan.loads));
  worker.RunLoads(UINT64_MAX);
  worker.SubmitStores(std::move(plan.stores));
  worker.RunStores();
  connector.OnTransfersDone(worker.TakeFinished());
}

TEST(NodeMetrics, CanBeScrapedWhileTheEngineWorks) {
  const auto node = MakeNode();
  ASSERT_NE(node, nullptr);
  std::atomic<int> scrapes{0};
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 3; ++i) {
    scrapers.emplace_back([&] {
      Scraper scraper(node->metrics_address());
      for (int n = 0; n < 10; ++n) {
        scraper.Scrape();
        ++scrapes;
      }
    });
  }
  std::thread other([&] {
    while (scrapes < 30) {
      ManagerRegion region(node->manager(), Lane::kControl, "another");
      node->manager().Stats();
    }
  });
  ToyMemory memory;
  Worker worker(memory, node->host_slots());
  std::uint64_t requests = 0;
  while (scrapes < 30) ServeOne(*node, worker, RequestId(++requests));
  for (std::thread& scraper : scrapers) scraper.join();
  other.join();
  const Metrics now = Scraper(node->metrics_address()).Scrape();
  EXPECT_EQ(now.Value("terrace_request_matches_total"), static_cast<double>(requests));
  EXPECT_EQ(now.Value("terrace_request_asked_chunks_total"), static_cast<double>(requests * 10));
}

TEST(NodeMetrics, AScrapeIsRefusedWhileSomebodyHoldsTheLock) {
  const auto node = MakeNode();
  ASSERT_NE(node, nullptr);
  {
    ManagerRegion region(node->manager());
    EXPECT_THAT(HttpGet(node->metrics_address(), "/metrics"), StartsWith("HTTP/1.1 503 "));
    EXPECT_THAT(HttpGet(node->metrics_address(), "/healthz"), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_EQ(Scraper(node->metrics_address()).Scrape().Value("terrace_node_refused_scrapes_total"),
            1);
}

TEST(NodeMetrics, ShutdownWhileOthersScrape) {
  for (int round = 0; round < 5; ++round) {
    auto node = MakeNode();
    ASSERT_NE(node, nullptr);
    const std::string address = node->metrics_address();
    std::atomic<int> scrapes{0};
    std::vector<std::thread> scrapers;
    for (int i = 0; i < 3; ++i) {
      scrapers.emplace_back([&] {
        while (!HttpGet(address, "/metrics").empty()) ++scrapes;
      });
    }
    while (scrapes < 10) std::this_thread::yield();
    node->Shutdown();
    for (std::thread& scraper : scrapers) scraper.join();
    EXPECT_EQ(node->metrics_address(), address);
    node.reset();
  }
}

TEST(NodeMetrics, APortInUseFailsTheStartAndNamesTheKey) {
  const auto node = MakeNode();
  ASSERT_NE(node, nullptr);
  const auto second = Node::Create(
      {.cpu_bytes_to_use = 4096, .metrics_listen = node->metrics_address()}, Identity());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("metrics_listen"));
  EXPECT_THAT(second.error().message, HasSubstr("Address already in use"));
}

TEST(NodeMetrics, AreOffUnlessAskedFor) {
  const auto node = MakeNode("");
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->metrics_address(), "");
}

TEST(NodeMetrics, SayWhatTheNodeIs) {
  const auto node = MakeNode();
  ASSERT_NE(node, nullptr);
  const std::string text = BodyOf(HttpGet(node->metrics_address(), "/metrics"));
  EXPECT_THAT(text, HasSubstr("terrace_config_info{tier=\"0:host\",source=\"host\",capacity_bytes="
                              "\"65536\",chunk_bytes=\"16\",tokens_per_chunk=\"16\","
                              "eviction_policy=\"lru\",store_threshold=\"0\",model=\"model\","));
  EXPECT_THAT(text, HasSubstr("terrace_config_info{tier=\"1:memory\",source=\"memory\","
                              "capacity_bytes=\"1048576\","));
  EXPECT_THAT(text, HasSubstr("terrace_build_info{version=\"0.1.0\","));
}

}  // namespace
}  // namespace terrace
