// Nodes in processes of their own that are stopped and, once a deadline has passed, continued:
// nobody waits for longer than that, nothing stays pinned meanwhile, and then chunks come again.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/peer/fetching.h"
#include "tests/peer/node_process.h"
#include "tests/peer/proxied_ports.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Kind = Proxy::Fault::Kind;
using Way = Proxy::Way;

constexpr milliseconds kLongerThanALease{kLeaseMs + 200};

class PeerStopsOverEach : public ::testing::TestWithParam<const char*> {};

TEST_P(PeerStopsOverEach, AHolderBeforeALookUp) {
  NodeProcess holder(WithShortDeadlines(GetParam()));
  TestNode asker(WithShortDeadlines(GetParam()));
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
TEST_P(PeerStopsOverEach, AHolderBeforeAnybodyConnects) {
  NodeProcess holder(WithShortDeadlines(GetParam()));
  for (const char* line : {"store 1", "store 2", "store 3"}) holder.Ask(line);
  holder.Stop();
  TestNode asker(WithShortDeadlines(GetParam()));
  TestNodeOptions of_a_group = WithShortDeadlines(GetParam());
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

INSTANTIATE_TEST_SUITE_P(All, PeerStopsOverEach, ::testing::ValuesIn(kDataPlanes));

// The rest of the hello waits at a holder that is stopped.
TEST(PeerStops, AHolderBeforeItAnswersAHello) {
  constexpr std::size_t kInTheHello = 200;
  ProxiedPorts ports;
  ports.control.Set({Kind::kOneWayHole, Way::kToHolder, kInTheHello});
  NodeProcess holder(ports.options());
  TestNode asker(WithShortDeadlines("tcp"));
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

TEST(PeerStops, AHolderAtEveryMessage) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  for (const char* line : {"store 1", "store 2"}) holder.Ask(line);
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ports.DelayAll();
    TestNode asker(WithShortDeadlines("tcp"));
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

TEST(PeerStops, AnAskerAtEveryMessage) {
  ProxiedPorts ports;
  TestNode holder(ports.options());
  for (const std::uint32_t prompt : {1u, 2u}) holder.Store(PromptKeys(prompt));
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    ports.DelayAll();
    NodeProcess asker(WithLongDeadlines("tcp"));
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

TEST(PeerStops, AHolderInAFetch) {
  ProxiedPorts ports;
  NodeProcess holder(ports.options());
  TestNode asker(WithShortDeadlines("tcp"));
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

}  // namespace
}  // namespace terrace::testing
