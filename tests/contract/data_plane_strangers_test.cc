// Who dials a data plane's port and is no asker, or one that means no good: good links go on, and
// nothing is kept for the others.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>

#include "tests/contract/data_plane_kits.h"
#include "tier/peer/data_server.h"
#include "tier/peer/tcp_socket.h"

namespace terrace::testing {
namespace {

using testing_support::Keys;

constexpr SessionId kSession(1);
constexpr DataLinkId kLink(1);

class DataPlaneStrangersTest : public ::testing::TestWithParam<PlaneKit> {
 protected:
  void SetUp() override {
    holder_ = std::make_unique<PlaneNode>(GetParam().create, 16, kChunk);
    asker_ = std::make_unique<PlaneNode>(GetParam().create, 16, kChunk);
    holder_->leases.AddSession(kSession, TokenOf(1));
    asker_->plane->Open(kLink, "127.0.0.1", holder_->plane->Offer(), TokenOf(1), Soon());
    ASSERT_TRUE(asker_->AwaitOpened(kLink));
  }
  UniqueFd Dial() const { return GetParam().connect(holder_->plane->Offer()); }
  // The good link is as good as ever.
  void ExpectService() {
    const auto keys = Keys(served_, 16);
    const LeaseId lease = holder_->Lease(kSession, keys);
    asker_->plane->Read(kLink, ReadsOf(lease, keys, 0, served_));
    served_ += 16;
    ASSERT_TRUE(asker_->AwaitEnds(served_));
    EXPECT_EQ(asker_->CountEnds(ReadEnd::kOk), served_);
    EXPECT_TRUE(holder_->leases.Release(kSession, lease));
  }
  // And a new one can be opened.
  void ExpectWelcome(std::uint8_t n) {
    holder_->leases.AddSession(SessionId(n), TokenOf(n));
    asker_->plane->Open(DataLinkId(n), "127.0.0.1", holder_->plane->Offer(), TokenOf(n), Soon());
    EXPECT_TRUE(asker_->AwaitOpened(DataLinkId(n)));
  }

  static constexpr std::uint64_t kChunk = 100'001;
  std::unique_ptr<PlaneNode> holder_, asker_;
  std::uint64_t served_ = 0;
};

TEST_P(DataPlaneStrangersTest, JunkIsHungUpOnAtOnce) {
  std::vector<UniqueFd> junk;
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01", 6), std::string(100'000, '\xff'),
        std::string("\0\0\0\0\0\0\0\0", 8)}) {
    junk.push_back(Dial());
    SendText(junk.back(), text);
  }
  ExpectService();
  for (const UniqueFd& fd : junk) EXPECT_EQ(AwaitClosed(fd), 0U);
}

TEST_P(DataPlaneStrangersTest, FramesOutOfPlaceAreHungUpOn) {
  const DataOpen good{.plane = static_cast<std::uint8_t>(holder_->plane->kind()),
                      .token = TokenOf(2)};
  DataOpen newer = good, other_plane = good, unknown = good;
  newer.version = 2;
  other_plane.plane = 200;
  unknown.token = TokenOf(99);
  holder_->leases.AddSession(SessionId(2), TokenOf(2));
  for (const DataFrame& frame :
       std::vector<DataFrame>{newer, other_plane, unknown, DataRead{}, DataOpened{}, DataChunk{}}) {
    const UniqueFd fd = Dial();
    SendFrame(fd, frame);
    EXPECT_EQ(AwaitClosed(fd), 0U) << "it was answered";
  }
  const UniqueFd twice = Dial();
  SendFrame(twice, good);
  SendFrame(twice, good);
  EXPECT_TRUE(AwaitClosed(twice).has_value());
  ExpectService();
}

TEST_P(DataPlaneStrangersTest, SilenceAndSlowBytesAreHungUpOnAfterAWhile) {
  const UniqueFd silent = Dial(), slow = Dial();
  SendText(slow, "T");
  ExpectService();
  EXPECT_EQ(AwaitClosed(silent), 0U);
  EXPECT_EQ(AwaitClosed(slow), 0U);
}

