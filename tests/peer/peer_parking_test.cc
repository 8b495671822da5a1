// A node computes prompts for a decoder in another process and keeps them for it; one of the two
// is killed, stopped, or never comes. The other waits for its deadline at most, nothing stays
// pinned, and the next prompt is handed over.
#include <gtest/gtest.h>

#include <string>

#include "tests/peer/fetching.h"
#include "tests/peer/node_process.h"

namespace terrace::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kParkMs = 1'500;
constexpr std::size_t kHalf = kPromptChunks / 2;
const std::string kNone = "0", kAll = std::to_string(kPromptChunks);

class PeerParking : public ::testing::TestWithParam<const char*> {
 protected:
  explicit PeerParking(const TestNodeOptions& options = Patient())
      : prefiller_(options), decoder_(options) {}

  // Deadlines that a busy machine keeps: if one of them passes, the test takes too long.
  static TestNodeOptions Patient() {
    TestNodeOptions options;
    options.plane = GetParam();
    options.more = R"("connect_timeout_ms": 3000, "lookup_timeout_ms": 3000, "lease_ms": 900, )"
                   R"("park_timeout_ms": 50000)";
    return options;
  }
  static TestNodeOptions Impatient() {
    TestNodeOptions options = WithShortDeadlines(GetParam());
    options.more += ", \"park_timeout_ms\": " + std::to_string(kParkMs);
    return options;
  }

  void Prefill(std::uint32_t prompt, std::size_t count = kPromptChunks) {
    const std::string name = std::to_string(prompt);
    EXPECT_EQ(prefiller_.Ask("prefill " + name + " t" + name + " " + std::to_string(count)), "ok");
  }
  std::string DecodeLine(std::uint32_t prompt) const {
    const std::string name = std::to_string(prompt);
    return "decode " + name + " " + prefiller_.address() + " t" + name;
  }
  void SayDecode(std::uint32_t prompt) {
    decoder_.Say(DecodeLine(prompt));
    said_at_ = Clock::now();
  }
  std::string HearDecoded() {
    const std::string got = decoder_.Hear();
    EXPECT_LT(Clock::now() - said_at_, kFewDeadlines);
    return got;
  }
  std::string Decode(std::uint32_t prompt) {
    SayDecode(prompt);
    return HearDecoded();
  }
  // The two talk to each other.
  void Warm(std::uint32_t prompt) {
    Prefill(prompt);
    EXPECT_EQ(Decode(prompt), kAll);
    EXPECT_TRUE(prefiller_.Answers("left", "-"));
  }
  // The decoder waits for the second half of the prompt.
  void AwaitWaiting() {
    const std::string half = std::to_string(kHalf);
    EXPECT_TRUE(prefiller_.Answers(
        "left", "pinned " + half + "; cascades " + half + "; serving " + half + "; "));
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(prefiller_.Answers("left", "-"));
    EXPECT_TRUE(decoder_.Answers("left", "-"));
  }
  // A peer that failed is left alone for a while.
  void ExpectRecovery(std::uint32_t prompt) {
    Prefill(prompt);
    EXPECT_TRUE(decoder_.Answers(DecodeLine(prompt), kAll));
    ExpectNothingLeft();
  }
  static std::string CounterOf(NodeProcess& node, const std::string& name) {
    return node.Ask("counter terrace_peer_" + name);
  }
  // Its operator reads which peer it was and what it did, once.
  void ExpectOneLineOfThePrefiller(const std::string& what = "") {
    const std::string log = decoder_.Log();
    const std::string line = "warning terrace: peer " + prefiller_.address() + ": ";
    const auto first = log.find(line);
    ASSERT_NE(first, std::string::npos) << log;
    EXPECT_EQ(log.compare(first + line.size(), what.size(), what), 0) << log;
    EXPECT_EQ(log.find(line, first + 1), std::string::npos) << log;
  }

  NodeProcess prefiller_, decoder_;
  Clock::time_point said_at_;
};

class PeerParkingToTheDeadline : public PeerParking {
 protected:
  PeerParkingToTheDeadline() : PeerParking(Impatient()) {}

  // `what`: the decoder's deadline that passed.
  void StopPrefiller(std::uint32_t prompt, const std::string& what) {
    Prefill(prompt);
    prefiller_.Stop();
    EXPECT_EQ(Decode(prompt), kNone);
    EXPECT_TRUE(decoder_.Answers("left", "-"));
    ExpectOneLineOfThePrefiller(what);
    std::this_thread::sleep_for(std::chrono::milliseconds(kParkMs));
    prefiller_.Continue();
    ExpectNothingLeft();
    ExpectRecovery(prompt + 1);
    EXPECT_EQ(CounterOf(decoder_, "restarts_total"), "0");
  }
};

