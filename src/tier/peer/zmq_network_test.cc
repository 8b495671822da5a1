#include "tier/peer/zmq_network.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "terrace/peer_keys.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Event = ControlNetwork::Event;
using Kind = ControlNetwork::Event::Kind;

constexpr int kPatienceMs = 30'000;  // A test that waits this long has failed.

std::vector<std::uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string Text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::unique_ptr<ZmqNetwork> Make(ZmqNetworkOptions options = {}) {
  auto network = ZmqNetwork::Create(options);
  EXPECT_TRUE(network.ok()) << network.error().message;
  return std::move(network).value();
}

// Sleeps on its descriptor, as the control thread does.
std::optional<Event> Await(ZmqNetwork& network) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (std::chrono::steady_clock::now() < end) {
    if (auto event = network.Next()) return event;
    pollfd one{network.descriptor(), POLLIN, 0};
    if (::poll(&one, 1, kPatienceMs) == 0) return std::nullopt;
  }
  return std::nullopt;
}

// The same for one that needs another to go on: the server of a handshake with keys.
std::optional<Event> Await(ZmqNetwork& network, ZmqNetwork& other) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (std::chrono::steady_clock::now() < end) {
    if (auto event = network.Next()) return event;
    static_cast<void>(other.Next());
    pollfd both[] = {{network.descriptor(), POLLIN, 0}, {other.descriptor(), POLLIN, 0}};
    ::poll(both, 2, 100);
  }
  return std::nullopt;
}

LinkId Dial(ZmqNetwork& from, const ZmqNetwork& to) {
  auto link = from.Dial({"127.0.0.1", to.port()});
  EXPECT_TRUE(link.ok());
  return link.value();
}

// A plain TCP connection.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void Say(std::string_view bytes) {
    static_cast<void>(!::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // Whether the other side hangs up within its patience for strangers.
  bool IsHungUpOn() {
    char buffer[256];
    for (;;) {
      pollfd one{fd_.get(), POLLIN, 0};
      if (::poll(&one, 1, kPatienceMs) <= 0) return false;
      if (::recv(fd_.get(), buffer, sizeof buffer, 0) <= 0) return true;
    }
  }

 private:
  UniqueFd fd_;
};

TEST(ZmqNetwork, AMessageAndItsReplyArrive) {
  auto asker = Make(), holder = Make();
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, Bytes("question")));  // Before it is connected.
  const auto call = Await(*holder);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->kind, Kind::kCall);
  EXPECT_EQ(Text(call->bytes), "question");
  ASSERT_TRUE(holder->Reply(call->caller, Bytes("answer")));
  const auto message = Await(*asker);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->kind, Kind::kMessage);
  EXPECT_EQ(message->link, link);
  EXPECT_EQ(Text(message->bytes), "answer");
}

TEST(ZmqNetwork, TwoAskEachOtherAtOnce) {
  auto a = Make(), b = Make();
  const LinkId to_b = Dial(*a, *b), to_a = Dial(*b, *a);
  ASSERT_TRUE(a->Send(to_b, Bytes("from a")));
  ASSERT_TRUE(b->Send(to_a, Bytes("from b")));
  EXPECT_EQ(Text(Await(*a)->bytes), "from b");
  EXPECT_EQ(Text(Await(*b)->bytes), "from a");
}

// ZeroMQ tells of an arrival once; who stops reading in the middle must be told again.
TEST(ZmqNetwork, WhoStopsReadingIsWokenAgain) {
  auto asker = Make(), holder = Make();
  const LinkId link = Dial(*asker, *holder);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(asker->Send(link, Bytes("question")));
  ASSERT_TRUE(Await(*holder));
  holder->KeepReady();
  pollfd one{holder->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 0), 1);
  EXPECT_TRUE(Await(*holder));
  EXPECT_TRUE(Await(*holder));
}

// Sending looks into ZeroMQ's mailbox and may take the news out of it.
TEST(ZmqNetwork, AnArrivalDuringASendIsNotMissed) {
  auto a = Make(), b = Make();
  const LinkId link = Dial(*a, *b);
  ASSERT_TRUE(a->Send(link, Bytes("first")));
  const auto call = Await(*b);
  ASSERT_TRUE(call);
  for (int i = 0; i < 200; ++i) {
    while (a->Next()) {
    }
    ASSERT_TRUE(b->Reply(call->caller, Bytes("reply")));
    if (i % 2 == 0) std::this_thread::yield();
    ASSERT_TRUE(a->Send(link, Bytes("more")));
    ASSERT_TRUE(a->Send(link, Bytes("more")));
    ASSERT_TRUE(Await(*a)) << "it slept with a message waiting";
    while (b->Next()) {
    }
  }
}

TEST(ZmqNetwork, ADeadHolderIsALostLink) {
  auto asker = Make(), holder = Make();
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, Bytes("question")));
  ASSERT_TRUE(Await(*holder));
  holder.reset();
  const auto event = Await(*asker);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, Kind::kLinkLost);
  EXPECT_EQ(event->link, link);
  asker->HangUp(link);
  EXPECT_FALSE(asker->Send(link, Bytes("question")));
}

TEST(ZmqNetwork, NobodyThereIsALostLink) {
  auto asker = Make(), holder = Make();
  const std::uint16_t port = holder->port();
  holder.reset();
  ASSERT_TRUE(asker->Dial({"127.0.0.1", port}).ok());
  const auto event = Await(*asker);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, Kind::kLinkLost);
  EXPECT_THAT(event->why, HasSubstr("nobody answers"));
}

