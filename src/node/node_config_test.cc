#include "terrace/node_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "node/json_reader.h"
#include "node/node_config_keys.h"
#include "terrace/secondary_tier.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kPublicKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

NodeConfig Parsed(std::string_view text) {
  auto config = ParseNodeConfig(text);
  EXPECT_TRUE(config.ok()) << text << "\n" << (config.ok() ? "" : config.error().message);
  return config.ok() ? std::move(config).value() : NodeConfig{};
}

std::string FaultsOf(std::string_view text) {
  const auto config = ParseNodeConfig(text);
  EXPECT_FALSE(config.ok()) << text;
  if (config.ok()) return "";
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  return config.error().message;
}

// A configuration that is right but for one key, whose value is `value`.
std::string With(const std::string& key, const std::string& value) {
  return R"({"cpu_bytes_to_use": 1, ")" + key + "\": " + value + "}";
}
std::string WithTier(const std::string& tier) { return With("secondary_tiers", "[" + tier + "]"); }

TEST(ParseNodeConfig, FillsInDefaults) {
  const NodeConfig config = Parsed(R"({"cpu_bytes_to_use": 4096})");
  EXPECT_EQ(config.cpu_bytes_to_use, 4096u);
  EXPECT_EQ(config.eviction_policy, "lru");
  EXPECT_EQ(config.tokens_per_chunk, 64u);
  EXPECT_TRUE(config.offload_prompt_only);
  EXPECT_TRUE(config.secondary_tiers.empty());
}

TEST(ParseNodeConfig, ReadsEveryKey) {
  const NodeConfig config = Parsed(R"({
    "cpu_bytes_to_use": "1.5GiB", "huge_pages": "explicit", "prefault_threads": 3,
    "lock_memory": true, "eviction_policy": "arc", "tokens_per_chunk": 128,
    "offload_prompt_only": false,
    "secondary_tiers": [
      {"type": "memory", "bytes": "512MiB"},
      {"type": "file", "root_dir": "kv", "n_read_threads": 3, "n_write_threads": 5,
       "direct_io": false, "layout": "vllm"},
      {"type": "file", "root_dir": "/kv"},
      {"type": "plugin", "library": "a.so", "options": {"b": [1.5, "\u00e9"], "a": {}}}]})");
  EXPECT_EQ(config.cpu_bytes_to_use, 1'610'612'736u);
  EXPECT_EQ(config.huge_pages, "explicit");
  EXPECT_EQ(config.prefault_threads, 3u);
  EXPECT_TRUE(config.lock_memory);
  EXPECT_EQ(config.tokens_per_chunk, 128u);
  EXPECT_FALSE(config.offload_prompt_only);
  ASSERT_EQ(config.secondary_tiers.size(), 4u);
  EXPECT_EQ(config.secondary_tiers[0].type, TierConfig::Type::kMemory);
  EXPECT_EQ(config.secondary_tiers[0].memory.bytes, 536'870'912u);
  const TierConfig& file = config.secondary_tiers[1];
  EXPECT_EQ(file.type, TierConfig::Type::kFile);
  EXPECT_EQ(file.file.root_dir, "kv");
  EXPECT_EQ(file.file.n_read_threads, 3u);
  EXPECT_EQ(file.file.n_write_threads, 5u);
  EXPECT_FALSE(file.file.direct_io);
  EXPECT_EQ(file.file.layout, "vllm");
  EXPECT_EQ(config.secondary_tiers[2].file.root_dir, "/kv");
  EXPECT_EQ(config.secondary_tiers[2].file.n_read_threads, 2u);
  EXPECT_EQ(config.secondary_tiers[3].type, TierConfig::Type::kPlugin);
  EXPECT_EQ(config.secondary_tiers[3].plugin.library, "a.so");
  EXPECT_EQ(config.secondary_tiers[3].plugin.options.text, R"({"a":{},"b":[1.5,"é"]})");
}

TEST(ParseNodeConfig, ChecksPlugins) {
  EXPECT_EQ(Parsed(WithTier(R"({"type": "plugin", "library": "a.so"})"))
                .secondary_tiers[0]
                .plugin.options.text,
            "{}");
  for (const char* options : {"[]", "\"x\"", "null", "1"}) {
    EXPECT_THAT(FaultsOf(WithTier(R"({"type": "plugin", "library": "a.so", "options": )" +
                                  std::string(options) + "}")),
                StartsWith("secondary_tiers[0].options: must be an object, is "));
  }
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "plugin", "library": ""})")),
            "secondary_tiers[0].library: must not be empty");
  EXPECT_THAT(FaultsOf(WithTier(R"({"type": "plugin"})")),
              StartsWith("secondary_tiers[0].library: is missing"));
}

