// What every data plane must do: right bytes or none, every read ended once, whatever the other
// side does. Two nodes in one process, each with a plane; one test has its holder in another.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/hash.h"
#include "tests/contract/data_plane_kits.h"

namespace terrace::testing {
namespace {

using testing_support::Key;
using testing_support::Keys;

constexpr SessionId kSession(1);
constexpr DataLinkId kLink(1);
const std::string kHost = "127.0.0.1";

class DataPlaneTest : public ::testing::TestWithParam<PlaneKit> {
 protected:
  // Opens `link` of `asker` with a new session of `holder`.
  static bool Connect(PlaneNode& asker, PlaneNode& holder, SessionId session = kSession,
                      DataLinkId link = kLink) {
    const SessionToken token = TokenOf(static_cast<std::uint8_t>(session.value));
    holder.leases.AddSession(session, token);
    asker.plane->Open(link, kHost, holder.plane->Offer(), token, Soon());
    return asker.AwaitOpened(link);
  }
  PlaneFactory create() const { return GetParam().create; }
};

TEST_P(DataPlaneTest, BytesArriveWholeForEveryChunkSizeAndBatch) {
  struct Case {
    std::uint64_t chunk_bytes;
    std::vector<std::uint32_t> batches;
  };
  for (const Case& one : {Case{1, {1, 3}},
                          {4'095, {0, 1, 2, 200}},
                          {5'000, {1, 64, 65, 130}},
                          {(256 << 10) + 1, {1, 9}},
                          {2 << 20, {1, 7}},
                          {(11 << 20) + 13, {1, 3}}}) {
    PlaneNode holder(create(), 200, one.chunk_bytes);
    PlaneNode asker(create(), 200, one.chunk_bytes);
    ASSERT_TRUE(Connect(asker, holder));
    std::uint64_t tag = 0;
    for (const std::uint32_t batch : one.batches) {
      const auto keys = Keys(tag, batch);
      const LeaseId lease = holder.Lease(kSession, keys);
      const auto reads = ReadsOf(lease, keys, 0, tag);
      asker.plane->Read(kLink, reads);
      tag += batch;
      ASSERT_TRUE(asker.AwaitEnds(tag));
      for (const ChunkRead& read : reads) {
        ASSERT_EQ(asker.EndOf(kLink, read.tag), ReadEnd::kOk);
        ASSERT_TRUE(asker.Holds(read.slot, read.key)) << one.chunk_bytes << " bytes";
      }
      EXPECT_TRUE(holder.leases.Release(kSession, lease));
      if (batch > 0) {
        EXPECT_TRUE(holder.bell.WaitFor([&] { return holder.leases.counts().leases == 0; }));
      }
    }
    EXPECT_TRUE(asker.lost.empty());
  }
}

TEST_P(DataPlaneTest, ManyCallsOfReadAreOneQueue) {
  PlaneNode holder(create(), 64), asker(create(), 64);
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 64);
  for (const ChunkRead& read : ReadsOf(holder.Lease(kSession, keys), keys)) {
    asker.plane->Read(kLink, {&read, 1});
  }
  ASSERT_TRUE(asker.AwaitEnds(64));
  EXPECT_EQ(asker.CountEnds(ReadEnd::kOk), 64U);
}

TEST_P(DataPlaneTest, AWrongTokenIsRefused) {
  PlaneNode holder(create()), asker(create());
  holder.leases.AddSession(kSession, TokenOf(1));
  asker.plane->Open(kLink, kHost, holder.plane->Offer(), TokenOf(2), Soon());
  ASSERT_TRUE(asker.AwaitLost(kLink));
  EXPECT_FALSE(asker.opened.contains(kLink));
  EXPECT_FALSE(asker.lost[kLink].empty());
}

TEST_P(DataPlaneTest, ATokenOpensOneLink) {
  PlaneNode holder(create()), asker(create());
  ASSERT_TRUE(Connect(asker, holder));
  asker.plane->Open(DataLinkId(2), kHost, holder.plane->Offer(), TokenOf(1), Soon());
  ASSERT_TRUE(asker.AwaitLost(DataLinkId(2)));
  const auto keys = Keys(0, 1);
  asker.plane->Read(kLink, ReadsOf(holder.Lease(kSession, keys), keys));
  ASSERT_TRUE(asker.AwaitEnds(1));
  EXPECT_EQ(asker.EndOf(kLink, 0), ReadEnd::kOk) << "the first link is none the worse";
}

TEST_P(DataPlaneTest, OneMoreThanLinksMaxIsRefused) {
  PlaneNode holder(create(), 16, 5000, 2), asker(create());
  ASSERT_TRUE(Connect(asker, holder, SessionId(1), DataLinkId(1)));
  ASSERT_TRUE(Connect(asker, holder, SessionId(2), DataLinkId(2)));
  EXPECT_FALSE(Connect(asker, holder, SessionId(3), DataLinkId(3)));
  asker.plane->Close(DataLinkId(1));
  ASSERT_TRUE(holder.bell.WaitFor([&] { return !holder.leases.TakeLost().empty(); }));
  EXPECT_TRUE(Connect(asker, holder, SessionId(4), DataLinkId(4))) << "there is room again";
}

TEST_P(DataPlaneTest, OffersThatMeanNothingAreLost) {
  PlaneNode holder(create()), asker(create());
  holder.leases.AddSession(kSession, TokenOf(1));
  std::uint64_t link = 100;
  for (const std::string& offer :
       {holder.plane->Offer() + "x", std::string(), std::string("0"), std::string("65536"),
        std::string("-1"), std::string("junk"), std::string(4096, 'x'),
        std::string("00112233445566778899aabbccddeeff"),
        std::string("00112233445566778899aabbccddeeff another-boot"), std::string(3, '\0')}) {
    asker.plane->Open(DataLinkId(link), kHost, offer, TokenOf(1), Soon());
    EXPECT_TRUE(asker.AwaitLost(DataLinkId(link))) << offer;
    ++link;
  }
  EXPECT_TRUE(asker.opened.empty());
}

TEST_P(DataPlaneTest, WhatIsNotLeasedIsGone) {
  PlaneNode holder(create()), asker(create());
  ASSERT_TRUE(Connect(asker, holder));
  holder.leases.AddSession(SessionId(2), TokenOf(2));
  const auto keys = Keys(0, 3);
  const LeaseId released = holder.Lease(kSession, keys);
  const LeaseId foreign = holder.Lease(SessionId(2), keys);
  const LeaseId mine = holder.Lease(kSession, keys);
  EXPECT_TRUE(holder.leases.Release(kSession, released));
  const std::vector<ChunkRead> reads{{0, released, 0, keys[0], SlotId(0)},
                                     {1, foreign, 0, keys[0], SlotId(1)},
                                     {2, LeaseId(999), 0, keys[0], SlotId(2)},
                                     {3, mine, 3, keys[0], SlotId(3)},
                                     {4, mine, 2, keys[2], SlotId(4)}};
  asker.plane->Read(kLink, reads);
  ASSERT_TRUE(asker.AwaitEnds(5));
  for (const std::uint64_t tag : {0U, 1U, 2U, 3U}) {
    EXPECT_EQ(asker.EndOf(kLink, tag), ReadEnd::kGone) << tag;
  }
  EXPECT_EQ(asker.EndOf(kLink, 4), ReadEnd::kOk);
  EXPECT_TRUE(asker.lost.empty()) << "the link goes on";
}

TEST_P(DataPlaneTest, AnotherChunkThanWantedIsCorrupt) {
  PlaneNode holder(create()), asker(create());
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 3);
  auto reads = ReadsOf(holder.Lease(kSession, keys), keys);
  reads[1].key = Key(77);
  asker.plane->Read(kLink, reads);
  ASSERT_TRUE(asker.AwaitEnds(3));
  EXPECT_EQ(asker.EndOf(kLink, 0), ReadEnd::kOk);
  EXPECT_EQ(asker.EndOf(kLink, 1), ReadEnd::kCorrupt);
  EXPECT_EQ(asker.EndOf(kLink, 2), ReadEnd::kOk);
  // The holder does not keep what was refused.
  EXPECT_TRUE(holder.bell.WaitFor([&] { return holder.leases.counts().reads == 0; }));
}

// Who serves a chunk again, or passes it on, does not hash it again.
TEST_P(DataPlaneTest, AChecksumIsTakenOnceAndTravelsWithItsChunk) {
  PlaneNode holder(create()), asker(create());
  SlotChecksums& held = holder.host.RememberChecksums();
  SlotChecksums& fetched = asker.host.RememberChecksums();
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 2);
  const LeaseId lease = holder.Lease(kSession, keys);
  asker.plane->Read(kLink, ReadsOf(lease, keys, 4));
  ASSERT_TRUE(asker.AwaitEnds(2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    ASSERT_EQ(asker.EndOf(kLink, i), ReadEnd::kOk);
    const std::uint64_t right = Xxh3(asker.host.Slot(SlotId(4 + i)));
    EXPECT_EQ(held.Known(SlotId(i)), right);
    EXPECT_EQ(fetched.Known(SlotId(4 + i)), right);
  }
  // What was noted is what is sent; whether it is right is the asker's to find out.
  held.Note(SlotId(1), 12345);
  asker.plane->Read(kLink, ReadsOf(lease, keys, 8, 2));
  ASSERT_TRUE(asker.AwaitEnds(4));
  EXPECT_EQ(asker.EndOf(kLink, 2), ReadEnd::kOk);
  EXPECT_EQ(asker.EndOf(kLink, 3), ReadEnd::kCorrupt);
  EXPECT_EQ(fetched.Known(SlotId(9)), std::nullopt) << "of a chunk that did not come";
}

TEST_P(DataPlaneTest, AnotherModelsChunksAreRefused) {
  auto fields = TestIdentityFields(5000);
  fields.model = "another/model";
  PlaneNode holder(create(), 16, fields, 8), asker(create());
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 1);
  asker.plane->Read(kLink, ReadsOf(holder.Lease(kSession, keys), keys));
  ASSERT_TRUE(asker.AwaitEnds(1));
  EXPECT_EQ(asker.EndOf(kLink, 0), ReadEnd::kCorrupt);
}

TEST_P(DataPlaneTest, ChunksOfAnotherSizeAreRefusedAtOpen) {
  PlaneNode holder(create(), 16, 6000), asker(create(), 16, 5000);
  EXPECT_FALSE(Connect(asker, holder));
  EXPECT_TRUE(asker.lost.contains(kLink));
}

// The lease ends and the slots get other bytes while they are being read, through a mapping of its
// own (for the thread sanitizer it is another process). A read is right or it is not kOk.
TEST_P(DataPlaneTest, ASlotThatIsReusedMeanwhileIsNeverOk) {
  constexpr std::size_t kChunk = (1 << 20) + 5;
  constexpr std::uint32_t kBatch = 8;
  PlaneNode holder(create(), kBatch, kChunk), asker(create(), kBatch, kChunk);
  ASSERT_TRUE(Connect(asker, holder));
  const TierMemory memory = holder.host.Memory();
  auto* const bytes = static_cast<std::byte*>(::mmap(
      nullptr, memory.bytes.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor, 0));
  ASSERT_NE(bytes, MAP_FAILED);
  std::size_t ended = 0;
  std::size_t jobs = 0;
  for (std::uint32_t round = 0; round < 40; ++round) {
    const auto keys = Keys(round * kBatch, kBatch);
    const LeaseId lease = holder.Lease(kSession, keys);
    const auto reads = ReadsOf(lease, keys, 0, round * kBatch);
    asker.plane->Read(kLink, reads);
    // Some rounds are cut off early, some late.
    ended += round % (kBatch + 1);
    ASSERT_TRUE(asker.AwaitEnds(ended));
    EXPECT_TRUE(holder.leases.Release(kSession, lease));
    ASSERT_TRUE(holder.AwaitEndedJobs(++jobs)) << "nobody holds them up";
    std::memset(bytes, 0xee, memory.bytes.size());
    ended = (round + 1) * std::size_t{kBatch};
    ASSERT_TRUE(asker.AwaitEnds(ended));
    for (const ChunkRead& read : reads) {
      if (asker.EndOf(kLink, read.tag) != ReadEnd::kOk) continue;
      ASSERT_TRUE(asker.Holds(read.slot, read.key)) << "round " << round;
    }
    ASSERT_TRUE(asker.lost.empty()) << asker.lost[kLink];
  }
  ::munmap(bytes, memory.bytes.size());
}

TEST_P(DataPlaneTest, OpenEndsAtItsDeadlineIfTheHolderIsSilent) {
  PlaneNode asker(create());
  const auto [listener, offer] = GetParam().listen();
  asker.plane->Open(kLink, kHost, offer, TokenOf(1),
                    std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  EXPECT_TRUE(asker.AwaitLost(kLink));
  asker.plane->Open(DataLinkId(2), kHost, offer, TokenOf(1), std::chrono::steady_clock::now());
  EXPECT_TRUE(asker.AwaitLost(DataLinkId(2))) << "a deadline that has passed";
}

TEST_P(DataPlaneTest, CloseEndsAnOpeningLink) {
  PlaneNode asker(create());
  const auto [listener, offer] = GetParam().listen();
  asker.plane->Open(kLink, kHost, offer, TokenOf(1), Soon() + std::chrono::hours(1));
  asker.plane->Close(kLink);
  EXPECT_TRUE(asker.AwaitLost(kLink));
}

TEST_P(DataPlaneTest, CloseEndsAllReads) {
  constexpr std::size_t kChunk = 1 << 20;
  PlaneNode holder(create(), 64, kChunk), asker(create(), 64, kChunk);
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 64);
  asker.plane->Read(kLink, ReadsOf(holder.Lease(kSession, keys), keys));
  asker.plane->Close(kLink);
  asker.plane->Close(kLink);
  ASSERT_TRUE(asker.AwaitLost(kLink));
  EXPECT_EQ(asker.ends.size(), 64U) << "before the link's end";
  EXPECT_EQ(asker.CountEnds(ReadEnd::kOk) + asker.CountEnds(ReadEnd::kLost), 64U);
  EXPECT_TRUE(holder.AwaitEndedJobs(1)) << "the holder gives up its lease";
}

TEST_P(DataPlaneTest, AHolderThatShutsDownLosesItsLinks) {
  constexpr std::size_t kChunk = 1 << 20;
  PlaneNode asker(create(), 64, kChunk);
  PlaneNode holder(create(), 64, kChunk);
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 64);
  asker.plane->Read(kLink, ReadsOf(holder.Lease(kSession, keys), keys));
  ASSERT_TRUE(asker.AwaitEnds(1));
  EXPECT_TRUE(holder.plane->Shutdown(kPatience));
  EXPECT_TRUE(holder.AwaitEndedJobs(1));
  ASSERT_TRUE(asker.AwaitLost(kLink));
  EXPECT_EQ(asker.ends.size(), 64U);
  for (const auto& [read, end] : asker.ends) {
    if (end != ReadEnd::kOk) continue;
    EXPECT_TRUE(asker.Holds(SlotId(static_cast<std::uint32_t>(read.second)), keys[read.second]));
  }
}

