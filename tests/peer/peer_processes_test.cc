// Nodes in processes of their own that are killed and restarted while others fetch from them:
// nobody waits for long, no byte is wrong, nothing stays pinned, and what works again is used
// again.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "tests/peer/fetching.h"
#include "tests/peer/node_process.h"
#include "tests/peer/proxied_ports.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Way = Proxy::Way;

// The first from which on the holder has a data link, and so notices that the asker dies.
constexpr std::size_t kLinkedFrom = 6;

TEST(PeerProcesses, AHolderIsKilledAtEveryMessage) {
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ProxiedPorts ports;
    NodeProcess holder(ports.options());
    TestNode asker(WithShortDeadlines("tcp"));
    holder.Ask("store 1");
    Fetching fetching(asker, ports.route());
    EXPECT_TRUE(ports.Await(moment));
    holder.Kill();
    fetching.Wait();
    EXPECT_EQ(asker.LeftoversInTheEnd(), "");
    EXPECT_TRUE(asker.Becomes("terrace_peer_failures_total", 1));
    for (Proxy* proxy : {&ports.control, &ports.data}) proxy->Set({});
    holder.Restart();
    holder.Ask("store 2");
    EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(2), ports.route()));
    EXPECT_TRUE(holder.Answers("left", "-"));
  }
}

TEST(PeerProcesses, AnAskerIsKilledAtEveryMessage) {
  ProxiedPorts ports;
  TestNode holder(ports.options());
  holder.Store(PromptKeys(1));
  std::size_t n = 0;
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ports.DelayAll();
    NodeProcess asker(WithLongDeadlines("tcp"));
    asker.Say("fetch 1 " + ports.address());
    EXPECT_TRUE(ports.Await(moment));
    const auto sessions_before = holder.Counter("terrace_peer_sessions_expired_total");
    asker.Kill();
    EXPECT_EQ(holder.LeftoversInTheEnd(), "");
    if (n++ >= kLinkedFrom) {
      EXPECT_TRUE(holder.Becomes("terrace_peer_sessions_expired_total", sessions_before + 1));
    }
  }
  NodeProcess asker(WithShortDeadlines("tcp"));
  EXPECT_EQ(asker.Ask("fetch 1 " + ports.address()), std::to_string(kPromptChunks));
}

class PeerProcessesOverEach : public ::testing::TestWithParam<const char*> {};

TEST_P(PeerProcessesOverEach, AHolderIsKilledSomeTimeIntoAFetch) {
  for (const int ms : {1, 4, 8, 16}) {
    SCOPED_TRACE(ms);
    NodeProcess holder(WithShortDeadlines(GetParam()));
    TestNode asker(WithShortDeadlines(GetParam()));
    holder.Ask("store 1");
    Fetching fetching(asker, holder.route());
    std::this_thread::sleep_for(milliseconds(ms));
    holder.Kill();
    fetching.Wait();
    EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  }
}

// How long nobody served is told and not checked: under a sanitizer to start takes longer.
TEST_P(PeerProcessesOverEach, AHolderIsRestartedAtOnce) {
  NodeProcess holder(WithShortDeadlines(GetParam()));
  TestNode asker(WithShortDeadlines(GetParam()));
  constexpr std::uint32_t kOnlyOnce = 9;
  holder.Ask("store " + std::to_string(kOnlyOnce));
  for (std::uint32_t life = 0; life < 3; ++life) {
    holder.Ask("store " + std::to_string(life));
    EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(life), holder.route()));
    EXPECT_EQ(asker.Counter("terrace_peer_restarts_total"), life);
    if (life == 2) break;
    const milliseconds gap = holder.Restart();
    std::cout << GetParam() << ": restarted within " << gap.count() << " ms\n";
  }
  const auto failures = asker.Counter("terrace_peer_failures_total");
  EXPECT_EQ(asker.Fetch(PromptKeys(kOnlyOnce), holder.route()), 0u) << "its former life had it";
  EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), failures);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  EXPECT_TRUE(holder.Answers("left", "-"));
}

TEST_P(PeerProcessesOverEach, BothAreRestarted) {
  NodeProcess a(WithShortDeadlines(GetParam())), b(WithShortDeadlines(GetParam()));
  const std::string all = std::to_string(kPromptChunks);
  for (int life = 0; life < 3; ++life) {
    a.Ask("store 1");
    b.Ask("store 2");
    a.Say("fetch 2 " + b.address());
    b.Say("fetch 1 " + a.address());
    EXPECT_EQ(a.Hear(), all);
    EXPECT_EQ(b.Hear(), all);
    a.Kill();
    b.Restart();
    a.Restart();
  }
  EXPECT_TRUE(a.Answers("left", "-"));
  EXPECT_TRUE(b.Answers("left", "-"));
}

INSTANTIATE_TEST_SUITE_P(All, PeerProcessesOverEach, ::testing::ValuesIn(kDataPlanes));

// What was promised before is not asked for; what the new life does not have is not found.
TEST(PeerProcesses, AHolderIsRestartedInAFetch) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  TestNode asker(WithShortDeadlines("tcp"));
  holder.Ask("store 1");
  holder.Prepare();
  Fetching fetching(asker, ports.route());
  EXPECT_TRUE(ports.data.AwaitForwarded(Way::kToAsker, 1'000));
  holder.Restart();
  EXPECT_LT(fetching.Wait(), kPromptChunks);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  EXPECT_TRUE(asker.Becomes("terrace_peer_lost_chunks_total",
                            kPromptChunks - asker.Counter("terrace_peer_fetched_chunks_total")));
  holder.Ask("store 2");
  EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(2), ports.route()));
  EXPECT_LT(asker.Fetch(PromptKeys(1), ports.route()), kPromptChunks);
  EXPECT_EQ(asker.Counter("terrace_peer_restarts_total"), 1u);
  EXPECT_TRUE(holder.Answers("left", "-"));
}

// For its operator: what happened, in one line, however often.
TEST(PeerProcesses, ADeadHolderIsOneLineInTheLog) {
  auto holder = std::make_unique<NodeProcess>(WithShortDeadlines("tcp"));
  NodeProcess asker(WithShortDeadlines("tcp"));
  holder->Ask("store 1");
  const std::string fetch = "fetch 1 " + holder->address();
  EXPECT_EQ(asker.Ask(fetch), std::to_string(kPromptChunks));
  holder->Kill();
  EXPECT_TRUE(asker.Answers("counter terrace_peer_failures_total", "1"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(asker.Ask("fetch 2 " + holder->address()), "0");
  const std::string log = asker.Log();
  const std::string line = "warning terrace: peer ";
  const auto first = log.find(line);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.compare(first + line.size(), holder->address().size(), holder->address()), 0);
  EXPECT_EQ(log.find(line, first + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace terrace::testing