TEST(ParseNodeConfig, TellsEveryFaultAtOnce) {
  EXPECT_EQ(FaultsOf(R"({
      "cpu_byte_to_use": 5, "tokens_per_chunk": 0, "tokens_per_chunk": 70000,
      "secondary_tiers": [{"type": "file", "bytes": 3}, {"type": "fs"}, 7]})"),
            R"(tokens_per_chunk: is given more than once
cpu_bytes_to_use: is missing (the size of the host tier, for all ranks together)
tokens_per_chunk: must be a whole number from 1 to 65536, is 70000
secondary_tiers[0].root_dir: is missing (a directory for chunks)
secondary_tiers[0].bytes: is a key of tiers of type "memory", and this one is "file"
secondary_tiers[1].type: "fs" is not a kind of tier in this build; it has "memory", "file", "peer", "plugin"; did you mean "file"?
secondary_tiers[2]: must be an object with a type, is 7
cpu_byte_to_use: is not a known key; did you mean "cpu_bytes_to_use"?)");
}

TEST(ParseNodeConfig, WantsAnObject) {
  EXPECT_EQ(FaultsOf("[]"), "document: must be an object, is an array");
  EXPECT_EQ(FaultsOf("null"), "document: must be an object, is null");
  EXPECT_EQ(FaultsOf("\"x\""), "document: must be an object, is \"x\"");
  EXPECT_THAT(FaultsOf(""), StartsWith("document: is empty"));
  EXPECT_THAT(FaultsOf("{"), StartsWith("line 1, column 2: is not JSON"));
}

TEST(ParseNodeConfig, NamesUnknownKeys) {
  EXPECT_EQ(FaultsOf(With("cheese", "1")), "cheese: is not a known key");
  EXPECT_EQ(FaultsOf(With("Tokens_Per_Chunk", "1")),
            "Tokens_Per_Chunk: is not a known key; did you mean \"tokens_per_chunk\"?");
  EXPECT_EQ(FaultsOf(With("a b", "1")), "[\"a b\"]: is not a known key");
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "memory", "bytes": 1, "byte": 1})")),
            "secondary_tiers[0].byte: is not a known key; did you mean \"bytes\"?");
}

TEST(ParseNodeConfig, BoundsSizes) {
  EXPECT_EQ(Parsed(R"({"cpu_bytes_to_use": 1})").cpu_bytes_to_use, 1u);
  EXPECT_EQ(Parsed(R"({"cpu_bytes_to_use": 9223372036854775807})").cpu_bytes_to_use,
            9223372036854775807u);
  for (const char* value : {"0", "9223372036854775808", "18446744073709551615", "\"0GiB\"",
                            "\"0.0001KB\"", "\"8388608TiB\""}) {
    EXPECT_EQ(FaultsOf("{\"cpu_bytes_to_use\": " + std::string(value) + "}"),
              "cpu_bytes_to_use: must be 1 to 9223372036854775807 bytes, is " + std::string(value));
  }
  for (const char* value :
       {"-1", "1.0", "1e9", "18446744073709551616", "true", "null", "[]", "{}"}) {
    EXPECT_THAT(FaultsOf("{\"cpu_bytes_to_use\": " + std::string(value) + "}"),
                StartsWith("cpu_bytes_to_use: must be a whole number of bytes from 1 to "
                           "9223372036854775807 or a string such as \"512MiB\", is "))
        << value;
  }
  EXPECT_THAT(FaultsOf(R"({"cpu_bytes_to_use": "2gib"})"),
              StartsWith(R"(cpu_bytes_to_use: "2gib" is not a size)"));
  EXPECT_EQ(FaultsOf(R"({"cpu_bytes_to_use": "99999999TiB"})"),
            R"(cpu_bytes_to_use: "99999999TiB" is more than 64 bits hold)");
}

TEST(ParseNodeConfig, WantsAHostAndAPortForMetrics) {
  for (const char* right : {"", "127.0.0.1:9464", "localhost:0", "[::1]:65535", "0.0.0.0:80"}) {
    EXPECT_EQ(Parsed(With("metrics_listen", "\"" + std::string(right) + "\"")).metrics_listen,
              right);
  }
  for (const char* wrong : {":9464", "9464", "localhost", "localhost:", "localhost:-1", "a:65536",
                            "a:123456", "::1:9464", "[::1]", "[]:1", "[x]:1", "a b:1", "a:b:1"}) {
    EXPECT_EQ(FaultsOf(With("metrics_listen", "\"" + std::string(wrong) + "\"")),
              "metrics_listen: must be host:port, is \"" + std::string(wrong) + "\"");
  }
  EXPECT_EQ(FaultsOf(With("metrics_listen", "9464")), "metrics_listen: must be a string, is 9464");
}