TEST(ZmqNetwork, AnAddressThatIsNoneIsAnError) {
  auto asker = Make();
  const auto link = asker->Dial({"not an address", 1});
  ASSERT_FALSE(link.ok());
  EXPECT_THAT(link.error().message, HasSubstr("not an address"));
}

TEST(ZmqNetwork, APortThatIsTakenIsAnError) {
  auto first = Make();
  ZmqNetworkOptions options;
  options.port = first->port();
  const auto second = ZmqNetwork::Create(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(first->port())));
}

TEST(ZmqNetwork, AReplyToWhoIsGoneFails) {
  auto holder = Make();
  EXPECT_FALSE(holder->Reply("nobody", Bytes("answer")));
}

TEST(ZmqNetwork, AMessageThatIsTooLongEndsItsLink) {
  ZmqNetworkOptions options;
  options.message_bytes_max = 1000;
  auto asker = Make(), holder = Make(options);
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, std::vector<std::uint8_t>(1001)));
  const auto event = Await(*asker);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, Kind::kLinkLost);
  EXPECT_FALSE(holder->Next());
}

TEST(ZmqNetwork, StrangersAreLetGoAndDoNotDisturb) {
  auto asker = Make(), holder = Make();
  Stranger http(holder->port()), tls(holder->port()), silent(holder->port());
  http.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  tls.Say(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  silent.Say("\xff");
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, Bytes("question")));
  EXPECT_EQ(Text(Await(*holder)->bytes), "question");
  EXPECT_TRUE(http.IsHungUpOn());
  EXPECT_TRUE(tls.IsHungUpOn());
  EXPECT_TRUE(silent.IsHungUpOn());
}

// A message of several parts is none of ours.
TEST(ZmqNetwork, OtherUsersOfZeroMqAreIgnored) {
  auto holder = Make();
  zmq::context_t context;
  zmq::socket_t other(context, zmq::socket_type::dealer);
  other.set(zmq::sockopt::linger, 0);
  other.connect("tcp://127.0.0.1:" + std::to_string(holder->port()));
  for (const char* part : {"one", "two"})
    other.send(zmq::buffer(std::string_view(part)), zmq::send_flags::sndmore);
  other.send(zmq::str_buffer("three"), zmq::send_flags::none);
  other.send(zmq::str_buffer("whole"), zmq::send_flags::none);
  EXPECT_EQ(Text(Await(*holder)->bytes), "whole");
}

class ZmqNetworkKeys : public testing::Test {
 protected:
  static ZmqNetworkOptions WithKeys(const PeerKeyPair& pair) {
    ZmqNetworkOptions options;
    options.public_key = pair.public_key;
    options.secret_key = pair.secret_key;
    return options;
  }
  const PeerKeyPair group_ = MakePeerKeyPair();
};

TEST_F(ZmqNetworkKeys, TheGroupTalks) {
  auto asker = Make(WithKeys(group_)), holder = Make(WithKeys(group_));
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, Bytes("question")));
  const auto call = Await(*holder, *asker);
  ASSERT_TRUE(call);
  EXPECT_EQ(Text(call->bytes), "question");
}

// It knows the public key, which is no secret, and not the other one.
TEST_F(ZmqNetworkKeys, WhoKnowsOnlyThePublicKeyIsRefused) {
  auto holder = Make(WithKeys(group_));
  const auto own = MakePeerKeyPair();
  zmq::context_t context;
  zmq::socket_t other(context, zmq::socket_type::dealer);
  other.set(zmq::sockopt::linger, 0);
  other.set(zmq::sockopt::curve_serverkey, group_.public_key);
  other.set(zmq::sockopt::curve_publickey, own.public_key);
  other.set(zmq::sockopt::curve_secretkey, own.secret_key);
  zmq::socket_t monitor(context, zmq::socket_type::pair);
  ASSERT_EQ(zmq_socket_monitor(other.handle(), "inproc://m",
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_SUCCEEDED),
            0);
  monitor.connect("inproc://m");
  monitor.set(zmq::sockopt::rcvtimeo, 10);
  other.connect("tcp://127.0.0.1:" + std::to_string(holder->port()));
  other.send(zmq::str_buffer("question"), zmq::send_flags::none);
  zmq::message_t event;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!monitor.recv(event, zmq::recv_flags::none) && std::chrono::steady_clock::now() < end) {
    EXPECT_FALSE(holder->Next());
  }
  ASSERT_GE(event.size(), 2u);
  std::uint16_t number;
  std::memcpy(&number, event.data(), sizeof number);
  EXPECT_EQ(number, ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
  EXPECT_FALSE(holder->Next());
}

TEST_F(ZmqNetworkKeys, AnotherGroupIsALostLink) {
  auto asker = Make(WithKeys(MakePeerKeyPair())), holder = Make(WithKeys(group_));
  Dial(*asker, *holder);
  const auto event = Await(*asker, *holder);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, Kind::kLinkLost);
}

TEST_F(ZmqNetworkKeys, WhoHasNoKeysIsALostLink) {
  auto asker = Make(), holder = Make(WithKeys(group_));
  const LinkId link = Dial(*asker, *holder);
  ASSERT_TRUE(asker->Send(link, Bytes("question")));
  const auto event = Await(*asker, *holder);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, Kind::kLinkLost);
  EXPECT_FALSE(holder->Next());
}

}  // namespace
}  // namespace terrace