TEST_P(DataPlaneTest, AnAskerThatShutsDownEndsItsLeases) {
  constexpr std::size_t kChunk = 1 << 20;
  PlaneNode holder(create(), 64, kChunk), asker(create(), 64, kChunk);
  ASSERT_TRUE(Connect(asker, holder));
  const auto keys = Keys(0, 64);
  asker.plane->Read(kLink, ReadsOf(holder.Lease(kSession, keys), keys));
  ASSERT_TRUE(asker.AwaitEnds(1));
  EXPECT_TRUE(asker.plane->Shutdown(kPatience));
  EXPECT_TRUE(asker.plane->Shutdown(std::chrono::milliseconds(0))) << "again";
  EXPECT_TRUE(holder.AwaitEndedJobs(1));
  EXPECT_TRUE(holder.bell.WaitFor(
      [&] { return holder.leases.TakeLost() == std::vector<SessionId>{kSession}; }));
  asker.Take();
  EXPECT_EQ(asker.ends.size(), 64U);
  EXPECT_TRUE(asker.lost.contains(kLink));
  // What comes too late ends, too.
  asker.plane->Open(DataLinkId(2), kHost, holder.plane->Offer(), TokenOf(1), Soon());
  EXPECT_TRUE(asker.AwaitLost(DataLinkId(2)));
}

