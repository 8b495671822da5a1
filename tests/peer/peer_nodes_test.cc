// Whole nodes, made from configurations, that fetch from each other over ZeroMQ and each data
// plane.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "terrace/node.h"
#include "terrace/peer_keys.h"
#include "tests/contract/temp_dir.h"
#include "tests/peer/test_node.h"
#include "tests/support/keys.h"

namespace terrace::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::Keys;

// More than a data link asks for at a time, no more than the share of one of two askers.
constexpr std::size_t kChunks = 34;

TestNodeOptions Over(const std::string& plane, const std::string& dtype = "f16") {
  TestNodeOptions options;
  options.plane = plane;
  options.dtype = dtype;
  return options;
}

class PeerNodes : public ::testing::TestWithParam<const char*> {};

// Nobody steps the holder: its engine is idle, or busy with its model.
TEST_P(PeerNodes, AHolderWhoseEngineDoesNothingServes) {
  TestNode holder(Over(GetParam())), asker(Over(GetParam()));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), holder.route()), kChunks);
  EXPECT_EQ(asker.Fetch(Keys(100, kChunks), holder.route()), 0u) << "what is not there is a miss";
  EXPECT_EQ(asker.Counter("terrace_peer_fetched_chunks_total"), kChunks);
  EXPECT_TRUE(holder.Becomes("terrace_peer_leases", 0));
}

TEST_P(PeerNodes, TheyFetchFromEachOther) {
  TestNode a(Over(GetParam())), b(Over(GetParam()));
  a.Store(Keys(1, kChunks));
  b.Store(Keys(100, kChunks));
  std::size_t got = 0;
  std::thread other([&] { got = b.Fetch(Keys(1, kChunks), a.route()); });
  EXPECT_EQ(a.Fetch(Keys(100, kChunks), b.route()), kChunks);
  other.join();
  EXPECT_EQ(got, kChunks);
}

TEST_P(PeerNodes, TwoAskOneAtOnce) {
  TestNode holder(Over(GetParam())), a(Over(GetParam())), b(Over(GetParam()));
  holder.Store(Keys(1, kChunks));
  std::size_t got = 0;
  std::thread other([&] { got = b.Fetch(Keys(1, kChunks), holder.route()); });
  EXPECT_EQ(a.Fetch(Keys(1, kChunks), holder.route()), kChunks);
  other.join();
  EXPECT_EQ(got, kChunks);
  for (TestNode* node : {&holder, &a, &b}) EXPECT_EQ(node->LeftoversInTheEnd(), "");
}

// Each fetches from the next one, again and again: what it fetches it serves to the one before.
TEST_P(PeerNodes, ThreeInARing) {
  std::vector<std::unique_ptr<TestNode>> nodes;
  for (int i = 0; i < 3; ++i) nodes.push_back(std::make_unique<TestNode>(Over(GetParam())));
  for (std::uint64_t i = 0; i < 3; ++i) nodes[i]->Store(Keys(1 + 100 * i, kChunks));
  for (std::size_t hop = 1; hop < 3; ++hop) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        const auto keys = Keys(1 + 100 * ((i + hop) % 3), kChunks);
        EXPECT_EQ(nodes[i]->Fetch(keys, nodes[(i + 1) % 3]->route()), kChunks);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& node : nodes) EXPECT_EQ(node->LeftoversInTheEnd(), "");
}

TEST_P(PeerNodes, AHolderThatGoesIsNoticed) {
  auto holder = std::make_unique<TestNode>(Over(GetParam()));
  TestNode asker(Over(GetParam()));
  holder->Store(Keys(1, kChunks));
  const auto route = holder->route();
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), route), kChunks);
  EXPECT_EQ(asker.Counter("terrace_peer_links"), 1u);
  holder.reset();
  EXPECT_TRUE(asker.Becomes("terrace_peer_links", 0));
  EXPECT_EQ(asker.Fetch(Keys(100, kChunks), route), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, PeerNodes,
                         ::testing::Values("auto", "shared_memory",
#ifdef TERRACE_WITH_UCX
                                           "ucx",
#endif
                                           "tcp"));

TEST(PeerNodesBetweenPlanes, WhoHasNoPlaneInCommonComputes) {
  TestNode holder(Over("tcp")), asker(Over("shared_memory"));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), holder.route()), 0u);
  EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), 1u);
}

TEST(PeerNodesBetweenPlanes, AutoTakesWhatTheOtherHas) {
  TestNode holder(Over("tcp")), asker(Over("auto"));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), holder.route()), kChunks);
}

TEST(PeerNodesBetweenPlanes, AnotherModelIsRefused) {
  TestNode holder, asker(Over("auto", "f32"));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), holder.route()), 0u);
  EXPECT_EQ(asker.Counter("terrace_peer_refusals_total"), 1u);
}

// A group's keys, as `terrace peer-keys` makes them.
class PeerNodesWithKeys : public ::testing::Test {
 protected:
  TestNodeOptions With(const PeerKeyPair& pair, const std::string& name) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << pair.secret_key << "\n";
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    TestNodeOptions options = Over("tcp");
    options.more = R"("host": "0.0.0.0", "secret_key_file": ")" + path + R"(", "public_key": ")" +
                   pair.public_key + "\"";
    return options;
  }
  TempDir folder_;
  const PeerKeyPair group_ = MakePeerKeyPair();
};

TEST_F(PeerNodesWithKeys, TheGroupFetches) {
  TestNode holder(With(group_, "one")), asker(With(group_, "two"));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(asker.Fetch(Keys(1, kChunks), holder.route()), kChunks);
}

TEST_F(PeerNodesWithKeys, WhoHasOtherKeysOrNoneComputes) {
  TestNode holder(With(group_, "one")), other(With(MakePeerKeyPair(), "two")), none(Over("tcp"));
  holder.Store(Keys(1, kChunks));
  EXPECT_EQ(other.Fetch(Keys(1, kChunks), holder.route()), 0u);
  EXPECT_EQ(none.Fetch(Keys(1, kChunks), holder.route()), 0u);
  EXPECT_EQ(holder.Counter("terrace_peer_sessions_opened_total"), 0u);
}

TEST_F(PeerNodesWithKeys, AKeyThatOthersCanReadIsRefused) {
  const std::string more = With(group_, "one").more;
  ASSERT_EQ(::chmod((folder_.path() + "/one").c_str(), 0640), 0);
  const auto config = ParseNodeConfig(
      R"({"cpu_bytes_to_use": "1MiB", "secondary_tiers": [{"type": "peer", "port": 0, )" + more +
      "}]}");
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto node = Node::Create(
      config.value(), CacheIdentity::Create(TestIdentityFields(kNodeChunkBytes)).value());
  ASSERT_FALSE(node.ok());
  EXPECT_THAT(node.error().message, HasSubstr("chmod 600"));
}

TEST(PeerNodesBetweenPlanes, APortThatIsTakenIsSaidAtTheStart) {
  TestNode first;
  auto config = ParseNodeConfig(
      R"({"cpu_bytes_to_use": "1MiB", "secondary_tiers": [{"type": "peer", "port": )" +
      std::to_string(first.port()) + "}]}");
  ASSERT_TRUE(config.ok());
  const auto second = Node::Create(
      config.value(), CacheIdentity::Create(TestIdentityFields(kNodeChunkBytes)).value());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("secondary_tiers[0]"));
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(first.port())));
}

}  // namespace
}  // namespace terrace::testing
