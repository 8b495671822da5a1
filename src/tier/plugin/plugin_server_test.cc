#include "tier/plugin/plugin_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <stdexcept>

#include "tests/contract/tier_driver.h"
#include "tier/plugin/plugin_types.h"

namespace terrace::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Answers as it is told, and notes what it was asked.
class FakeServer final : public TierServer {
 public:
  Request BeginRequest() override { return Request{RequestId(kExternalRequests.value + 1)}; }
  LookupResult Lookup(const ChunkKey& key, const Request& request) override {
    if (throws) throw std::runtime_error("out of everything");
    keys.push_back(key);
    requests.push_back(request.id);
    return answer;
  }
  std::optional<TransferJob> CreateStoreJob(std::span<const ChunkKey> asked,
                                            const Request& request) override {
    if (full) return std::nullopt;
    std::vector<SlotId> slots(asked.size(), SlotId(3));
    return TransferJob{JobId(9), request.id, {asked.begin(), asked.end()}, std::move(slots), {}};
  }
  void FinishRequest(const Request& request) override { finished.push_back(request.id); }
  std::size_t SlotsForPeers() const override { return 4; }
  bool ShouldYield() const override { return yield; }

  LookupResult answer = LookupResult::kHit;
  bool throws = false;
  bool full = false;
  bool yield = false;
  std::vector<ChunkKey> keys;
  std::vector<RequestId> requests;
  std::vector<RequestId> finished;
};

class PluginServerTest : public ::testing::Test {
 protected:
  void Serve(const std::function<void(const terrace_tier_server&)>& serve) {
    lender_.Lend(server_, serve);
  }
  // What create_store_job() answers to these keys.
  terrace_tier_status JobOf(const std::vector<terrace_tier_key>& keys,
                            const terrace_tier_job** job) {
    terrace_tier_status status = -1;
    Serve([&](const terrace_tier_server& seen) {
      status = seen.create_store_job(seen.context, keys.data(), keys.size(), 5, job);
    });
    return status;
  }

  FakeTierHost host_{4};
  FakeServer server_;
  std::vector<std::string> faults_;
  std::deque<PluginJob> jobs_;
  PluginServer lender_{{.add_job =
                            [this](const TransferJob& job) {
                              return &jobs_.emplace_back(job, host_).seen_by_plugin();
                            },
                        .fault = [this](std::string what) { faults_.push_back(std::move(what)); }}};
};

TEST_F(PluginServerTest, PassesQuestionsAndAnswersOn) {
  const terrace_tier_key key = ToPlugin(TestKey(1, 2));
  Serve([&](const terrace_tier_server& seen) {
    const std::uint64_t request = seen.begin_request(seen.context);
    EXPECT_EQ(request, kExternalRequests.value + 1);
    for (const auto& [answer, expected] : std::vector<std::pair<LookupResult, int>>{
             {LookupResult::kHit, TERRACE_TIER_SERVE_HIT},
             {LookupResult::kMiss, TERRACE_TIER_SERVE_MISS},
             {LookupResult::kHitPending, TERRACE_TIER_SERVE_RETRY},
             {LookupResult::kRetry, TERRACE_TIER_SERVE_RETRY}}) {
      server_.answer = answer;
      EXPECT_EQ(seen.lookup(seen.context, &key, request), expected);
    }
    EXPECT_EQ(seen.should_yield(seen.context), 0);
    server_.yield = true;
    EXPECT_EQ(seen.should_yield(seen.context), 1);
    seen.finish_request(seen.context, request);
  });
  EXPECT_EQ(server_.keys, std::vector(4, TestKey(1, 2)));
  EXPECT_EQ(server_.requests, std::vector(4, RequestId(kExternalRequests.value + 1)));
  EXPECT_THAT(server_.finished, ElementsAre(RequestId(kExternalRequests.value + 1)));
  EXPECT_THAT(faults_, IsEmpty());
}