TEST(ParseNodeConfig, BoundsWholeNumbers) {
  EXPECT_EQ(Parsed(With("tokens_per_chunk", "1")).tokens_per_chunk, 1u);
  EXPECT_EQ(Parsed(With("tokens_per_chunk", "65536")).tokens_per_chunk, 65536u);
  for (const char* value : {"0", "65537", "4294967297", "18446744073709551616", "-1", "64.0",
                            "64.5", "1e400", "\"64\"", "true", "null", "[]", "{}"}) {
    EXPECT_FALSE(ParseNodeConfig(With("tokens_per_chunk", value)).ok()) << value;
  }
  EXPECT_EQ(FaultsOf(With("tokens_per_chunk", "64.5")),
            "tokens_per_chunk: must be a whole number from 1 to 65536, is 64.5");
  for (const char* key : {"n_read_threads", "n_write_threads"}) {
    const std::string tier = R"({"type": "file", "root_dir": "a", ")" + std::string(key) + "\": ";
    EXPECT_TRUE(ParseNodeConfig(WithTier(tier + "1}")).ok());
    EXPECT_TRUE(ParseNodeConfig(WithTier(tier + "64}")).ok());
    for (const char* value : {"0}", "65}"}) {
      EXPECT_THAT(FaultsOf(WithTier(tier + value)),
                  StartsWith("secondary_tiers[0]." + std::string(key) +
                             ": must be a whole number from 1 to 64, is "));
    }
  }
}

TEST(ParseNodeConfig, ChecksBooleansAndChoices) {
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "file", "root_dir": "a", "layout": "slab"})")),
            "secondary_tiers[0].layout: must be one of \"records\", \"vllm\", is \"slab\"");
  EXPECT_EQ(FaultsOf(With("offload_prompt_only", "1")),
            "offload_prompt_only: must be true or false, is 1");
  EXPECT_EQ(FaultsOf(With("offload_prompt_only", "\"yes\"")),
            "offload_prompt_only: must be true or false, is \"yes\"");
  EXPECT_EQ(FaultsOf(With("eviction_policy", "\"fifo\"")),
            "eviction_policy: must be one of \"lru\", \"arc\", \"s3fifo\", \"sieve\", is \"fifo\"");
  EXPECT_EQ(FaultsOf(With("huge_pages", "\"on\"")),
            "huge_pages: must be one of \"off\", \"transparent\", \"explicit\", is \"on\"");
  EXPECT_EQ(FaultsOf(With("eviction_policy", "3")), "eviction_policy: must be a string, is 3");
}

TEST(ParseNodeConfig, ChecksTheListOfTiers) {
  EXPECT_EQ(FaultsOf(With("secondary_tiers", "{}")),
            "secondary_tiers: must be an array, is an object");
  std::string many = R"({"type": "memory", "bytes": 1})";
  for (int i = 1; i < 16; ++i) many += R"(, {"type": "memory", "bytes": 1})";
  EXPECT_EQ(Parsed(WithTier(many)).secondary_tiers.size(), 16u);
  EXPECT_EQ(FaultsOf(WithTier(many + ", 1")),
            "secondary_tiers: must have at most 16 tiers, has 17");
}

TEST(ParseNodeConfig, ChecksTheKindOfTier) {
  EXPECT_EQ(FaultsOf(WithTier("{}")),
            "secondary_tiers[0].type: is missing (the kind of tier, one of \"memory\", \"file\", "
            "\"peer\", \"plugin\")");
  EXPECT_EQ(
      FaultsOf(WithTier(R"({"type": 1})")),
      "secondary_tiers[0].type: must be one of \"memory\", \"file\", \"peer\", \"plugin\", is 1");
  for (const char* type : {"object", "obj", ""}) {
    EXPECT_EQ(FaultsOf(WithTier(R"({"type": ")" + std::string(type) + "\"}")),
              "secondary_tiers[0].type: \"" + std::string(type) +
                  "\" is not a kind of tier in this build; it has \"memory\", \"file\", \"peer\", "
                  "\"plugin\"");
  }
  EXPECT_THAT(FaultsOf(WithTier(R"({"type": "memry"})")), HasSubstr("did you mean \"memory\"?"));
  EXPECT_THAT(FaultsOf(WithTier(R"({"type": "p2p"})")), HasSubstr("did you mean \"peer\"?"));
}