TEST_P(DataPlaneStrangersTest, TheOldestOfTooManyStrangersGivesWay) {
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 80; ++i) crowd.push_back(Dial());
  EXPECT_EQ(AwaitClosed(crowd.front()), 0U);
  EXPECT_TRUE(IsOpen(crowd.back()));
  ExpectService();
}

// All are accepted before the first one shows its token.
TEST_P(DataPlaneStrangersTest, NoMoreThanLinksMaxAreOpenedAtOnce) {
  std::vector<UniqueFd> crowd;
  for (std::uint8_t n = 2; n < 12; ++n) {
    holder_->leases.AddSession(SessionId(n), TokenOf(n));
    crowd.push_back(Dial());
  }
  ExpectService();  // The holder has had a look.
  for (std::uint8_t n = 2; n < 12; ++n) {
    SendFrame(crowd[n - 2U], DataOpen{.plane = static_cast<std::uint8_t>(holder_->plane->kind()),
                                      .token = TokenOf(n)});
  }
  EXPECT_EQ(AwaitClosed(crowd.back()), 0U);
  EXPECT_TRUE(asker_->lost.empty());
  ExpectService();
}

TEST_P(DataPlaneStrangersTest, TwoThousandConnectionsStopNobody) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 2'000; ++i) {
    crowd.push_back(Dial());
    if (i % 500 == 250) ExpectService();
  }
  ExpectService();
  ExpectWelcome(2);
}

// The process has no descriptor left: the holder cannot accept, and must not turn in circles.
TEST_P(DataPlaneStrangersTest, WithoutDescriptorsItWaits) {
  ExpectService();  // What a plane opens at its first read is open.
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  // A few more than there are.
  limit.rlim_cur = static_cast<rlim_t>(UniqueFd(::dup(STDERR_FILENO)).get()) + 16;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> crowd;
  do {
    crowd.emplace_back(::dup(STDERR_FILENO));
  } while (crowd.back().valid());
  crowd.pop_back();
  crowd.pop_back();
  crowd.push_back(Dial());  // Has the last one; nothing is left for the other end.
  ASSERT_TRUE(crowd.back().valid());
  const auto cpu_time = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto cpu_before = cpu_time();
  const timespec half_a_second{0, 500'000'000};
  ::nanosleep(&half_a_second, nullptr);
  EXPECT_LT(cpu_time() - cpu_before, std::chrono::milliseconds(250));
  ExpectService();
  crowd.clear();
  limit.rlim_cur = before;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ExpectWelcome(2);
}

// It has a token, asks, and takes nothing (or never says that it is done): once its lease has
// ended, it holds up no slot.
TEST_P(DataPlaneStrangersTest, AnAskerThatStopsHoldsUpNoSlot) {
  constexpr std::size_t kLarge = 40 << 20;  // More than the sockets' buffers take.
  PlaneNode holder(GetParam().create, 1, kLarge);
  holder.leases.AddSession(kSession, TokenOf(1));
  const LeaseId lease = holder.Lease(kSession, Keys(0, 1));
  const UniqueFd fd = GetParam().connect(holder.plane->Offer());
  SendFrame(
      fd, DataOpen{.plane = static_cast<std::uint8_t>(holder.plane->kind()), .token = TokenOf(1)});
  SendFrame(fd, DataRead{.tag = 1, .lease = lease.value, .index = 0});
  ASSERT_TRUE(holder.bell.WaitFor([&] { return holder.leases.counts().reads == 1; }));
  AwaitStill(fd);
  EXPECT_TRUE(holder.leases.Release(kSession, lease));
  EXPECT_TRUE(holder.AwaitEndedJobs(1));
}