TEST_F(PluginServerTest, MakesJobs) {
  const terrace_tier_job* job = nullptr;
  EXPECT_EQ(JobOf({ToPlugin(TestKey(0)), ToPlugin(TestKey(1))}, &job), TERRACE_TIER_OK);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(job->id, 9u);
  EXPECT_EQ(job->request, 5u);
  ASSERT_EQ(job->chunk_count, 2u);
  EXPECT_EQ(FromPlugin(job->keys[1]), TestKey(1));
  EXPECT_EQ(job->chunks[0], host_.Slot(SlotId(3)).data());
  server_.full = true;
  EXPECT_EQ(JobOf({ToPlugin(TestKey(0))}, &job), TERRACE_TIER_UNAVAILABLE);
  EXPECT_THAT(faults_, IsEmpty());
}

TEST_F(PluginServerTest, RefusesWrongQuestions) {
  terrace_tier_key no_key{};
  terrace_tier_key long_key = ToPlugin(TestKey(0));
  long_key.hash_size = 33;
  Serve([&](const terrace_tier_server& seen) {
    for (const terrace_tier_key* key : {static_cast<const terrace_tier_key*>(nullptr),
                                        static_cast<const terrace_tier_key*>(&no_key),
                                        static_cast<const terrace_tier_key*>(&long_key)}) {
      EXPECT_EQ(seen.lookup(seen.context, key, 5), TERRACE_TIER_SERVE_MISS);
    }
    EXPECT_EQ(seen.create_store_job(seen.context, nullptr, 1, 5, nullptr),
              TERRACE_TIER_INVALID_ARGUMENT);
  });
  const terrace_tier_job* job = nullptr;
  const terrace_tier_key key = ToPlugin(TestKey(0));
  EXPECT_EQ(JobOf({}, &job), TERRACE_TIER_INVALID_ARGUMENT);
  EXPECT_EQ(JobOf({key, no_key}, &job), TERRACE_TIER_INVALID_ARGUMENT);
  EXPECT_EQ(JobOf({key, key}, &job), TERRACE_TIER_INVALID_ARGUMENT);
  EXPECT_EQ(job, nullptr);
  EXPECT_THAT(server_.keys, IsEmpty());
  EXPECT_EQ(faults_.size(), 7u);
}

// A plug-in that keeps what it was lent, or hands it to its threads.
TEST_F(PluginServerTest, AnswersNobodyOutsideTheCall) {
  terrace_tier_server kept{};
  const terrace_tier_key key = ToPlugin(TestKey(0));
  Serve([&](const terrace_tier_server& seen) {
    kept = seen;
    std::thread([&] {
      EXPECT_EQ(seen.lookup(seen.context, &key, 5), TERRACE_TIER_SERVE_MISS);
    }).join();
  });
  EXPECT_EQ(kept.begin_request(kept.context), 0u);
  EXPECT_EQ(kept.should_yield(kept.context), 1);
  kept.finish_request(kept.context, 5);
  EXPECT_THAT(server_.keys, IsEmpty());
  EXPECT_THAT(server_.finished, IsEmpty());
  EXPECT_EQ(faults_.size(), 4u);
}

TEST_F(PluginServerTest, LetsNoExceptionThroughThePlugin) {
  const terrace_tier_key key = ToPlugin(TestKey(0));
  server_.throws = true;
  Serve([&](const terrace_tier_server& seen) {
    EXPECT_EQ(seen.lookup(seen.context, &key, 5), TERRACE_TIER_SERVE_MISS);
  });
}

TEST_F(PluginServerTest, EndsTheLoanWhenThePluginThrows) {
  EXPECT_THROW(Serve([](const terrace_tier_server&) { throw std::runtime_error("oh"); }),
               std::runtime_error);
  terrace_tier_server kept{};
  Serve([&](const terrace_tier_server& seen) { kept = seen; });
  EXPECT_EQ(kept.begin_request(kept.context), 0u);
}

}  // namespace
}  // namespace terrace::testing