TEST(ParseNodeConfig, BlamesOnlySureFaultsIfTheKindIsUnknown) {
  const std::string faults = FaultsOf(WithTier(R"({"bytes": 1, "root_dir": "a", "cheese": 1})"));
  EXPECT_THAT(faults, HasSubstr("secondary_tiers[0].cheese: is not a known key"));
  EXPECT_THAT(faults, Not(HasSubstr("bytes")));
  EXPECT_THAT(faults, Not(HasSubstr("root_dir")));
}

TEST(ParseNodeConfig, RefusesKeysOfAnotherKind) {
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "memory", "bytes": 1, "root_dir": "a"})")),
            "secondary_tiers[0].root_dir: is a key of tiers of type \"file\", and this one is "
            "\"memory\"");
  EXPECT_EQ(FaultsOf(With("root_dir", "1")), "root_dir: is not a known key");
}

TEST(ParseNodeConfig, ChecksDirectories) {
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "file", "root_dir": ""})")),
            "secondary_tiers[0].root_dir: must not be empty");
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "file", "root_dir": "a\u0000b"})")),
            R"(secondary_tiers[0].root_dir: must not contain a NUL character, is "a\u0000b")");
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "file", "root_dir": 1})")),
            "secondary_tiers[0].root_dir: must be a string, is 1");
}

TEST(ParseNodeConfig, RefusesTwoTiersInOneDirectory) {
  for (const char* other : {"a", "a/", "./a", "b/../a", "a//", "a/."}) {
    EXPECT_EQ(FaultsOf(WithTier(R"({"type": "file", "root_dir": "a"},
                                   {"type": "memory", "bytes": 1},
                                   {"type": "file", "root_dir": ")" +
                                std::string(other) + "\"}")),
              "secondary_tiers[2].root_dir: is the directory of secondary_tiers[0] too; each file "
              "tier needs its own")
        << other;
  }
  Parsed(WithTier(R"({"type": "file", "root_dir": "a"}, {"type": "file", "root_dir": "/a"},
                     {"type": "file", "root_dir": "a/b"})"));
}

// --- Peer tiers ---

TEST(ParseNodeConfig, ReadsEveryKeyOfAPeerTier) {
  const NodeConfig config = Parsed(WithTier(R"({"type": "peer", "host": "0.0.0.0", "port": 0,
      "data_port": 7, "peers": ["10.0.0.7:5710", "[::1]:1", "node-b:65535"], "data_plane": "tcp",
      "public_key": ")" + kPublicKey + R"(", "secret_key_file": "/k",
      "allow_unauthenticated_network": true, "connect_timeout_ms": 1, "lookup_timeout_ms": 2,
      "hedge_ms": 3, "fetch_timeout_ms": 4, "lease_ms": 100, "park_timeout_ms": 55000,
      "max_peers": 5, "backpressure": "drop", "backpressure_ms_per_mib": 6})"));
  ASSERT_EQ(config.secondary_tiers.size(), 1u);
  EXPECT_EQ(config.secondary_tiers[0].type, TierConfig::Type::kPeer);
  EXPECT_EQ(config.secondary_tiers[0].backpressure, "drop");
  const PeerTierConfig& peer = config.secondary_tiers[0].peer;
  EXPECT_EQ(peer.host, "0.0.0.0");
  EXPECT_EQ(peer.port, 0u);
  EXPECT_EQ(peer.data_port, 7u);
  EXPECT_THAT(peer.peers, testing::ElementsAre("10.0.0.7:5710", "[::1]:1", "node-b:65535"));
  EXPECT_EQ(peer.data_plane, "tcp");
  EXPECT_EQ(peer.public_key, kPublicKey);
  EXPECT_EQ(peer.secret_key_file, "/k");
  EXPECT_TRUE(peer.allow_unauthenticated_network);
  EXPECT_EQ(peer.connect_timeout_ms, 1u);
  EXPECT_EQ(peer.lookup_timeout_ms, 2u);
  EXPECT_EQ(peer.hedge_ms, 3u);
  EXPECT_EQ(peer.fetch_timeout_ms, 4u);
  EXPECT_EQ(peer.lease_ms, 100u);
  EXPECT_EQ(peer.park_timeout_ms, 55'000u);
  EXPECT_EQ(peer.max_peers, 5u);
  Parsed(WithTier(R"({"type": "peer"})"));
}

TEST(ParseNodeConfig, ChecksTheListOfPeers) {
  const auto with = [](const std::string& peers) {
    return WithTier(R"({"type": "peer", "peers": )" + peers + "}");
  };
  EXPECT_EQ(FaultsOf(with(R"(["a:1", "b", "a:0", "a:00000", 7, "a:1"])")),
            "secondary_tiers[0].peers[1]: must be host:port, with a port above 0, is \"b\"\n"
            "secondary_tiers[0].peers[2]: must be host:port, with a port above 0, is \"a:0\"\n"
            "secondary_tiers[0].peers[3]: must be host:port, with a port above 0, is \"a:00000\"\n"
            "secondary_tiers[0].peers[4]: must be a string, is 7\n"
            "secondary_tiers[0].peers[5]: is in the list already: \"a:1\"");
  EXPECT_EQ(FaultsOf(with("\"a:1\"")), "secondary_tiers[0].peers: must be an array, is \"a:1\"");
  json many = json::array();
  for (int i = 1; i <= 1024; ++i) many.push_back("a:" + std::to_string(i));
  EXPECT_EQ(Parsed(with(many.dump())).secondary_tiers[0].peer.peers.size(), 1024u);
  many.push_back("b:1");
  EXPECT_EQ(FaultsOf(with(many.dump())),
            "secondary_tiers[0].peers: must have at most 1024 items, has 1025");
}

TEST(ParseNodeConfig, ChecksWherePeersConnect) {
  for (const char* wrong : {"a b", "[::1]", "a/b", "caf\\u00e9"}) {
    EXPECT_THAT(FaultsOf(WithTier(R"({"type": "peer", "host": ")" + std::string(wrong) + "\"}")),
                StartsWith("secondary_tiers[0].host: must be an address or a host's name"));
  }
  EXPECT_THAT(FaultsOf(WithTier(R"({"type": "peer", "host": "0.0.0.0"})")),
              StartsWith("secondary_tiers[0].host: can be reached from the network"));
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "peer", "data_plane": "rdma"})")),
            "secondary_tiers[0].data_plane: must be one of \"auto\", \"shared_memory\", \"ucx\", "
            "\"tcp\", is \"rdma\"");
}

