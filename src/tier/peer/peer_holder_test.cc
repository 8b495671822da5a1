// The limits that a holder sets to its askers, on a clock of the test's.
#include "tier/peer/peer_holder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "base/log.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/support/keys.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::Keys;

// Keeps what was replied.
class FakeNetwork final : public ControlNetwork {
 public:
  std::uint16_t port() const override { return 1; }
  int descriptor() const override { return -1; }
  Result<LinkId> Dial(const PeerAddress&) override { return LinkId(1); }
  void HangUp(LinkId) override {}
  bool Send(LinkId, std::span<const std::uint8_t>) override { return true; }
  bool Reply(const std::string& caller, std::span<const std::uint8_t> bytes) override {
    replies.emplace_back(caller, DecodePeerMessage(bytes).value());
    return true;
  }
  std::optional<Event> Next() override { return std::nullopt; }
  void KeepReady() override {}

  std::vector<std::pair<std::string, PeerMessage>> replies;
};

// Has every chunk.
class FakeServer final : public TierServer {
 public:
  Request BeginRequest() override { return Request{RequestId(kExternalRequests.value + ++made_)}; }
  LookupResult Lookup(const ChunkKey&, const Request&) override { return answer; }
  std::optional<TransferJob> CreateStoreJob(std::span<const ChunkKey> keys,
                                            const Request& request) override {
    pinned += keys.size();
    return TransferJob{JobId(++made_),
                       request.id,
                       {keys.begin(), keys.end()},
                       std::vector<SlotId>(keys.size()),
                       {}};
  }
  void FinishRequest(const Request&) override {}
  std::size_t SlotsForPeers() const override { return 20; }
  bool ShouldYield() const override { return false; }

  LookupResult answer = LookupResult::kHit;
  std::size_t pinned = 0;

 private:
  std::uint64_t made_ = 0;
};

class PeerHolderTest : public ::testing::Test {
 protected:
  PeerHolderTest() {
    context_.config = &config_;
    context_.network = &network_;
    context_.identity = &identity_;
    context_.leases = &leases_;
    context_.counters = &counters_;
    context_.now = [this] { return now_; };
    context_.new_token = [this] { return SessionToken{++tokens_}; };
    Log().sinks().push_back(sink_);
  }
  ~PeerHolderTest() override { Log().sinks().pop_back(); }