// The same, and it does take what comes: not the rest of the chunk, though.
TEST_P(DataPlaneStrangersTest, NothingIsSentLongAfterALeaseHasEnded) {
  constexpr std::size_t kLarge = 40 << 20;
  PlaneNode holder(GetParam().create, 1, kLarge);
  holder.leases.AddSession(kSession, TokenOf(1));
  const LeaseId lease = holder.Lease(kSession, Keys(0, 1));
  const UniqueFd fd = GetParam().connect(holder.plane->Offer());
  SendFrame(
      fd, DataOpen{.plane = static_cast<std::uint8_t>(holder.plane->kind()), .token = TokenOf(1)});
  SendFrame(fd, DataRead{.tag = 1, .lease = lease.value, .index = 0});
  ASSERT_TRUE(holder.bell.WaitFor([&] { return holder.leases.counts().reads == 1; }));
  EXPECT_TRUE(holder.leases.Release(kSession, lease));
  std::size_t came = 0;
  std::vector<char> dropped(64 << 10);
  const timeval patience{1, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  for (ssize_t got = 1; got > 0; came += got > 0 ? static_cast<std::size_t>(got) : 0) {
    got = ::recv(fd.get(), dropped.data(), dropped.size(), 0);
  }
  EXPECT_LT(came, kLarge);
  EXPECT_TRUE(holder.AwaitEndedJobs(1));
}

// The same, and it goes on asking: what is kept for it is bounded, since it is not listened to.
TEST_P(DataPlaneStrangersTest, AnAskerThatOnlyAsksFillsNoMemory) {
  holder_->leases.AddSession(SessionId(2), TokenOf(2));
  const UniqueFd fd = Dial();
  const timeval patience{0, 300'000};
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience), 0);
  SendFrame(fd, DataOpen{.plane = static_cast<std::uint8_t>(holder_->plane->kind()),
                         .token = TokenOf(2)});
  std::vector<std::byte> reads;
  for (std::uint64_t tag = 0; tag < 10'000; ++tag) {
    AppendDataFrame(DataRead{.tag = tag, .lease = 999, .index = 0}, reads);
  }
  bool full = false;
  for (int i = 0; i < 1'000 && !full; ++i) {  // 320 MB.
    full = ::send(fd.get(), reads.data(), reads.size(), MSG_NOSIGNAL) <
           static_cast<ssize_t>(reads.size());
  }
  EXPECT_TRUE(full) << "it is still listened to";
  ExpectService();
}

// A plane that is not ready, since its memory is being registered: who has shown a token waits.
TEST(DataServer, AnAskerWaitsLongerThanAStranger) {
  for (const bool opens : {true, false}) {
    FakeTierHost host(1);
    LeaseTable leases{LeaseTable::Options()};
    leases.AddSession(kSession, TokenOf(1));
    auto listener = ListenTcp("127.0.0.1", 0);
    const std::string offer = std::to_string(PortOf(listener.value().get()).value());
    auto server = DataServer::Start(
        std::move(listener).value(),
        {.plane = PlaneKind::kTcp, .stranger_time = std::chrono::milliseconds(20)}, host, leases,
        nullptr);
    ASSERT_TRUE(server.ok());
    const UniqueFd asker = ConnectTcp(offer);
    SendFrame(asker,
              DataOpen{.plane = static_cast<std::uint8_t>(PlaneKind::kTcp), .token = TokenOf(1)});
    EXPECT_EQ(AwaitClosed(ConnectTcp(offer)), 0U) << "a stranger";
    EXPECT_TRUE(IsOpen(asker));
    opens ? server.value()->Open({}) : server.value()->Refuse("no memory");
    if (opens) {
      AwaitStill(asker);
      EXPECT_TRUE(leases.IsOpen(kSession));
      EXPECT_TRUE(server.value()->Shutdown(Soon()));
    }
    EXPECT_EQ(AwaitClosed(asker), opens ? 40U : 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Planes, DataPlaneStrangersTest, ::testing::ValuesIn(AllPlaneKits()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace terrace::testing
