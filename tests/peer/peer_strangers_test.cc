// Who dials a node's ports and is no node, or one that means no good: those who mean well go on,
// nothing is kept for the others, and the log stays readable.
#include <gtest/gtest.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "base/log.h"
#include "terrace/peer_keys.h"
#include "tests/peer/node_process.h"
#include "tests/peer/raw_peers.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;

class PeerStrangers : public ::testing::Test {
 protected:
  PeerStrangers() {
    for (int prompt = 1; prompt <= 3; ++prompt) holder_.Ask("store " + std::to_string(prompt));
  }
  ~PeerStrangers() override {
    EXPECT_TRUE(holder_.Answers("left", "-"));
    EXPECT_EQ(asker_.LeftoversInTheEnd(), "");
  }

  // Deadlines that a busy machine keeps: what is shown is that nobody else makes them miss.
  static TestNodeOptions Options(std::uint32_t data_port) {
    TestNodeOptions options;
    options.plane = "tcp";
    options.more = R"("connect_timeout_ms": 3000, "lookup_timeout_ms": 3000, "lease_ms": 900)";
    if (data_port != 0) options.more += ", \"data_port\": " + std::to_string(data_port);
    return options;
  }
  void ExpectService(std::uint32_t prompt) {
    EXPECT_EQ(asker_.Fetch(PromptKeys(prompt), holder_.route()), kPromptChunks);
  }
  std::uint64_t Counter(const std::string& name) {
    return holder_.AskNumber("counter terrace_peer_" + name);
  }
  bool Becomes(const std::string& name, std::uint64_t value) {
    return holder_.Answers("counter terrace_peer_" + name, std::to_string(value));
  }
  std::size_t LinesWith(const std::string& text) const { return LinesOf(holder_, text); }
  static std::size_t LinesOf(const NodeProcess& node, const std::string& text) {
    const std::string log = node.Log();
    std::size_t count = 0;
    for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  }

  const std::uint32_t data_port_ = FreePort();
  NodeProcess holder_{Options(data_port_)};
  TestNode asker_{Options(0)};
};

const std::string kHttp = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
// A TLS ClientHello's beginning.
const std::string kTls =
    std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(500, '\x5a');

