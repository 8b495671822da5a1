// Two nodes and a network between them that fails: whatever it does, no byte is wrong, nobody waits
// for long, nothing stays, the fault is counted and told in a line, and when it ends chunks come
// again.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/peer/fetching.h"
#include "tests/peer/proxy.h"

namespace terrace::testing {
namespace {

using Kind = Proxy::Fault::Kind;
using Way = Proxy::Way;

class PeerProxy : public ::testing::Test {
 protected:
  static constexpr std::size_t kSome = 4;

  explicit PeerProxy(std::uint32_t lease_ms = kLeaseMs) {
    NewAsker();
    TestNodeOptions options = WithShortDeadlines("tcp", lease_ms);
    options.port = control_port_;
    options.more += ", \"data_port\": " + std::to_string(data_port_);
    holder_ = std::make_unique<TestNode>(options);
    for (std::uint32_t prompt = 1; prompt <= 3; ++prompt) holder_->Store(PromptKeys(prompt));
  }
  ~PeerProxy() override { ExpectNothingLeft(); }

  void NewAsker() { asker_ = std::make_unique<TestNode>(WithShortDeadlines("tcp")); }
  std::size_t Fetch(std::uint32_t prompt) { return Fetching(*asker_, route_, prompt).Wait(); }
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
  const std::string name_ = std::string(kProxyHost) + ":" + std::to_string(control_port_);
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
  EXPECT_TRUE(asker_->ComputesWithoutAsking(PromptKeys(2), route_)) << "those behind do not wait";
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

const std::string kNoWelcome = "it did not say welcome within 400 ms";
const std::string kNoAnswer = "it did not answer a look-up in time";
const std::string kNoDataLink = "no data link could be opened: it was not open in time";
const std::string kNoChunks = "it did not send chunks within 1500 ms";

// One way there is silence, from the start or from somewhere in the conversation on: see kPlaces.
struct Hole {
  const char* name;
  bool on_data;
  Way way;
  std::size_t after;
  std::string why;  // What its operator reads.
};
const std::vector<Hole> kHoles = {
    {"nothing to the holder", false, Way::kToHolder, 0, kNoWelcome},
    {"in the hello", false, Way::kToHolder, 200, kNoWelcome},
    {"in the look-up", false, Way::kToHolder, 700, kNoAnswer},
    {"nothing to the asker", false, Way::kToAsker, 0, kNoWelcome},
    {"in the welcome", false, Way::kToAsker, 120, kNoWelcome},
    {"in the answer", false, Way::kToAsker, 235,
     "it did not "},  // Or still the welcome: its token varies in size.
    {"nothing to the data port", true, Way::kToHolder, 0, kNoDataLink},
    {"in the token", true, Way::kToHolder, 20, kNoDataLink},
    {"in the reads", true, Way::kToHolder, 400, kNoChunks},
    {"nothing from the data port", true, Way::kToAsker, 0, kNoDataLink},
    {"in the first chunk", true, Way::kToAsker, 77'777, kNoChunks},
    {"in the last chunk", true, Way::kToAsker, 9'500'000, kNoChunks},
};

TEST_F(PeerProxy, AOneWayHoleInAFirstConversation) {
  for (const Hole& hole : kHoles) {
    SCOPED_TRACE(hole.name);
    NewAsker();
    Proxy& proxy = hole.on_data ? data_ : control_;
    proxy.Set({Kind::kOneWayHole, hole.way, hole.after});
    ::testing::internal::CaptureStderr();
    EXPECT_LT(Fetch(1), kPromptChunks);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("peer " + name_ + ": " + hole.why), std::string::npos) << log;
    EXPECT_EQ(proxy.forwarded(hole.way), hole.after);
    EXPECT_EQ(Failures(), 1u);
    ExpectNothingLeft();
    proxy.Set({});
    ExpectRecovery(2);
  }
}

TEST_F(PeerProxy, AOneWayHoleBetweenTwoThatHaveTalked) {
  for (const bool on_data : {false, true}) {
    for (const Way way : {Way::kToHolder, Way::kToAsker}) {
      SCOPED_TRACE(std::string(on_data ? "data" : "control") +
                   (way == Way::kToHolder ? " to the holder" : " to the asker"));
      NewAsker();
      Warm();
      Proxy& proxy = on_data ? data_ : control_;
      proxy.Set({Kind::kOneWayHole, way});
      EXPECT_EQ(Fetch(2), 0u);
      EXPECT_EQ(Failures(), 1u);
      EXPECT_EQ(asker_->Counter("terrace_peer_overdue_fetches_total"), on_data ? 1u : 0u);
      EXPECT_TRUE(asker_->ComputesWithoutAsking(PromptKeys(2), route_));
      ExpectNothingLeft();
      proxy.Set({});
      ExpectRecovery(3);
    }
  }
}

// Its control port answers at each try, but no data link opens.
TEST_F(PeerProxy, NobodyWaitsWhileADataPortIsTriedAgain) {
  Warm();
  data_.Set({Kind::kOneWayHole, Way::kToHolder});
  EXPECT_EQ(Fetch(2), 0u);
  const auto asked = asker_->Counter("terrace_peer_lookups_total");
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (Failures() < 4 && std::chrono::steady_clock::now() < end) EXPECT_EQ(Fetch(2), 0u);
  EXPECT_GE(Failures(), 4u);
  EXPECT_EQ(asker_->Counter("terrace_peer_lookups_total"), asked);
  ExpectNothingLeft();
  data_.Set({});
  ExpectRecovery(3);
}

// The bytes need no control link. What the holder promises later nobody hears of: the asker hangs
// up its data link, and that ends the promise.
TEST_F(PeerProxy, AHoleFromTheHoldersControlPortInAFetch) {
  Warm();
  data_.Set({Kind::kDelay});
  Fetching fetching(*asker_, route_, 2);
  EXPECT_TRUE(data_.AwaitForwarded(Way::kToAsker, 1'000));
  control_.Set({Kind::kOneWayHole, Way::kToAsker});
  EXPECT_EQ(fetching.Wait(), kPromptChunks);
  EXPECT_EQ(Failures(), 0u);
  EXPECT_EQ(Fetch(3), 0u);
  EXPECT_EQ(Failures(), 1u);
  ExpectNothingLeft();
  EXPECT_TRUE(holder_->Becomes("terrace_peer_sessions_expired_total", 1));
  EXPECT_EQ(holder_->Counter("terrace_peer_expired_leases_total"), 0u);
  control_.Set({});
  ExpectRecovery(3);
}

class PeerProxyShortLease : public PeerProxy {
 protected:
  PeerProxyShortLease() : PeerProxy(100) {}
};

// The asker says in vain that it still wants the chunks: they are not pinned for its fetch_timeout.
TEST_F(PeerProxyShortLease, AHoleToTheHoldersControlPortInAFetch) {
  constexpr std::size_t kSomeBytes = 1'000'000;
  Warm();
  data_.Set({Kind::kOneWayHole, Way::kToAsker, kSomeBytes});
  Fetching fetching(*asker_, route_, 2);
  EXPECT_TRUE(data_.AwaitForwarded(Way::kToAsker, kSomeBytes));
  control_.Set({Kind::kOneWayHole, Way::kToHolder});
  EXPECT_TRUE(holder_->Becomes("terrace_peer_expired_leases_total", 1));
  EXPECT_EQ(holder_->LeftoversInTheEnd(), "");
  data_.Set({});
  EXPECT_LT(fetching.Wait(), kPromptChunks);
  ExpectNothingLeft();
  EXPECT_EQ(Fetch(3), 0u);
  EXPECT_GE(Failures(), 1u);
  control_.Set({});
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