  void Say(const std::string& caller, const PeerMessage& message) {
    holder_.OnCall(caller, EncodePeerMessage(message));
  }
  void Hello(const std::string& caller) {
    PeerHello hello;
    hello.instance[0] = static_cast<std::uint8_t>(caller[0]);
    hello.fields = identity_.fields();
    hello.identity = identity_.digest();
    Say(caller, hello);
  }
  void Ask(const std::string& caller, std::uint64_t id, std::size_t count) {
    Say(caller, PeerLookup{id, "", false, 1'000, Keys(id * 100 + 1, count)});
  }
  void Serve() {
    now_ += milliseconds(10);
    holder_.Serve(server_);
  }
  const PeerAnswer* AnswerTo(const std::string& caller, std::uint64_t id) const {
    for (const auto& [to, message] : network_.replies) {
      const auto* answer = std::get_if<PeerAnswer>(&message);
      if (to == caller && answer != nullptr && answer->id == id) return answer;
    }
    return nullptr;
  }
  std::size_t FoundBy(const std::string& caller, std::uint64_t id) const {
    const PeerAnswer* answer = AnswerTo(caller, id);
    std::size_t found = 0;
    for (std::size_t i = 0; answer != nullptr && i < 256; ++i) found += answer->Has(i) ? 1 : 0;
    return found;
  }
  std::size_t LinesWith(const std::string& text) const {
    const std::string log = log_.str();
    std::size_t count = 0;
    for (auto at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++count;
    return count;
  }

  std::ostringstream log_;
  const spdlog::sink_ptr sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
  PeerHolder::TimePoint now_{std::chrono::hours(1)};
  PeerTierConfig config_;
  FakeNetwork network_;
  FakeServer server_;
  const CacheIdentity identity_ = CacheIdentity::Create(testing::TestIdentityFields(1'000)).value();
  LeaseTable leases_{{.lease_time = seconds(100), .life_max = seconds(100)}};
  PeerCounters counters_;
  std::uint8_t tokens_ = 0;
  PeerHolderContext context_;
  PeerHolder holder_{context_};
};

TEST_F(PeerHolderTest, AGreedyAskerLeavesAModestOneItsShare) {
  Hello("greedy");
  Hello("modest");
  for (std::uint64_t id = 1; id <= 5; ++id) Ask("greedy", id, 4);
  Serve();
  EXPECT_EQ(server_.pinned, 8u) << "10 are its half of 20";
  EXPECT_EQ(counters_.deferred_lookups, 3u);
  Ask("modest", 1, 10);
  Serve();
  EXPECT_EQ(FoundBy("modest", 1), 10u);
  Serve();
  EXPECT_EQ(counters_.deferred_lookups, 3u) << "each counts once";
  EXPECT_EQ(LinesWith("an asker waits until it has given back some of its share of 10"), 1u);
  // What it gives back, it may have again.
  Say("greedy", PeerRelease{{AnswerTo("greedy", 1)->lease}});
  Serve();
  EXPECT_EQ(FoundBy("greedy", 3), 4u);
  // And nobody waits for longer than it said.
  now_ += seconds(2);
  Serve();
  ASSERT_NE(AnswerTo("greedy", 5), nullptr);
  EXPECT_EQ(AnswerTo("greedy", 5)->lease, 0u);
  EXPECT_EQ(counters_.overdue_lookups, 2u);
}

// It waits in vain for more than it may ever have.
TEST_F(PeerHolderTest, AQuestionForMoreThanAShareGetsItsBeginningAtOnce) {
  Hello("a");
  Hello("b");
  Ask("a", 1, 30);
  Serve();
  ASSERT_NE(AnswerTo("a", 1), nullptr);
  EXPECT_EQ(FoundBy("a", 1), 10u);
  EXPECT_TRUE(AnswerTo("a", 1)->Has(9));
  EXPECT_EQ(counters_.over_share_chunks, 20u);
  EXPECT_EQ(counters_.deferred_lookups, 0u);
}

// Then it keeps no more than its share, though it has more.
TEST_F(PeerHolderTest, AnAskerThatIsAloneMayHaveAllUntilAnotherComes) {
  Hello("a");
  Ask("a", 1, 20);
  Serve();
  EXPECT_EQ(FoundBy("a", 1), 20u);
  Ask("a", 2, 1);
  Serve();
  EXPECT_EQ(counters_.deferred_lookups, 1u);
  Hello("b");
  Say("a", PeerRelease{{AnswerTo("a", 1)->lease}});
  Ask("a", 3, 9);
  Ask("a", 4, 1);
  Serve();
  EXPECT_EQ(FoundBy("a", 2) + FoundBy("a", 3), 10u);
  EXPECT_EQ(AnswerTo("a", 4), nullptr);
  Ask("b", 1, 10);
  Serve();
  EXPECT_EQ(FoundBy("b", 1), 10u);
}

// What it has in questions that are not answered yet counts, too.
TEST_F(PeerHolderTest, ASessionThatEndsGivesItsShareBack) {
  Hello("a");
  Ask("a", 1, 10);
  Serve();
  const SessionId first(1), second(2);
  EXPECT_EQ(leases_.ChunksOf(first), 10u);
  Say("a", PeerBye{});
  EXPECT_EQ(leases_.ChunksOf(first), 0u);
  Hello("a");
  Ask("a", 2, 10);
  Serve();
  EXPECT_EQ(FoundBy("a", 2), 10u);
  EXPECT_EQ(leases_.ChunksOf(second), 10u);
}

TEST_F(PeerHolderTest, QuestionsBeyondTheLimitAreAnsweredNoAtOnce) {
  server_.answer = LookupResult::kRetry;
  Hello("greedy");
  Hello("modest");
  for (std::uint64_t id = 1; id <= 67; ++id) Ask("greedy", id, 1);
  Ask("modest", 1, 1);
  EXPECT_EQ(AnswerTo("greedy", 64), nullptr);
  ASSERT_NE(AnswerTo("greedy", 65), nullptr);
  EXPECT_EQ(FoundBy("greedy", 65), 0u);
  EXPECT_EQ(counters_.refused_lookups, 3u);
  EXPECT_EQ(LinesWith("an asker has 64 questions open"), 1u);
  server_.answer = LookupResult::kHit;
  Serve();
  EXPECT_EQ(FoundBy("modest", 1), 1u);
}

TEST_F(PeerHolderTest, TransfersBeyondTheLimitAreNotKept) {
  const auto begin = [&](std::uint64_t n) {
    auto route = std::make_shared<PeerRoute>();
    route->keep_for_transfer = "transfer " + std::to_string(n);
    return holder_.OnNewRequest(Request{RequestId(n), LoadSourceSet::All(), route});
  };
  for (std::uint64_t n = 1; n <= 4'096; ++n) ASSERT_EQ(begin(n), StoreInterest::kWholeRequest);
  EXPECT_EQ(begin(5'000), StoreInterest::kNothing);
  EXPECT_EQ(begin(5'001), StoreInterest::kNothing);
  EXPECT_EQ(counters_.refused_transfers, 2u);
  EXPECT_EQ(LinesWith("4096 transfers are remembered"), 1u);
  holder_.OnRequestFinished(RequestId(1));
  now_ += seconds(61);
  holder_.Tick();
  EXPECT_EQ(begin(5'002), StoreInterest::kWholeRequest) << "one was forgotten";
}

TEST_F(PeerHolderTest, ASilentSessionEnds) {
  Hello("silent");
  Hello("alive");
  Ask("silent", 1, 4);
  Serve();
  now_ += seconds(29);
  Say("alive", PeerRenew{});
  holder_.Tick();
  EXPECT_EQ(holder_.session_count(), 2u);
  now_ += seconds(2);
  holder_.Tick();
  EXPECT_EQ(holder_.session_count(), 1u);
  EXPECT_EQ(leases_.counts().chunks, 0u);
  EXPECT_EQ(counters_.sessions_expired, 1u);
  EXPECT_EQ(counters_.sessions_silent, 1u);
  EXPECT_EQ(LinesWith("an asker said nothing for 30 s"), 1u);
}

}  // namespace
}  // namespace terrace
