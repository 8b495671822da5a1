// Two nodes and a network between them that fails: whatever it does, no byte is wrong, nobody waits
// for long, nothing stays, the fault is counted and told in a line, and when it ends chunks come
// again.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/peer/node_process.h"
#include "tests/peer/proxy.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Kind = Proxy::Fault::Kind;
using Way = Proxy::Way;

constexpr milliseconds kFewDeadlines{10 * kFetchMs};

class PeerProxy : public ::testing::Test {
 protected:
  static constexpr std::size_t kSome = 4;

  PeerProxy() {
    TestNodeOptions options;
    options.plane = "tcp";
    options.more = ShortDeadlines();
    asker_ = std::make_unique<TestNode>(options);
    options.port = control_port_;
    options.more += ", \"data_port\": " + std::to_string(data_port_);
    holder_ = std::make_unique<TestNode>(options);
    for (std::uint32_t prompt = 1; prompt <= 3; ++prompt) holder_->Store(PromptKeys(prompt));
  }
  ~PeerProxy() override { ExpectNothingLeft(); }

  void NewAsker() {
    TestNodeOptions options;
    options.plane = "tcp";
    options.more = ShortDeadlines();
    asker_ = std::make_unique<TestNode>(options);
  }
  std::size_t Fetch(std::uint32_t prompt) {
    const auto since = Clock::now();
    const std::size_t got = asker_->Fetch(PromptKeys(prompt), route_);
    EXPECT_LT(Clock::now() - since, kFewDeadlines);
    return got;
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(asker_->LeftoversInTheEnd(), "");
    EXPECT_EQ(holder_->LeftoversInTheEnd(), "");
  }
  void ExpectRecovery(std::uint32_t prompt) {
    std::vector<ChunkKey> some = PromptKeys(prompt);
    some.resize(kSome);
    EXPECT_TRUE(asker_->FetchesInTheEnd(some, route_));
  }
  // The links to the holder are there.
  void Warm() { ExpectRecovery(1); }
  std::uint64_t Failures() { return asker_->Counter("terrace_peer_failures_total"); }

  const std::uint32_t control_port_ = FreePort(), data_port_ = FreePort();
  Proxy control_{control_port_}, data_{data_port_};
  const std::shared_ptr<const PeerRoute> route_ = RouteTo(kProxyHost, control_port_);
  std::unique_ptr<TestNode> holder_, asker_;
};

TEST_F(PeerProxy, DelayCostsOnlyTime) {
  control_.Set({Kind::kDelay});
  data_.Set({Kind::kDelay});
  ExpectRecovery(1);
}

TEST_F(PeerProxy, ABlackHoleBeforeTheHello) {
  control_.Set({Kind::kBlackHole});
  EXPECT_EQ(Fetch(1), 0u);
  EXPECT_EQ(Failures(), 1u);
  // Those behind it do not wait.
  const auto asked = asker_->Counter("terrace_peer_lookups_total");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Fetch(2), 0u);
  EXPECT_EQ(asker_->Counter("terrace_peer_lookups_total"), asked);
  control_.Set({});
  ExpectRecovery(3);
}

TEST_F(PeerProxy, ABlackHoleOnTheControlLink) {
  Warm();
  control_.Set({Kind::kBlackHole});
  EXPECT_EQ(Fetch(2), 0u);
  EXPECT_EQ(Failures(), 1u);
  ExpectNothingLeft();
  control_.Set({});
  ExpectRecovery(3);
}

TEST_F(PeerProxy, ABlackHoleOnTheDataLink) {
  Warm();
  data_.Set({Kind::kBlackHole});
  EXPECT_EQ(Fetch(2), 0u);
  EXPECT_EQ(asker_->Counter("terrace_peer_overdue_fetches_total"), 1u);
  ExpectNothingLeft();
  data_.Set({});
  ExpectRecovery(3);
}

TEST_F(PeerProxy, ABlackHoleBeforeTheDataLinkIsOpen) {
  data_.Set({Kind::kBlackHole});
  EXPECT_EQ(Fetch(1), 0u);
  EXPECT_GE(Failures(), 1u);
  ExpectNothingLeft();
  data_.Set({});
  ExpectRecovery(3);
}