TEST(ParseNodeConfig, ChecksPeersKeysOnlyIfEachIsRight) {
  EXPECT_THAT(FaultsOf(WithTier(R"({"type": "peer", "secret_key_file": "/k"})")),
              StartsWith("secondary_tiers[0].public_key: is missing"));
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "peer", "secret_key_file": "/k", "public_key": 7})")),
            "secondary_tiers[0].public_key: must be a string, is 7");
}

TEST(ParseNodeConfig, ANodeHasOnePeerTier) {
  EXPECT_EQ(FaultsOf(WithTier(R"({"type": "peer"}, {"type": "memory", "bytes": 1},
                                 {"type": "peer", "port": 1}, {"type": "peer", "port": 2})")),
            "secondary_tiers[2].type: is that of secondary_tiers[0] too; a node has at most one "
            "peer tier\n"
            "secondary_tiers[3].type: is that of secondary_tiers[0] too; a node has at most one "
            "peer tier");
}

TEST(ParseNodeConfig, ReadsTheControlThreadsPriority) {
  EXPECT_EQ(Parsed(With("control_thread", "{}")).control_thread.priority, "high");
  for (const std::string priority : {"normal", "high", "realtime"}) {
    EXPECT_EQ(Parsed(With("control_thread", R"({"priority": ")" + priority + "\"}"))
                  .control_thread.priority,
              priority);
  }
  EXPECT_EQ(FaultsOf(With("control_thread", R"({"priority": "low"})")),
            "control_thread.priority: must be one of \"normal\", \"high\", \"realtime\", is "
            "\"low\"");
  EXPECT_EQ(FaultsOf(With("control_thread", "\"high\"")),
            "control_thread: must be an object, is \"high\"");
  EXPECT_EQ(FaultsOf(With("control_thread", R"({"priorty": "high"})")),
            "control_thread.priorty: is not a known key; did you mean \"priority\"?");
}

TEST(ParseNodeConfig, StaysShortOnHostileDocuments) {
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i) text += "\"k" + std::to_string(i) + "\": 0, ";
  text += "\"x\": 0}";
  const std::string faults = FaultsOf(text);
  EXPECT_LT(faults.size(), 10'000u);
  EXPECT_TRUE(faults.ends_with(" more faults"));
}

// --- CheckNodeConfig ---