// kLost is there, but was not taken: the reads still come before it.
TEST_P(DataPlaneTest, AReadOfALinkThatIsLostEndsBeforeItsLoss) {
  PlaneNode asker(create());
  auto holder = std::make_unique<PlaneNode>(create());
  ASSERT_TRUE(Connect(asker, *holder));
  const auto keys = Keys(0, 3);
  const auto reads = ReadsOf(holder->Lease(kSession, keys), keys);
  EXPECT_TRUE(holder->plane->Shutdown(kPatience));
  for (const ChunkRead& read : reads) {
    asker.plane->Read(kLink, {&read, 1});
    std::this_thread::yield();
  }
  ASSERT_TRUE(asker.AwaitLost(kLink));
  EXPECT_EQ(asker.ends.size(), 3U);
  EXPECT_EQ(asker.CountEnds(ReadEnd::kLost), 3U);
}

TEST_P(DataPlaneTest, ASessionThatEndsClosesItsLink) {
  PlaneNode holder(create()), asker(create());
  ASSERT_TRUE(Connect(asker, holder));
  holder.leases.RemoveSession(kSession);
  EXPECT_TRUE(asker.AwaitLost(kLink));
}

TEST_P(DataPlaneTest, TwoAskersAreServedAtOnce) {
  constexpr std::size_t kChunk = (1 << 20) + 1;
  PlaneNode holder(create(), 32, kChunk), one(create(), 32, kChunk), other(create(), 32, kChunk);
  ASSERT_TRUE(Connect(one, holder, SessionId(1)));
  ASSERT_TRUE(Connect(other, holder, SessionId(2)));
  const auto keys = Keys(0, 32);
  const LeaseId first = holder.Lease(SessionId(1), keys);
  const LeaseId second = holder.Lease(SessionId(2), keys);
  one.plane->Read(kLink, ReadsOf(first, keys));
  other.plane->Read(kLink, ReadsOf(second, keys));
  for (PlaneNode* asker : {&one, &other}) {
    ASSERT_TRUE(asker->AwaitEnds(32));
    EXPECT_EQ(asker->CountEnds(ReadEnd::kOk), 32U);
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_TRUE(asker->Holds(SlotId(i), keys[i]));
  }
}

