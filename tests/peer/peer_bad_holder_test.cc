// A holder that is none: it says welcome, and then breaks its word.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/peer/node_process.h"
#include "tests/peer/raw_peers.h"
#include "tests/support/keys.h"
#include "tier/peer/tcp_socket.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using testing_support::Keys;
using Clock = std::chrono::steady_clock;

// Says welcome, opens data links, answers look-ups as it is told, and has no chunk.
class FakeHolder {
 public:
  using Answerer = std::function<std::optional<PeerAnswer>(const PeerLookup&)>;

  explicit FakeHolder(Answerer answer)
      : answer_(std::move(answer)),
        router_(context_, zmq::socket_type::router),
        data_(ListenTcp("127.0.0.1", 0).value()),
        port_(FreePort()) {
    router_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::rcvtimeo, 2);
    router_.bind("tcp://127.0.0.1:" + std::to_string(port_));
    thread_ = std::thread([this] {
      while (!stopping_) {
        Control();
        Data();
      }
    });
  }
  ~FakeHolder() {
    stopping_ = true;
    thread_.join();
  }
  std::shared_ptr<const PeerRoute> route() const { return RouteTo("127.0.0.1", port_); }

 private:
  void Control() {
    zmq::message_t caller;
    if (!router_.recv(caller)) return;
    const auto message = NextMessage(router_);
    if (!message) return;
    if (std::holds_alternative<PeerHello>(*message)) {
      PeerWelcome welcome;
      welcome.instance.fill(7);
      welcome.lease_ms = 1'000;
      welcome.planes = {{2, std::to_string(PortOf(data_.get()).value())}};
      Reply(caller, welcome);
    } else if (const auto* lookup = std::get_if<PeerLookup>(&*message)) {
      if (const auto answer = answer_(*lookup)) Reply(caller, *answer);
    }
  }
  void Reply(zmq::message_t& caller, const PeerMessage& message) {
    const auto bytes = EncodePeerMessage(message);
    router_.send(caller, zmq::send_flags::sndmore);
    router_.send(zmq::message_t(bytes.data(), bytes.size()), zmq::send_flags::none);
  }
  void Data() {
    UniqueFd fd(::accept4(data_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) links_.push_back({std::move(fd), {}});
    for (Link& link : links_) {
      std::array<std::byte, 4096> bytes;
      const ssize_t got = ::recv(link.fd.get(), bytes.data(), bytes.size(), 0);
      if (got > 0) link.in.insert(link.in.end(), bytes.begin(), bytes.begin() + got);
      for (auto frame = DecodeDataFrame(link.in); frame.ok() && frame.value();
           frame = DecodeDataFrame(link.in)) {
        std::vector<std::byte> out;
        if (std::holds_alternative<DataOpen>(frame.value()->frame)) {
          DataOpened opened;
          opened.plane = 2;
          opened.chunk_bytes = kNodeChunkBytes;
          AppendDataFrame(opened, out);
        } else if (const auto* read = std::get_if<DataRead>(&frame.value()->frame)) {
          AppendDataFrame(DataChunk{.tag = read->tag}, out);
        }
        (void)!::send(link.fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
        link.in.erase(link.in.begin(),
                      link.in.begin() + static_cast<std::ptrdiff_t>(frame.value()->size));
      }
    }
  }

  struct Link {
    UniqueFd fd;
    std::vector<std::byte> in;
  };
  const Answerer answer_;
  zmq::context_t context_;
  zmq::socket_t router_;
  const UniqueFd data_;
  const std::uint32_t port_;
  std::vector<Link> links_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

PeerAnswer AllOf(const PeerLookup& lookup, std::uint64_t lease) {
  return {lookup.id, lease, std::vector<std::uint8_t>((lookup.keys.size() + 7) / 8, 0xff)};
}

TEST(PeerBadHolder, PromisesOneLeaseTwice) {
  FakeHolder holder([](const PeerLookup& lookup) { return AllOf(lookup, 7); });
  TestNode asker(WithShortDeadlines("tcp"));
  EXPECT_EQ(asker.Fetch(Keys(1, 300), holder.route()), 0u) << "two questions";
  EXPECT_TRUE(asker.Becomes("terrace_peer_failures_total", 1));
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
}

TEST(PeerBadHolder, AnswersWhatDoesNotFit) {
  FakeHolder holder([](const PeerLookup& lookup) { return PeerAnswer{lookup.id, 7, {0xff}}; });
  TestNode asker(WithShortDeadlines("tcp"));
  EXPECT_EQ(asker.Fetch(PromptKeys(1), holder.route()), 0u);
  EXPECT_EQ(asker.Counter("terrace_peer_failures_total"), 1u);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
}

// Connecting works each time; but that is not what it is for, so it is left alone for longer and
// longer.
TEST(PeerBadHolder, NeverAnswers) {
  FakeHolder holder([](const PeerLookup&) { return std::optional<PeerAnswer>(); });
  TestNodeOptions options;
  options.plane = "tcp";
  options.more = "\"lookup_timeout_ms\": 50";
  TestNode asker(options);
  const auto end = Clock::now() + milliseconds(4'000);
  while (Clock::now() < end) {
    EXPECT_EQ(asker.Fetch(PromptKeys(1), holder.route()), 0u);
    std::this_thread::sleep_for(milliseconds(5));
  }
  // At 100, 200, 400, ... ms, not every 100 ms.
  EXPECT_LE(asker.Counter("terrace_peer_failures_total"), 12u);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
}

// What it says it has is always gone: it costs nobody else anything.
TEST(PeerBadHolder, HasNothingOfWhatItPromises) {
  std::atomic<std::uint64_t> lease = 1;
  FakeHolder bad([&](const PeerLookup& lookup) { return AllOf(lookup, lease++); });
  TestNode good(WithShortDeadlines("tcp")), asker(WithShortDeadlines("tcp"));
  good.Store(PromptKeys(1));
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(asker.Fetch(PromptKeys(2 + i), bad.route()), 0u);
  EXPECT_EQ(asker.Counter("terrace_peer_gone_chunks_total"), 5 * kPromptChunks);
  EXPECT_EQ(asker.Fetch(PromptKeys(1), good.route()), kPromptChunks);
  EXPECT_EQ(asker.LeftoversInTheEnd(), "");
}

}  // namespace
}  // namespace terrace::testing