TEST(CheckNodeConfig, HoldsAStructToTheBoundsOfTheTable) {
  NodeConfig config = Parsed(R"({"cpu_bytes_to_use": 1, "secondary_tiers": [
      {"type": "file", "root_dir": "a"}]})");
  EXPECT_TRUE(CheckNodeConfig(config).ok());
  config.tier_poll_interval_s = std::nan("");
  config.lookup_timeout_ms = 0;
  config.eviction_policy = "none";
  config.secondary_tiers[0].backpressure = "x";
  config.secondary_tiers[0].backpressure_ms_per_mib = 0;
  config.secondary_tiers[0].file.root_dir = "";
  const auto checked = CheckNodeConfig(config);
  ASSERT_FALSE(checked.ok());
  for (const char* path : {"eviction_policy: must be one of", "lookup_timeout_ms: must be from 1",
                           "tier_poll_interval_s: must be from 0", "root_dir: must not be empty",
                           "secondary_tiers[0].backpressure: must be one of",
                           "secondary_tiers[0].backpressure_ms_per_mib: must be from 1"}) {
    EXPECT_NE(checked.error().message.find(path), std::string::npos) << path;
  }
  config = NodeConfig{};
  config.cpu_bytes_to_use = 1;
  config.control_thread.priority = "low";
  config.secondary_tiers.resize(2);
  for (TierConfig& tier : config.secondary_tiers) tier.type = TierConfig::Type::kPeer;
  config.secondary_tiers[0].peer.host = "0.0.0.0";
  config.secondary_tiers[0].peer.peers = {"a:1", "a"};
  config.secondary_tiers[0].peer.park_timeout_ms = 55'001;
  const auto peers = CheckNodeConfig(config);
  ASSERT_FALSE(peers.ok());
  for (const char* path :
       {"control_thread.priority: must be one of", "[0].peers[1]: must be host:port",
        "[0].park_timeout_ms: must be from 1 to 55000", "[0].host: can be reached",
        "[1].type: is that of secondary_tiers[0] too"}) {
    EXPECT_THAT(peers.error().message, HasSubstr(path));
  }
  config.secondary_tiers.resize(17);
  EXPECT_FALSE(CheckNodeConfig(config).ok());
}

// --- LoadNodeConfig ---

class LoadNodeConfigTest : public testing::Test {
 protected:
  LoadNodeConfigTest()
      : dir_(testing::TempDir() + "node_config_test_" + std::to_string(::getpid())) {
    std::filesystem::create_directory(dir_);
  }
  ~LoadNodeConfigTest() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& text) {
    const std::string path = dir_ + "/node.json";
    std::ofstream(path) << text;
    return path;
  }

  const std::string dir_;
};

TEST_F(LoadNodeConfigTest, ReadsAFile) {
  const auto config = LoadNodeConfig(Write(R"({"cpu_bytes_to_use": 7})"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().cpu_bytes_to_use, 7u);
}

TEST_F(LoadNodeConfigTest, NamesTheFileOnEveryLine) {
  const std::string path = Write(R"({"a": 1})");
  const auto config = LoadNodeConfig(path);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(config.error().message,
            path +
                ": cpu_bytes_to_use: is missing (the size of the host tier, for all ranks "
                "together)\n" +
                path + ": a: is not a known key");
}

TEST_F(LoadNodeConfigTest, SaysThatTheFileIsMissing) {
  const auto config = LoadNodeConfig(dir_ + "/none");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(config.error().message,
            "read configuration " + dir_ + "/none: No such file or directory");
}

TEST_F(LoadNodeConfigTest, SaysThatTheFileMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string path = Write("{}");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto config = LoadNodeConfig(path);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kPermissionDenied);
}

TEST_F(LoadNodeConfigTest, RefusesADirectory) {
  const auto config = LoadNodeConfig(dir_);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(config.error().message, HasSubstr("Is a directory"));
}

TEST_F(LoadNodeConfigTest, ReadsNoMoreThanADocumentMayHave) {
  const auto config = LoadNodeConfig("/dev/zero");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message, HasSubstr("has more than 1048576 bytes"));
  const std::string text = R"({"cpu_bytes_to_use": 7})";
  EXPECT_TRUE(LoadNodeConfig(Write(text + std::string(kMaxDocumentBytes - text.size(), ' '))).ok());
}

// --- The table, the schema and the parser say the same ---

// A document with the least that is valid around one key of the table.
struct Setting {
  std::string name;
  json schema;
  std::function<json(const json& value)> document;
};

std::vector<Setting> Settings() {
  const json schema = json::parse(NodeConfigSchema());
  std::vector<Setting> settings;
  for (const auto& [name, property] : schema["properties"].items()) {
    settings.push_back({name, property, [name = name](const json& value) {
                          json document = {{"cpu_bytes_to_use", 1}};
                          document[name] = value;
                          return document;
                        }});
    if (!property.contains("properties")) continue;
    for (const auto& [inner, inner_property] : property["properties"].items()) {
      settings.push_back(
          {name + "." + inner, inner_property, [name = name, inner = inner](const json& value) {
             return json{{"cpu_bytes_to_use", 1}, {name, {{inner, value}}}};
           }});
    }
  }
  for (const auto& [definition, tier] : schema["$defs"].items()) {
    json least = json::object();
    for (const json& name : tier["required"]) {
      const json& property = tier["properties"][name.get<std::string>()];
      least[name.get<std::string>()] =
          property.contains("const") ? property["const"] : property["examples"][0];
    }
    for (const auto& [name, property] : tier["properties"].items()) {
      if (property.contains("const")) continue;
      settings.push_back(
          {definition + "." + name, property, [=, name = name](const json& value) {
             json entry = least;
             entry[name] = value;
             // Keys come in pairs.
             const bool is_key = name == "public_key" || name == "secret_key_file";
             if (is_key && value != "") {
               entry.emplace("public_key", kPublicKey);
               entry.emplace("secret_key_file", "/k");
             }
             return json{{"cpu_bytes_to_use", 1}, {"secondary_tiers", json::array({entry})}};
           }});
    }
  }
  return settings;
}