TEST_P(DataPlaneTest, TwoNodesReadFromEachOther) {
  constexpr std::size_t kChunk = (1 << 20) + 1;
  PlaneNode a(create(), 32, kChunk), b(create(), 32, kChunk);
  ASSERT_TRUE(Connect(a, b, SessionId(1)));
  ASSERT_TRUE(Connect(b, a, SessionId(2)));
  const auto keys_of_a = Keys(0, 16), keys_of_b = Keys(100, 16);
  const LeaseId of_a = a.Lease(SessionId(2), keys_of_a);
  const LeaseId of_b = b.Lease(SessionId(1), keys_of_b);
  a.plane->Read(kLink, ReadsOf(of_b, keys_of_b, 16));
  b.plane->Read(kLink, ReadsOf(of_a, keys_of_a, 16));
  ASSERT_TRUE(a.AwaitEnds(16));
  ASSERT_TRUE(b.AwaitEnds(16));
  EXPECT_EQ(a.CountEnds(ReadEnd::kOk), 16U);
  EXPECT_EQ(b.CountEnds(ReadEnd::kOk), 16U);
  for (std::uint32_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(a.Holds(SlotId(16 + i), keys_of_b[i]));
    EXPECT_TRUE(b.Holds(SlotId(16 + i), keys_of_a[i]));
  }
}