const auto kPlanes = ::testing::Values("shared_memory", "tcp");
INSTANTIATE_TEST_SUITE_P(All, PeerParking, kPlanes);
INSTANTIATE_TEST_SUITE_P(All, PeerParkingToTheDeadline, kPlanes);

// The question is there, or on its way.
TEST_P(PeerParking, APrefillerIsKilledBeforeItBegins) {
  Warm(1);
  SayDecode(2);
  prefiller_.Kill();
  EXPECT_EQ(HearDecoded(), kNone);
  EXPECT_EQ(CounterOf(decoder_, "failures_total"), "1");
  ExpectOneLineOfThePrefiller();
  prefiller_.Restart();
  ExpectRecovery(3);
}

TEST_P(PeerParking, APrefillerIsKilledWhileItsDecoderWaits) {
  Prefill(1, kHalf);
  SayDecode(1);
  AwaitWaiting();
  prefiller_.Kill();
  EXPECT_EQ(HearDecoded(), kNone);
  EXPECT_EQ(CounterOf(decoder_, "failures_total"), "1");
  EXPECT_TRUE(decoder_.Answers("left", "-"));
  ExpectOneLineOfThePrefiller();
  prefiller_.Restart();
  ExpectRecovery(2);
  EXPECT_EQ(CounterOf(decoder_, "restarts_total"), "1");
}

// Whether the two knew each other or not. The new life knows nothing of the transfer.
TEST_P(PeerParkingToTheDeadline, APrefillerIsKilledAfterItParked) {
  for (const bool known : {false, true}) {
    SCOPED_TRACE(known ? "known" : "not known");
    if (known) Warm(1);
    Prefill(2);
    prefiller_.Kill();
    EXPECT_EQ(Decode(2), kNone);
    prefiller_.Restart();
    ExpectRecovery(known ? 4 : 3);
    EXPECT_EQ(Decode(2), kNone) << "the new life was never told of it";
    EXPECT_EQ(CounterOf(prefiller_, "overdue_lookups_total"), "1");
    ExpectNothingLeft();
  }
  ExpectOneLineOfThePrefiller();
}

TEST_P(PeerParkingToTheDeadline, ADecoderNeverComes) {
  Prefill(1);
  ExpectNothingLeft();
  EXPECT_EQ(CounterOf(prefiller_, "parked_chunks_total"), kAll);
  EXPECT_EQ(CounterOf(prefiller_, "unclaimed_chunks_total"), kAll);
  // Nothing holds them any more: other prompts push them out.
  for (int prompt = 10; prompt < 15; ++prompt) {
    EXPECT_EQ(prefiller_.Ask("store " + std::to_string(prompt)), "ok");
  }
  EXPECT_EQ(Decode(1), kNone);
  EXPECT_EQ(CounterOf(prefiller_, "overdue_lookups_total"), "0") << "who is late is told at once";
  ExpectRecovery(2);
}

// What it waited for is kept for the one that comes in its place.
TEST_P(PeerParking, ADecoderIsKilledWhileItWaits) {
  Prefill(1, kHalf);
  SayDecode(1);
  AwaitWaiting();
  decoder_.Restart();
  const std::string half = std::to_string(kHalf);
  EXPECT_TRUE(prefiller_.Answers("left", "pinned " + half + "; cascades " + half + "; "));
  Prefill(1);
  EXPECT_EQ(Decode(1), kAll);
  ExpectNothingLeft();
  EXPECT_EQ(CounterOf(prefiller_, "unclaimed_chunks_total"), "0");
}

// The decoder finds nobody who takes its connection, ...
TEST_P(PeerParkingToTheDeadline, APrefillerIsStoppedAndContinued) {
  StopPrefiller(1, "it did not say welcome within ");
}
// ... or nobody who answers.
TEST_P(PeerParkingToTheDeadline, AKnownPrefillerIsStoppedAndContinued) {
  Warm(1);
  StopPrefiller(2, "it did not answer a look-up in time");
}

// It is answered while it is stopped: that is no claim that lasts.
TEST_P(PeerParking, ADecoderIsStoppedWhileItWaitsAndContinued) {
  Prefill(1, kHalf);
  SayDecode(1);
  AwaitWaiting();
  decoder_.Stop();
  Prefill(1);
  EXPECT_TRUE(prefiller_.Answers("left", "-"));
  decoder_.Continue();
  EXPECT_NE(HearDecoded(), "gone");
  ExpectRecovery(2);
}

}  // namespace
}  // namespace terrace::testing
