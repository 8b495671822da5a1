// Nodes in processes of their own that are killed, stopped, continued and restarted while others
// fetch from them: nobody waits for long, no byte is wrong, nothing stays pinned, and what works
// again is used again.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "tests/peer/fetching.h"
#include "tests/peer/node_process.h"
#include "tests/peer/proxy.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Kind = Proxy::Fault::Kind;
using Way = Proxy::Way;

constexpr milliseconds kLongerThanALease{kLeaseMs + 200};

TestNodeOptions Over(const std::string& plane) { return WithShortDeadlines(plane); }

// When something happens to a node: so many bytes have passed one of its ports.
struct Moment {
  const char* name;
  bool on_data;
  Way way;
  std::size_t bytes;
};
// By what was counted; a hello has more than 200 bytes, the messages before it less than 120.
constexpr Moment kMoments[] = {
    {"connected", false, Way::kToHolder, 1},        {"hello", false, Way::kToHolder, 200},
    {"welcome", false, Way::kToAsker, 150},         {"look-up", false, Way::kToHolder, 800},
    {"answer", false, Way::kToAsker, 230},          {"data link", true, Way::kToHolder, 1},
    {"data link is open", true, Way::kToAsker, 1},  {"reads", true, Way::kToHolder, 100},
    {"first bytes", true, Way::kToAsker, 1'000},    {"half of it", true, Way::kToAsker, 3'000'000},
    {"nearly all", true, Way::kToAsker, 9'000'000},
};
// The first from which on the holder has a data link, and so notices that the asker dies.
constexpr std::size_t kLinkedFrom = 6;

// A node over TCP whose two ports have proxies; each is slow enough that a fetch takes a while.
struct ProxiedPorts {
  ProxiedPorts() : control_port(FreePort()), data_port(FreePort()) { DelayAll(); }
  void DelayAll() {
    for (Proxy* proxy : {&control, &data}) proxy->Set({Kind::kDelay});
  }
  bool Await(const Moment& moment) const {
    return (moment.on_data ? data : control).AwaitForwarded(moment.way, moment.bytes);
  }
  TestNodeOptions options() const {
    TestNodeOptions options = Over("tcp");
    options.port = control_port;
    options.more += ", \"data_port\": " + std::to_string(data_port);
    return options;
  }
  std::shared_ptr<const PeerRoute> route() const { return RouteTo(kProxyHost, control_port); }
  std::string address() const {
    return std::string(kProxyHost) + ":" + std::to_string(control_port);
  }

  const std::uint32_t control_port, data_port;
  Proxy control{control_port}, data{data_port};
};

TEST(PeerProcesses, AHolderIsKilledAtEveryMessage) {
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ProxiedPorts ports;
    NodeProcess holder(ports.options());
    TestNode asker(Over("tcp"));
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
    NodeProcess asker(Over("tcp"));
    asker.Say("fetch 1 " + ports.address());
    EXPECT_TRUE(ports.Await(moment));
    const auto sessions_before = holder.Counter("terrace_peer_sessions_expired_total");
    asker.Kill();
    EXPECT_EQ(holder.LeftoversInTheEnd(), "");
    if (n++ >= kLinkedFrom) {
      EXPECT_TRUE(holder.Becomes("terrace_peer_sessions_expired_total", sessions_before + 1));
    }
  }
  NodeProcess asker(Over("tcp"));
  EXPECT_EQ(asker.Ask("fetch 1 " + ports.address()), std::to_string(kPromptChunks));
}

class PeerProcessesOverEach : public ::testing::TestWithParam<const char*> {};

TEST_P(PeerProcessesOverEach, AHolderIsKilledSomeTimeIntoAFetch) {
  for (const int ms : {1, 4, 8, 16}) {
    SCOPED_TRACE(ms);
    NodeProcess holder(Over(GetParam()));
    TestNode asker(Over(GetParam()));
    holder.Ask("store 1");
    Fetching fetching(asker, holder.route());
    std::this_thread::sleep_for(milliseconds(ms));
    holder.Kill();
    fetching.Wait();
    EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  }
}

TEST_P(PeerProcessesOverEach, AHolderIsStoppedBeforeALookUpAndContinued) {
  NodeProcess holder(Over(GetParam()));
  TestNode asker(Over(GetParam()));
  for (const char* line : {"store 1", "store 2", "store 3"}) holder.Ask(line);
  EXPECT_EQ(asker.Fetch(PromptKeys(2), holder.route()), kPromptChunks);

  holder.Stop();
  Fetching fetching(asker, holder.route());
  EXPECT_EQ(fetching.Wait(), 0u);
  // Who comes later does not wait: nothing is asked there while it is down.
  EXPECT_TRUE(asker.ComputesWithoutAsking(PromptKeys(3), holder.route()));
  std::this_thread::sleep_for(kLongerThanALease);
  EXPECT_TRUE(asker.ComputesWithoutAsking(PromptKeys(3), holder.route()));

  holder.Continue();
  EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(3), holder.route()));
  EXPECT_EQ(asker.Counter("terrace_peer_restarts_total"), 0u);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  EXPECT_TRUE(holder.Answers("left", "-"));
}