bool Accepts(const json& document) { return ParseNodeConfig(document.dump()).ok(); }

TEST(NodeConfigCheck, ATierOfTheProgramsOwnHasTheBoundsOfEveryTier) {
  NodeConfig config;
  config.cpu_bytes_to_use = 1;
  config.secondary_tiers.emplace_back();
  TierConfig& tier = config.secondary_tiers.back();
  tier.type = TierConfig::Type::kCustom;
  tier.custom.make = [](TierHost&) -> Result<std::unique_ptr<SecondaryTier>> {
    return Error{ErrorCode::kUnavailable, "none"};
  };
  EXPECT_TRUE(CheckNodeConfig(config).ok());
  tier.backpressure = "perhaps";
  tier.backpressure_ms_per_mib = 0;
  const auto checked = CheckNodeConfig(config);
  ASSERT_FALSE(checked.ok());
  for (const char* key : {"secondary_tiers[0].backpressure:", "backpressure_ms_per_mib"}) {
    EXPECT_NE(checked.error().message.find(key), std::string::npos) << checked.error().message;
  }
}

TEST(NodeConfigSchema, HasEveryFieldOfTheStructs) {
  // These stop compiling when a field is added: add its key to the table, then count it here.
  [[maybe_unused]] const auto [bytes, pages, prefault, lock, policy, threshold, tracker, tokens,
                               prompt_only, timeout, patience, promoting, cascading, interval,
                               control, events, metrics, tiers] = NodeConfig{};
  [[maybe_unused]] const auto [priority] = control;
  [[maybe_unused]] const auto [type, memory, file, peer, plugin, custom, backpressure, limit] =
      TierConfig{};
  [[maybe_unused]] const auto [memory_bytes] = memory;
  [[maybe_unused]] const auto [root_dir, layout, readers, writers, direct_io] = file;
  [[maybe_unused]] const auto [host, port, data_port, peers, plane, public_key, secret, open,
                               connect, lookup, hedge, fetch, lease, park, max_peers] = peer;
  [[maybe_unused]] const auto [library, options] = plugin;
  const json schema = json::parse(NodeConfigSchema());
  EXPECT_EQ(schema["properties"].size(), 18u);
  EXPECT_EQ(schema["properties"]["control_thread"]["properties"].size(), 1u);
  // Of a tier: its type, the keys of its kind, and those of every kind.
  EXPECT_EQ(schema["$defs"]["memory_tier"]["properties"].size(), 1u + 1u + 2u);
  EXPECT_EQ(schema["$defs"]["file_tier"]["properties"].size(), 1u + 5u + 2u);
  EXPECT_EQ(schema["$defs"]["peer_tier"]["properties"].size(), 1u + 15u + 2u);
  EXPECT_EQ(schema["$defs"]["plugin_tier"]["properties"].size(), 1u + 2u + 2u);
  EXPECT_EQ(Settings().size(), 18u + 1u + (1u + 2u) + (5u + 2u) + (15u + 2u) + (2u + 2u));
}

TEST(NodeConfigSchema, ForbidsUnknownKeysEverywhere) {
  const json schema = json::parse(NodeConfigSchema());
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"]["control_thread"]["additionalProperties"], false);
  for (const auto& [name, tier] : schema["$defs"].items()) {
    EXPECT_EQ(tier["additionalProperties"], false) << name;
  }
}

TEST(NodeConfigSchema, ParserTakesEveryKeyWithItsExamples) {
  for (const Setting& setting : Settings()) {
    ASSERT_FALSE(setting.schema["examples"].empty()) << setting.name;
    for (const json& example : setting.schema["examples"]) {
      Parsed(setting.document(example).dump());
    }
    EXPECT_TRUE(setting.schema["description"].get<std::string>().ends_with(".")) << setting.name;
  }
}