const std::string kJunk[] = {
    kHttp, kTls, std::string(100'000, '\xff'), std::string(1'000, '\0'),
    // A ZMTP greeting, and then no more.
    std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16) + std::string(48, '\0'),
    std::string("\x04\x26\x05", 3) + std::string(10'000, '\x04')};

bool IsHungUp(const UniqueFd& fd) {
  const timeval patience{std::chrono::seconds(kPatience).count(), 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char dropped[4096];
  ssize_t got = 0;
  while ((got = ::recv(fd.get(), dropped, sizeof dropped, 0)) > 0) {
  }
  return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// Each text on a connection of its own, so many times; returns once all are hung up on.
void ConnectAndSay(std::uint32_t port, const std::vector<std::string>& texts, int times) {
  std::vector<UniqueFd> all;
  for (int i = 0; i < times; ++i) {
    for (const std::string& text : texts) {
      all.push_back(ConnectTo(port));
      (void)!::send(all.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  }
  for (const UniqueFd& fd : all) EXPECT_TRUE(IsHungUp(fd));
}

TEST_F(PeerStrangers, JunkSilenceAndSlowBytesStopNobody) {
  std::vector<UniqueFd> junk;
  for (const std::uint32_t port : {holder_.port(), data_port_}) {
    for (const std::string& text : kJunk) {
      junk.push_back(ConnectTo(port));
      (void)!::send(junk.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
    junk.push_back(ConnectTo(port));  // Silent.
  }
  std::atomic<bool> stop = false;
  std::thread slow([&, control = ConnectTo(holder_.port()), data = ConnectTo(data_port_)] {
    for (int i = 0; !stop; ++i) {
      for (const UniqueFd* fd : {&control, &data}) {
        (void)!::send(fd->get(), i % 2 == 0 ? "\xff" : "T", 1, MSG_NOSIGNAL);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  for (const std::uint32_t prompt : {1u, 2u, 3u}) ExpectService(prompt);
  for (const UniqueFd& fd : junk) EXPECT_TRUE(IsHungUp(fd));
  stop = true;
  slow.join();
  EXPECT_LE(LinesWith(" warning "), 4u) << holder_.Log();
}

// Of each kind the first has a line, and all are counted.
TEST_F(PeerStrangers, WhoIsNoPeerIsOneLineAndCountedAtTheControlPort) {
  ConnectAndSay(holder_.port(), {kHttp, kTls, "", "T"}, 3);
  EXPECT_TRUE(Becomes("strangers_total", 12));
  EXPECT_EQ(LinesWith("a caller at port " + std::to_string(holder_.port()) + " is no peer"), 1u);
  // What ZeroMQ takes for a peer of its first version is told as a bad message.
  EXPECT_LE(LinesWith(" warning "), 2u) << holder_.Log();
  ExpectService(1);
}

TEST_F(PeerStrangers, WhoHasNoTokenIsOneLineAKindAndCountedAtTheDataPort) {
  const std::string refused = "peer data plane tcp: a connection was refused: ";
  ConnectAndSay(data_port_, {kHttp, kTls}, 3);
  EXPECT_TRUE(Becomes("refused_data_connections_total", 6));
  EXPECT_EQ(LinesWith(refused), 1u) << holder_.Log();
  ConnectAndSay(data_port_, {"", "T"}, 3);
  EXPECT_TRUE(Becomes("refused_data_connections_total", 12));
  EXPECT_EQ(LinesWith(refused + "it showed no token in time"), 1u);
  EXPECT_EQ(LinesWith(refused), 2u) << holder_.Log();
  // No good one is counted.
  ExpectService(1);
  EXPECT_EQ(Counter("refused_data_connections_total"), 12u);
}

TEST_F(PeerStrangers, ATokenOfNobodyIsRefusedAtTheDataPort) {
  RawDataLink link(data_port_, {1, 2, 3});
  EXPECT_FALSE(link.Hear().has_value());
  EXPECT_TRUE(Becomes("refused_data_connections_total", 1));
  EXPECT_EQ(LinesWith("a connection was refused: its token is of no session"), 1u);
}

TEST_F(PeerStrangers, MoreThanMayShowNoTokenYetAreRefusedInOneLine) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 70; ++i) silent.push_back(ConnectTo(data_port_));
  EXPECT_TRUE(Becomes("refused_data_connections_total", 70));
  EXPECT_EQ(LinesWith("a connection was refused: too many"), 1u);
}

TEST_F(PeerStrangers, WhoSpeaksOutOfPlaceIsRefused) {
  ExpectService(1);
  PeerHello newer = GoodHello(9);
  newer.version = 77;
  RawAsker asker(holder_.port());
  EXPECT_EQ(asker.Ask<PeerRefusal>(newer).field, "version");
  PeerHello other_model = GoodHello(9);
  other_model.fields.model = "another";
  other_model.identity[0] ^= 1;
  EXPECT_EQ(asker.Ask<PeerRefusal>(other_model).field, "model");
  PeerHello liar = GoodHello(9);
  liar.identity[0] ^= 1;
  EXPECT_EQ(asker.Ask<PeerRefusal>(liar).field, "identity");
  EXPECT_EQ(asker.Ask<PeerRefusal>(PeerLookup{1, "", false, 100, PromptKeys(1)}).field, "session");
  EXPECT_EQ(asker.Ask<PeerRefusal>(PeerRenew{{1, 2, 3}}).field, "session");
  EXPECT_EQ(Counter("sessions_refused_total"), 3u);
  EXPECT_EQ(Counter("stale_messages_total"), 2u);
  EXPECT_EQ(LinesWith("is refused: its session is one that has ended"), 1u)
      << "the others are counted, a minute long";
  EXPECT_EQ(LinesWith("is refused: its version is 77, here it is " +
                      std::to_string(kPeerProtocolVersion)),
            1u)
      << holder_.Log();
  EXPECT_EQ(LinesWith("is refused: its identity is another digest of equal fields"), 1u);
  ExpectService(2);
}

// Both sides say which field it is, and what it is on either side.
TEST(PeerWrongHello, EachFieldIsNamedByBothSides) {
  using Fields = CacheIdentityFields;
  struct Row {
    const char* field;
    void (*change)(Fields&);
    const char* holders;
    const char* askers;
  };
  const Row rows[] = {
      {"model", [](Fields& f) { f.model = "test/other"; }, "test/model", "test/other"},
      {"revision", [](Fields& f) { f.revision = "r2"; }, "r1", "r2"},
      {"dtype", [](Fields& f) { f.dtype = "f64"; }, "f16", "f64"},
      {"layout", [](Fields& f) { f.layout = "upside down"; }, "plain", "upside down"},
      {"layout_version", [](Fields& f) { f.layout_version = 9; }, "1", "9"},
      {"tokens_per_chunk", [](Fields& f) { f.tokens_per_chunk = 32; }, "64", "32"},
      {"chunk_bytes", [](Fields& f) { f.chunk_bytes = 600'000; }, "300000", "600000"},
      {"shard", [](Fields& f) { f.shard_count = 2; }, "0 of 1", "0 of 2"},
      {"shard", [](Fields& f) { f.shard_index = 1, f.shard_count = 2; }, "0 of 1", "1 of 2"},
      {"engine", [](Fields& f) { f.engine = "other"; }, "test", "other"},
      // The first that differs.
      {"model", [](Fields& f) { f.model = "m", f.dtype = "f64"; }, "test/model", "m"}};
  // There before any thread that logs.
  const auto lines = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1'000);
  Log().sinks().push_back(lines);
  {
    NodeProcess holder({.plane = "tcp"});
    holder.Ask("store 1");
    std::uint64_t refused = 0;
    std::set<std::string> told;
    for (const Row& row : rows) {
      const std::string holders = row.holders, askers = row.askers, field = row.field;
      TestNode asker({.plane = "tcp", .change_identity = row.change});
      EXPECT_EQ(asker.Fetch(PromptKeys(1), holder.route()), 0u);
      EXPECT_TRUE(asker.Becomes("terrace_peer_refusals_total", 1)) << row.field;
      EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), 1u);
      EXPECT_EQ(holder.AskNumber("counter terrace_peer_sessions_refused_total"), ++refused);
      const auto all = lines->last_formatted();
      const std::string wanted = "peer " + holder.address() + ": it refused this node: " + field +
                                 " is " + holders + " there and " + askers + " here; ";
      EXPECT_EQ(std::count_if(all.begin(), all.end(),
                              [&](const auto& line) { return line.find(wanted) != line.npos; }),
                1)
          << wanted;
      const bool is_first = told.insert(field).second;
      const bool is_told =
          holder.Log().find("a caller of the peer tier is refused: its " + field + " is " + askers +
                            ", here it is " + holders + "\n") != std::string::npos;
      EXPECT_EQ(is_told, is_first) << "one line a field, a minute\n" << holder.Log();
    }
    EXPECT_EQ(holder.AskNumber("counter terrace_peer_sessions_opened_total"), 0u);
  }
  Log().sinks().pop_back();
}

// Whose keys differ, or who has none: they read nothing, and the holder says so.
class PeerKeys : public PeerStrangers {
 protected:
  ~PeerKeys() override { ::unlink(secret_path_.c_str()); }

  TestNodeOptions WithKeys() {
    const UniqueFd file(::mkstemp(secret_path_.data()));
    EXPECT_EQ(::write(file.get(), pair_.secret_key.data(), pair_.secret_key.size()),
              static_cast<ssize_t>(pair_.secret_key.size()));
    TestNodeOptions options = Options(0);
    options.more += R"(, "public_key": ")" + pair_.public_key + R"(", "secret_key_file": ")" +
                    secret_path_ + "\"";
    return options;
  }
  static auto Using(const std::string& server_key, const PeerKeyPair& own) {
    return [=](zmq::socket_t& socket) {
      socket.set(zmq::sockopt::curve_serverkey, server_key);
      socket.set(zmq::sockopt::curve_publickey, own.public_key);
      socket.set(zmq::sockopt::curve_secretkey, own.secret_key);
    };
  }
  static void ExpectNotLetIn(NodeProcess& node, const std::string& counter,
                             const std::string& line) {
    EXPECT_TRUE(node.Answers("counter terrace_peer_" + counter, "1")) << node.Log();
    EXPECT_EQ(LinesOf(node, line), 1u) << node.Log();
    EXPECT_EQ(node.AskNumber("counter terrace_peer_sessions_opened_total"), 0u);
  }

  const PeerKeyPair pair_ = MakePeerKeyPair();
  std::string secret_path_ = "/tmp/terrace-peer-key-XXXXXX";
  NodeProcess guarded_{WithKeys()};
};

TEST_F(PeerKeys, OfAnotherGroup) {
  const PeerKeyPair other = MakePeerKeyPair();
  RawAsker asker(guarded_.port(), Using(other.public_key, other));
  asker.Say(GoodHello(9));
  ExpectNotLetIn(guarded_, "wrong_keys_total", "was not let in: its keys are not this group's");
}
TEST_F(PeerKeys, OfOneWhoKnowsOnlyThePublicKey) {
  RawAsker asker(guarded_.port(), Using(pair_.public_key, MakePeerKeyPair()));
  asker.Say(GoodHello(9));
  ExpectNotLetIn(guarded_, "wrong_keys_total", "was not let in: its keys are not this group's");
}
TEST_F(PeerKeys, NoneWhereTheyAreWanted) {
  RawAsker asker(guarded_.port());
  asker.Say(GoodHello(9));
  ExpectNotLetIn(guarded_, "strangers_total", "is no peer, or only one of the two has keys");
}
TEST_F(PeerKeys, SomeWhereThereAreNone) {
  RawAsker asker(holder_.port(), Using(pair_.public_key, pair_));
  asker.Say(GoodHello(9));
  ExpectNotLetIn(holder_, "strangers_total", "is no peer, or only one of the two has keys");
}
TEST_F(PeerKeys, OfTheGroup) {
  RawAsker asker(guarded_.port(), Using(pair_.public_key, pair_));
  EXPECT_NE(asker.Ask<PeerWelcome>(GoodHello(9)).lease_ms, 0u);
  EXPECT_EQ(guarded_.AskNumber("counter terrace_peer_wrong_keys_total"), 0u);
  EXPECT_EQ(guarded_.AskNumber("counter terrace_peer_strangers_total"), 0u);
}

// It knows nothing that a holder says, and it ends the session of who says it.
TEST_F(PeerStrangers, WhoAnswersWithoutBeingAskedLosesItsSession) {
  PeerMessage answers[] = {PeerWelcome{}, PeerAnswer{5, 6, {255}}, PeerRefusal{}};
  std::get<PeerWelcome>(answers[0]).lease_ms = 1;
  for (const PeerMessage& answer : answers) {
    RawAsker asker(holder_.port());
    EXPECT_NE(asker.Ask<PeerWelcome>(GoodHello(9)).lease_ms, 0u);
    EXPECT_NE(asker.Ask<PeerAnswer>(PeerLookup{1, "", false, 100, PromptKeys(1)}).lease, 0u);
    EXPECT_EQ(Counter("sessions"), 1u);
    asker.Say(answer);
    EXPECT_TRUE(holder_.Answers("counter terrace_peer_sessions", "0"));
    EXPECT_TRUE(holder_.Answers("left", "-"));
  }
  ExpectService(1);
}

TEST_F(PeerStrangers, ManyBadMessagesAreCountedAndOneLine) {
  RawAsker asker(holder_.port());
  const std::vector<std::uint8_t> junk(1'000, 0xc1);
  for (int i = 0; i < 5'000; ++i) asker.SayBytes(junk);
  ExpectService(1);
  EXPECT_TRUE(holder_.Answers("counter terrace_peer_bad_messages_total", "5000"));
  EXPECT_EQ(LinesWith("a caller of the peer tier: "), 1u);
}

// A chunk is read by whom it was promised to, and by nobody else.
TEST_F(PeerStrangers, LeasesOfOthersAndIndexesOutOfRangeAreGone) {
  RawAsker a(holder_.port()), b(holder_.port());
  const auto token_a = a.Ask<PeerWelcome>(GoodHello(1)).token;
  EXPECT_NE(b.Ask<PeerWelcome>(GoodHello(2)).lease_ms, 0u);
  const std::uint64_t lease_a =
      a.Ask<PeerAnswer>(PeerLookup{1, "", false, 100, PromptKeys(1)}).lease;
  const std::uint64_t lease_b =
      b.Ask<PeerAnswer>(PeerLookup{1, "", false, 100, PromptKeys(2)}).lease;
  ASSERT_NE(lease_a, 0u);
  ASSERT_NE(lease_b, 0u);
  RawDataLink link(data_port_, token_a);
  ASSERT_TRUE(std::holds_alternative<DataOpened>(link.Hear().value_or(DataOpen{})));
  EXPECT_EQ(link.Read(lease_a, 0), DataStatus::kHere);
  EXPECT_EQ(link.Read(lease_a, kPromptChunks), DataStatus::kGone);
  EXPECT_EQ(link.Read(lease_a, ~0u), DataStatus::kGone);
  EXPECT_EQ(link.Read(lease_b, 0), DataStatus::kGone);
  EXPECT_EQ(link.Read(~std::uint64_t{0}, 0), DataStatus::kGone);
  // Nor does somebody else's renewal or release do anything.
  b.Say(PeerRelease{{lease_a}});
  EXPECT_EQ(b.Ask<PeerAnswer>(PeerLookup{2, "", false, 100, PromptKeys(4)}).id, 2u);
  EXPECT_EQ(link.Read(lease_a, kPromptChunks - 1), DataStatus::kHere);
  RawDataLink second(data_port_, token_a);
  EXPECT_FALSE(second.Hear().has_value()) << "a token opens one link";
  a.Say(PeerBye{});
  b.Say(PeerBye{});
  EXPECT_TRUE(holder_.Answers("left", "-"));
  ExpectService(1);
}

// It takes what it gets and gives nothing back, in as many questions as it may have.
TEST_F(PeerStrangers, AGreedyAskerDoesNotStarveAModestOne) {
  ExpectService(2);
  RawAsker greedy(holder_.port());
  EXPECT_NE(greedy.Ask<PeerWelcome>(GoodHello(9)).lease_ms, 0u);
  for (std::uint64_t id = 1; id <= 20; ++id) {
    greedy.Say(
        PeerLookup{id, "", false, 20'000, PromptKeys(static_cast<std::uint32_t>(id % 3) + 1)});
  }
  EXPECT_NE(greedy.Hear<PeerAnswer>().lease, 0u);
  EXPECT_TRUE(Becomes("deferred_lookups_total", 19));
  EXPECT_EQ(Counter("leased_chunks"), kPromptChunks);
  ExpectService(1);
  EXPECT_EQ(LinesWith("an asker waits until it has given back some of its share"), 1u);
  greedy.Say(PeerBye{});
}

// The crowd neither takes all descriptors, nor all time, nor the asker's service for good.
class PeerCrowd : public PeerStrangers {
 protected:
  static constexpr rlim_t kCrowd = 10'000, kOthers = 1'000;

  void SetUp() override {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    // Only a process with rights may have more than the hard limit.
    const rlim_t wanted = std::max(limit.rlim_max, kCrowd + kOthers);
    const rlimit more{wanted, wanted};
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) return;
    if (limit.rlim_max < kCrowd + kOthers) {
      GTEST_SKIP() << "a crowd of " << kCrowd << " needs " << kCrowd + kOthers
                   << " descriptors, and this process may have " << limit.rlim_max
                   << ": see ulimit -Hn";
    }
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  void Gather(std::uint32_t port) {
    ExpectService(1);
    for (std::size_t i = 0; i < kCrowd; ++i) {
      crowd_.push_back(ConnectTo(port, SOCK_NONBLOCK));
      // It may have to compute meanwhile, but it does not wait.
      if (i % 2'000 == 1'000) (void)asker_.Fetch(PromptKeys(2), holder_.route());
    }
    const auto cpu = holder_.AskNumber("cpu");
    std::this_thread::sleep_for(milliseconds(1'500));
    EXPECT_LT(holder_.AskNumber("cpu") - cpu, 750u) << "of 1500 ms";
    EXPECT_NE(holder_.Ask("descriptors"), limited_to_few_ ? "" : "all");
    (void)asker_.Fetch(PromptKeys(2), holder_.route());
    crowd_.clear();
    EXPECT_TRUE(asker_.FetchesInTheEnd(PromptKeys(3), holder_.route()));
  }

  bool limited_to_few_ = false;
  std::vector<UniqueFd> crowd_;
};

TEST_F(PeerCrowd, AtTheControlPort) {
  ASSERT_EQ(holder_.Ask("limit 1024"), "ok");
  Gather(holder_.port());
  EXPECT_GE(Counter("port_closed_total"), 1u);
  EXPECT_EQ(LinesWith("accepts nobody for a while: there are too many"), 1u);
}
// It has none left, and cannot accept: it must not turn in circles.
TEST_F(PeerCrowd, AtTheControlPortOfOneWithFewDescriptors) {
  ASSERT_EQ(holder_.Ask("limit 100"), "ok");
  limited_to_few_ = true;
  Gather(holder_.port());
  EXPECT_EQ(LinesWith("accepts nobody for a while: no descriptors"), 1u);
}
TEST_F(PeerCrowd, AtTheDataPort) {
  ASSERT_EQ(holder_.Ask("limit 1024"), "ok");
  Gather(data_port_);
}

}  // namespace
}  // namespace terrace::testing