// It waits for an accept, or for the greeting, when the asker's deadline passes.
TEST_P(PeerProcessesOverEach, AHolderIsStoppedBeforeAnybodyConnectsAndContinued) {
  NodeProcess holder(Over(GetParam()));
  for (const char* line : {"store 1", "store 2", "store 3"}) holder.Ask(line);
  holder.Stop();
  TestNode asker(Over(GetParam()));
  TestNodeOptions of_a_group = Over(GetParam());
  of_a_group.more += ", \"peers\": [\"" + holder.address() + "\"]";
  TestNode member(of_a_group);
  for (TestNode* node : {&asker, &member}) {
    Fetching fetching(*node, node == &asker ? holder.route() : nullptr);
    EXPECT_EQ(fetching.Wait(), 0u);
    EXPECT_GE(node->Counter("terrace_peer_failures_total"), 1u);
    EXPECT_EQ(node->LeftoversInTheEnd(), "");
  }
  EXPECT_TRUE(asker.ComputesWithoutAsking(PromptKeys(3), holder.route()));

  holder.Continue();
  EXPECT_TRUE(member.Becomes("terrace_peer_links", 1)) << "no request has to ask for it";
  EXPECT_TRUE(member.FetchesInTheEnd(PromptKeys(2), nullptr));
  EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(3), holder.route()));
  for (TestNode* node : {&asker, &member}) {
    EXPECT_EQ(node->Counter("terrace_peer_restarts_total"), 0u);
    EXPECT_EQ(node->LeftoversInTheEnd(), "");
  }
  EXPECT_TRUE(holder.Answers("left", "-"));
  // Nothing is left of the hellos that came too late.
  EXPECT_TRUE(holder.Answers("counter terrace_peer_sessions", "2"));
}

// How long nobody served is told and not checked: under a sanitizer to start takes longer.
TEST_P(PeerProcessesOverEach, AHolderIsRestartedAtOnce) {
  NodeProcess holder(Over(GetParam()));
  TestNode asker(Over(GetParam()));
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
  NodeProcess a(Over(GetParam())), b(Over(GetParam()));
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

INSTANTIATE_TEST_SUITE_P(All, PeerProcessesOverEach,
                         ::testing::Values("shared_memory", "tcp"
#ifdef TERRACE_WITH_UCX
                                           ,
                                           "ucx"
#endif
                                           ));

// The rest of the hello waits at a holder that is stopped.
TEST(PeerProcesses, AHolderIsStoppedBeforeItAnswersAHelloAndContinued) {
  constexpr std::size_t kInTheHello = 200;
  ProxiedPorts ports;
  ports.control.Set({Kind::kOneWayHole, Way::kToHolder, kInTheHello});
  NodeProcess holder(ports.options());
  TestNode asker(Over("tcp"));
  for (const char* line : {"store 1", "store 2"}) holder.Ask(line);
  Fetching fetching(asker, ports.route());
  EXPECT_TRUE(ports.control.AwaitForwarded(Way::kToHolder, kInTheHello));
  holder.Stop();
  ports.control.Set({});
  EXPECT_EQ(fetching.Wait(), 0u);
  EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), 1u);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  holder.Continue();
  EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(2), ports.route()));
  EXPECT_TRUE(holder.Answers("left", "-"));
  EXPECT_TRUE(holder.Answers("counter terrace_peer_sessions", "1"));
}

TEST(PeerProcesses, AHolderIsStoppedAtEveryMessageAndContinued) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  for (const char* line : {"store 1", "store 2"}) holder.Ask(line);
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ports.DelayAll();
    TestNode asker(Over("tcp"));
    Fetching fetching(asker, ports.route());
    EXPECT_TRUE(ports.Await(moment));
    holder.Stop();
    // What is under way at the end may be all of it.
    if (fetching.Wait() < kPromptChunks) {
      EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), 1u);
    }
    EXPECT_EQ(asker.LeftoversInTheEnd(), "");
    holder.Continue();
    EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(2), ports.route()));
    EXPECT_EQ(asker.LeftoversInTheEnd(), "");
    EXPECT_TRUE(holder.Answers("left", "-"));
  }
}

TEST(PeerProcesses, AnAskerIsStoppedAtEveryMessageAndContinued) {
  ProxiedPorts ports;
  TestNode holder(ports.options());
  for (const std::uint32_t prompt : {1u, 2u}) holder.Store(PromptKeys(prompt));
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ports.DelayAll();
    NodeProcess asker(Over("tcp"));
    asker.Say("fetch 1 " + ports.address());
    EXPECT_TRUE(ports.Await(moment));
    asker.Stop();
    std::this_thread::sleep_for(kLongerThanALease);
    EXPECT_EQ(holder.LeftoversInTheEnd(), "") << "it holds up nothing";
    asker.Continue();
    EXPECT_NE(asker.Hear(), "gone");
    EXPECT_TRUE(asker.Answers("fetch 2 " + ports.address(), std::to_string(kPromptChunks)));
    EXPECT_TRUE(asker.Answers("left", "-"));
    EXPECT_EQ(holder.LeftoversInTheEnd(), "");
  }
}

TEST(PeerProcesses, AHolderIsStoppedInAFetchAndContinued) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  TestNode asker(Over("tcp"));
  holder.Ask("store 1");
  holder.Ask("store 2");
  Fetching fetching(asker, ports.route());
  EXPECT_TRUE(ports.data.AwaitForwarded(Way::kToAsker, 1'000));
  holder.Stop();
  EXPECT_LT(fetching.Wait(), kPromptChunks);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
  EXPECT_EQ(asker.Counter("terrace_peer_overdue_fetches_total"), 1u);
  std::this_thread::sleep_for(kLongerThanALease);
  holder.Continue();
  EXPECT_TRUE(asker.FetchesInTheEnd(PromptKeys(2), ports.route()));
  EXPECT_TRUE(holder.Answers("left", "-"));
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
}

// What was promised before is not asked for; what the new life does not have is not found.
TEST(PeerProcesses, AHolderIsRestartedInAFetch) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  TestNode asker(Over("tcp"));
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
  auto holder = std::make_unique<NodeProcess>(Over("tcp"));
  NodeProcess asker(Over("tcp"));
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