TEST(NodeConfigSchema, DefaultsAreThoseOfTheStructs) {
  const json schema = json::parse(NodeConfigSchema());
  const json& node = schema["properties"];
  const NodeConfig defaults;
  EXPECT_EQ(node["huge_pages"]["default"], defaults.huge_pages);
  EXPECT_EQ(node["prefault_threads"]["default"], defaults.prefault_threads);
  EXPECT_EQ(node["lock_memory"]["default"], defaults.lock_memory);
  EXPECT_EQ(node["eviction_policy"]["default"], defaults.eviction_policy);
  EXPECT_EQ(node["tokens_per_chunk"]["default"], defaults.tokens_per_chunk);
  EXPECT_EQ(node["offload_prompt_only"]["default"], defaults.offload_prompt_only);
  EXPECT_EQ(node["lookup_timeout_ms"]["default"], defaults.lookup_timeout_ms);
  EXPECT_EQ(node["tier_poll_interval_s"]["default"], defaults.tier_poll_interval_s);
  EXPECT_EQ(node["secondary_tiers"]["default"], json::array());
  const json& file = schema["$defs"]["file_tier"]["properties"];
  EXPECT_EQ(file["n_read_threads"]["default"], FileTierConfig{}.n_read_threads);
  EXPECT_EQ(file["n_write_threads"]["default"], FileTierConfig{}.n_write_threads);
  EXPECT_EQ(file["direct_io"]["default"], FileTierConfig{}.direct_io);
  EXPECT_EQ(file["layout"]["default"], FileTierConfig{}.layout);
  EXPECT_EQ(node["control_thread"]["default"], json::object());
  EXPECT_EQ(node["control_thread"]["properties"]["priority"]["default"],
            ControlThreadConfig{}.priority);
  const json& peer = schema["$defs"]["peer_tier"]["properties"];
  EXPECT_EQ(peer["host"]["default"], PeerTierConfig{}.host);
  EXPECT_EQ(peer["port"]["default"], PeerTierConfig{}.port);
  EXPECT_EQ(peer["peers"]["default"], json::array());
  EXPECT_EQ(peer["data_plane"]["default"], PeerTierConfig{}.data_plane);
  EXPECT_EQ(peer["allow_unauthenticated_network"]["default"], false);
  EXPECT_EQ(peer["lease_ms"]["default"], PeerTierConfig{}.lease_ms);
}

TEST(NodeConfigSchema, ParserTakesEveryDefaultAndNeedsWhatHasNone) {
  for (const Setting& setting : Settings()) {
    if (setting.schema.contains("default")) {
      EXPECT_TRUE(Accepts(setting.document(setting.schema["default"]))) << setting.name;
    }
  }
  const json schema = json::parse(NodeConfigSchema());
  EXPECT_EQ(schema["required"], json::array({"cpu_bytes_to_use"}));
  EXPECT_EQ(schema["$defs"]["memory_tier"]["required"], json::array({"type", "bytes"}));
  EXPECT_EQ(schema["$defs"]["file_tier"]["required"], json::array({"type", "root_dir"}));
}

TEST(NodeConfigSchema, ParserHasTheSameBounds) {
  int checked = 0;
  for (const Setting& setting : Settings()) {
    const json& number =
        setting.schema.contains("anyOf") ? setting.schema["anyOf"][0] : setting.schema;
    if (!number.contains("minimum")) continue;
    const auto min = number["minimum"].get<std::uint64_t>();
    const auto max = number["maximum"].get<std::uint64_t>();
    EXPECT_TRUE(Accepts(setting.document(min))) << setting.name;
    EXPECT_TRUE(Accepts(setting.document(max))) << setting.name;
    EXPECT_FALSE(Accepts(setting.document(min - 1))) << setting.name;
    EXPECT_FALSE(Accepts(setting.document(max + 1))) << setting.name;
    ++checked;
  }
  EXPECT_EQ(checked, 26);
}

TEST(NodeConfigKeys, EveryExampleIsJsonAndEveryWordIsThere) {
  auto check = [](const KeySpec& spec) {
    EXPECT_TRUE(json::accept(spec.example)) << spec.name;
    EXPECT_FALSE(spec.what.empty()) << spec.name;
    EXPECT_FALSE(spec.what.ends_with('.')) << spec.name << ": a full stop is added";
  };
  for (const auto& key : NodeKeys()) check(key.spec);
  for (const auto& key : ControlThreadKeys()) check(key.spec);
  std::map<std::string_view, std::string_view> names;
  for (const TierKind& kind : TierKinds()) {
    for (const auto& key : kind.keys) {
      check(key.spec);
      // Kinds of tier may share a key, which is the same then.
      EXPECT_EQ(names.emplace(key.spec.name, key.spec.what).first->second, key.spec.what)
          << key.spec.name;
    }
  }
}

}  // namespace
}  // namespace terrace