TEST_P(DataPlaneTest, ShutdownWithLinksOpenAndReadsUnderWay) {
  constexpr std::size_t kChunk = 1 << 20;
  PlaneNode a(create(), 64, kChunk), b(create(), 64, kChunk);
  ASSERT_TRUE(Connect(a, b, SessionId(1)));
  ASSERT_TRUE(Connect(b, a, SessionId(2)));
  const auto keys = Keys(0, 32);
  const LeaseId of_a = a.Lease(SessionId(2), keys);
  const LeaseId of_b = b.Lease(SessionId(1), keys);
  a.plane->Read(kLink, ReadsOf(of_b, keys, 32));
  b.plane->Read(kLink, ReadsOf(of_a, keys, 32));
  EXPECT_TRUE(a.plane->Shutdown(kPatience));
  EXPECT_TRUE(b.plane->Shutdown(kPatience));
  for (PlaneNode* node : {&a, &b}) {
    node->Take();
    EXPECT_EQ(node->ends.size(), 32U);
    EXPECT_TRUE(node->lost.contains(kLink));
    EXPECT_EQ(node->leases.counts().reads, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Planes, DataPlaneTest, ::testing::ValuesIn(AllPlaneKits()),
                         [](const auto& test) { return std::string(test.param.name); });

// The holder's process, killed in the middle. It is this program again, in the test below.
constexpr const char* kHolderEnv = "TERRACE_TEST_HOLDER";
constexpr std::size_t kProcessChunk = 1 << 20;

TEST(DataPlaneProcess, DISABLED_Holder) {
  const char* const plane = std::getenv(kHolderEnv);
  ASSERT_NE(plane, nullptr);
  for (const PlaneKit& kit : AllPlaneKits()) {
    if (kit.name != std::string(plane)) continue;
    PlaneNode holder(kit.create, 64, kProcessChunk);
    holder.leases.AddSession(kSession, TokenOf(1));
    const LeaseId lease = holder.Lease(kSession, Keys(0, 64));
    ASSERT_EQ(lease, LeaseId(1));
    const std::string line = holder.plane->Offer() + "\n";
    ASSERT_EQ(::write(STDERR_FILENO, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    ::pause();
  }
}

class DataPlaneProcessTest : public DataPlaneTest {};

TEST_P(DataPlaneProcessTest, AHolderThatIsKilledLosesItsLinks) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const UniqueFd from(pipe_ends[0]);
  UniqueFd to(pipe_ends[1]);
  ::setenv(kHolderEnv, GetParam().name, 1);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to.get(), STDERR_FILENO);
  const char* const argv[] = {"holder", "--gtest_also_run_disabled_tests",
                              "--gtest_filter=DataPlaneProcess.DISABLED_Holder", nullptr};
  pid_t holder = -1;
  ASSERT_EQ(::posix_spawn(&holder, "/proc/self/exe", &actions, nullptr,
                          const_cast<char* const*>(argv), environ),
            0);
  ::posix_spawn_file_actions_destroy(&actions);
  to.Reset();
  std::string offer;
  for (char c = 0; ::read(from.get(), &c, 1) == 1 && c != '\n';) offer.push_back(c);

  PlaneNode asker(create(), 64, kProcessChunk);
  asker.plane->Open(kLink, kHost, offer, TokenOf(1), Soon());
  ASSERT_TRUE(asker.AwaitOpened(kLink)) << asker.lost[kLink];
  const auto keys = Keys(0, 64);
  asker.plane->Read(kLink, ReadsOf(LeaseId(1), keys));
  ASSERT_TRUE(asker.AwaitEnds(2));
  EXPECT_EQ(::kill(holder, SIGKILL), 0);
  ASSERT_TRUE(asker.AwaitLost(kLink));
  EXPECT_EQ(asker.ends.size(), 64U);
  for (const auto& [read, end] : asker.ends) {
    if (end != ReadEnd::kOk) continue;
    EXPECT_TRUE(asker.Holds(SlotId(static_cast<std::uint32_t>(read.second)), keys[read.second]));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(holder, &status, 0), holder);
}

INSTANTIATE_TEST_SUITE_P(Planes, DataPlaneProcessTest, ::testing::ValuesIn(AllPlaneKits()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace terrace::testing