TEST_F(PeerProxy, SlowBytes) {
  for (Proxy* proxy : {&control_, &data_}) {
    NewAsker();
    Warm();
    proxy->Set({Kind::kSlow});
    EXPECT_LT(Fetch(2), kPromptChunks);
    EXPECT_GE(Failures(), 1u);
    proxy->Set({});
    ExpectRecovery(3);
  }
}

// Wherever in the conversation it happens. A control conversation has some 1,300 bytes to the
// holder and 250 to the asker, a data link 800 and 9.6 million.
struct Place {
  bool on_data;
  Way way;
  std::size_t after;
};
const std::vector<Place> kPlaces = {
    {false, Way::kToHolder, 0},       {false, Way::kToHolder, 30},
    {false, Way::kToHolder, 90},      {false, Way::kToHolder, 150},
    {false, Way::kToHolder, 330},     {false, Way::kToHolder, 700},
    {false, Way::kToHolder, 1'300},   {false, Way::kToAsker, 11},
    {false, Way::kToAsker, 80},       {false, Way::kToAsker, 130},
    {false, Way::kToAsker, 180},      {false, Way::kToAsker, 220},
    {false, Way::kToAsker, 235},      {false, Way::kToAsker, 246},
    {true, Way::kToHolder, 3},        {true, Way::kToHolder, 20},
    {true, Way::kToHolder, 50},       {true, Way::kToHolder, 400},
    {true, Way::kToAsker, 7},         {true, Way::kToAsker, 30},
    {true, Way::kToAsker, 50},        {true, Way::kToAsker, 77'777},
    {true, Way::kToAsker, 3'000'001}, {true, Way::kToAsker, 9'500'000},
};

class PeerProxyPlaces : public PeerProxy {
 protected:
  static constexpr std::size_t kGreetingBytes = 64;  // Of ZMTP 3.

  void FailEverywhere(Kind kind) {
    std::size_t tried = 0;
    std::size_t happened_count = 0;
    for (const Place& place : kPlaces) {
      // Both look alike to ZeroMQ, but not to a data link.
      if (kind == Kind::kTruncate && !place.on_data) continue;
      ++tried;
      SCOPED_TRACE((place.on_data ? "data " : "control ") + std::to_string(place.after) +
                   (place.way == Way::kToHolder ? " to the holder" : " to the asker"));
      NewAsker();
      Proxy& proxy = place.on_data ? data_ : control_;
      proxy.Set({kind, place.way, place.after});
      const bool got_all = Fetch(1) == kPromptChunks;
      const bool happened = proxy.happened();
      proxy.Set({});
      // ZeroMQ may connect anew by itself, and soon enough, if its greeting is cut.
      const bool was_greeting = !place.on_data && place.after < kGreetingBytes;
      if (kind != Kind::kFlip && happened && !(was_greeting && got_all)) {
        EXPECT_TRUE(asker_->Becomes("terrace_peer_failures_total", 1));
      }
      ExpectNothingLeft();
      happened_count += happened ? 1 : 0;
      ExpectRecovery(2);
    }
    EXPECT_GE(happened_count + 3, tried);
  }
};

TEST_F(PeerProxyPlaces, Cut) { FailEverywhere(Kind::kCut); }
TEST_F(PeerProxyPlaces, Truncated) { FailEverywhere(Kind::kTruncate); }
TEST_F(PeerProxyPlaces, ABitIsFlipped) { FailEverywhere(Kind::kFlip); }

TEST_F(PeerProxy, AFlippedBitOfAChunkIsCountedAndTold) {
  Warm();
  data_.Set({Kind::kFlip, Way::kToAsker, 1'000'000});
  ::testing::internal::CaptureStderr();
  EXPECT_LT(Fetch(2), kPromptChunks);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("is dropped: its bytes do not hash to what its record states"),
            std::string::npos)
      << log;
  EXPECT_EQ(asker_->Counter("terrace_peer_corrupt_chunks_total"), 1u);
  EXPECT_EQ(asker_->Counter("terrace_peer_fetched_chunks_total"), kSome + kPromptChunks - 1);
  EXPECT_EQ(Failures(), 0u) << "the link goes on";
  ExpectRecovery(2);
}

}  // namespace
}  // namespace terrace::testing
