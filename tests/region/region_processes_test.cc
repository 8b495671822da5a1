// Several real processes share one region, and die or fail while they set it up.
//
// Each process is a fork of the test, which has no threads of its own; how it ended is its exit
// code, or the signal that killed it, and what it had to say comes back through a pipe.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/host_region.h"
#include "host/region_socket.h"
#include "tests/support/memory_ops.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kRankBytes = 3000;  // Neighbours share pages.
constexpr seconds kPatience{60};

// A forked process; killed and waited for at the end.
class Process {
 public:
  // `body` runs in it. What it returns is what Said() gives.
  explicit Process(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      ::close(ends[0]);
      const std::string text = body();
      const bool written = ::write(ends[1], text.data(), text.size()) >= 0;
      ::_exit(written ? 0 : 1);
    }
    ::close(ends[1]);
    out_ = ends[0];
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, -1)) {}
  ~Process() {
    if (pid_ > 0) {
      Kill();
      ::waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) ::close(out_);
  }

  pid_t pid() const { return pid_; }
  void Kill() const { ::kill(pid_, SIGKILL); }

  // Waits for its end. "killed" if it was; "hangs" if it does not end.
  std::string Said() {
    std::string text;
    pollfd wait{out_, POLLIN, 0};
    char buffer[4096];
    while (true) {
      if (::poll(&wait, 1, static_cast<int>(milliseconds(kPatience).count())) != 1) return "hangs";
      const ssize_t size = ::read(out_, buffer, sizeof(buffer));
      if (size <= 0) break;
      text.append(buffer, static_cast<std::size_t>(size));
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status)) {
      return WTERMSIG(status) == SIGKILL ? "killed" : "signal " + std::to_string(WTERMSIG(status));
    }
    return WEXITSTATUS(status) == 0 ? text : "exit " + std::to_string(WEXITSTATUS(status));
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

std::string NewName() {
  static int count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

HostRegionOptions Options() {
  return {.total_bytes = 64 * 12288, .chunk_bytes = kRanks * kRankBytes, .prefault_threads = 1};
}

RegionSharing Sharing(const std::string& name, std::optional<std::uint32_t> rank) {
  RegionSharing sharing{.name = name,
                        .identity = {},
                        .rank_count = kRanks,
                        .process_count = kRanks,
                        .rank = rank,
                        .timeout = kPatience,
                        .at_stage = {}};
  sharing.identity.fill(7);
  return sharing;
}

bool IsFree(const std::string& name) {
  const auto socket = ConnectToRegion(name);
  return socket.ok() && !socket.value();
}

std::byte Mark(std::uint32_t writer, std::uint32_t slot) {
  return static_cast<std::byte>(1 + writer * 37 + slot);
}

// A process that maps the region, writes its slices, waits until each rank has, and reads them
// all. "" if all is well.
std::string WriteAndRead(HostRegion& region, std::uint32_t rank, milliseconds patience) {
  if (auto all = region.AwaitAll(); !all.ok()) return all.error().message;
  for (std::uint32_t slot = 0; slot < region.slot_count(); ++slot) {
    const auto slice = region.RankSlice(SlotId(slot), rank);
    std::memset(slice.data(), static_cast<int>(Mark(rank, slot)), slice.size());
  }
  const std::uint32_t last = region.slot_count() - 1;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (std::uint32_t other = 0; other < kRanks; ++other) {
    const auto end = region.RankSlice(SlotId(last), other).last(1).data();
    while (__atomic_load_n(reinterpret_cast<char*>(end), __ATOMIC_ACQUIRE) !=
           static_cast<char>(Mark(other, last))) {
      if (std::chrono::steady_clock::now() > deadline) return "a rank's bytes never came";
      std::this_thread::sleep_for(milliseconds(1));
    }
    for (std::uint32_t slot = 0; slot <= last; ++slot) {
      for (const std::byte byte : region.RankSlice(SlotId(slot), other)) {
        if (byte != Mark(other, slot)) return "a byte of another rank is wrong";
      }
    }
  }
  return "";
}

enum class Part { kCreate, kJoin };

std::string Take(Part part, const RegionSharing& sharing,
                 const HostRegionOptions& options = Options(), MemoryOps& ops = PosixMemoryOps()) {
  auto region = part == Part::kCreate ? HostRegion::CreateShared(options, sharing, ops)
                                      : HostRegion::Join(options, sharing, ops);
  if (!region.ok()) return region.error().message;
  if (sharing.rank) return WriteAndRead(*region.value(), *sharing.rank, sharing.timeout);
  auto all = region.value()->AwaitAll();
  return all.ok() ? "" : all.error().message;
}

Process Start(Part part, const RegionSharing& sharing) {
  return Process([=] { return Take(part, sharing); });
}

TEST(RegionProcesses, SeeEachOthersBytes) {
  for (const int populate_error : {0, EINVAL}) {  // Also while pages are touched by hand.
    const std::string name = NewName();
    std::vector<Process> processes;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      processes.emplace_back([=] {
        FakeMemoryOps ops;
        ops.populate_error = populate_error;
        return Take(rank == 0 ? Part::kCreate : Part::kJoin, Sharing(name, rank), Options(), ops);
      });
    }
    for (Process& process : processes) EXPECT_EQ(process.Said(), "");
    EXPECT_TRUE(IsFree(name));
  }
}

TEST(RegionProcesses, AnyMayCreateAndSomeHaveNoRank) {
  for (const std::uint32_t creator : {2u, kRanks}) {
    const std::string name = NewName();
    std::vector<Process> processes;
    for (std::uint32_t i = 0; i <= kRanks; ++i) {
      RegionSharing sharing =
          Sharing(name, i == kRanks ? std::nullopt : std::optional<std::uint32_t>(i));
      sharing.process_count = kRanks + 1;
      processes.push_back(Start(i == creator ? Part::kCreate : Part::kJoin, sharing));
    }
    for (Process& process : processes) EXPECT_EQ(process.Said(), "");
  }
}

// Without a rank it decides for nobody where memory lies.
TEST(RegionProcesses, OnlyRanksTouchMemory) {
  EXPECT_EQ(Process([] {
              RegionSharing sharing = Sharing(NewName(), std::nullopt);
              sharing.process_count = kRanks + 1;
              auto without = HostRegion::CreateShared(Options(), sharing);
              if (!without.ok()) return without.error().message;
              sharing = Sharing(NewName(), 1);
              auto with = HostRegion::CreateShared(Options(), sharing);
              if (!with.ok()) return with.error().message;
              // Bytes 3000 to 6000 of 12288 lie on the first two pages of three.
              return std::to_string(without.value()->prefault_progress().total_bytes) + " " +
                     std::to_string(with.value()->prefault_progress().total_bytes);
            }).Said(),
            "0 " + std::to_string(64 * 8192));
}

// --- kill -9 ---

struct Death {
  RegionStage stage;
  Part part;
};

class RegionProcessesKilled : public ::testing::TestWithParam<Death> {};
INSTANTIATE_TEST_SUITE_P(AtEachStage, RegionProcessesKilled,
                         ::testing::Values(Death{RegionStage::kListening, Part::kCreate},
                                           Death{RegionStage::kOffering, Part::kCreate},
                                           Death{RegionStage::kCompleting, Part::kCreate},
                                           Death{RegionStage::kConnected, Part::kJoin},
                                           Death{RegionStage::kOffered, Part::kJoin},
                                           Death{RegionStage::kMapped, Part::kJoin},
                                           Death{RegionStage::kReported, Part::kJoin}),
                         [](const auto& info) {
                           return std::to_string(static_cast<int>(info.param.stage));
                         });

// The others end with an error that says who went; nothing is left, and the next start under the
// same name succeeds.
TEST_P(RegionProcessesKilled, NothingIsLeftAndNobodyHangs) {
  const Death death = GetParam();
  const std::string name = NewName();
  const std::uint32_t victim = death.part == Part::kCreate ? 0 : 2;
  std::vector<Process> processes;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    RegionSharing sharing = Sharing(name, rank);
    sharing.timeout = seconds(2);  // Of a joiner that comes when all is over.
    if (rank == victim) {
      sharing.at_stage = [=](RegionStage stage) {
        if (stage == death.stage) ::kill(::getpid(), SIGKILL);
      };
    }
    processes.push_back(Start(rank == 0 ? Part::kCreate : Part::kJoin, sharing));
  }
  ::testing::Matcher<std::string> of_survivors =
      AnyOf(HasSubstr("rank 2 (pid"), HasSubstr("nobody is creating it"),
            // It had called when the creator gave up, and was not answered any more.
            HasSubstr("went away and no other came"),
            // It was the last to report: the set-up was complete when it died.
            "a rank's bytes never came");
  if (death.part == Part::kCreate) {
    of_survivors = AnyOf(HasSubstr("went away"), HasSubstr("nobody is creating it"));
  } else if (death.stage == RegionStage::kConnected) {  // It had not said who it is.
    of_survivors =
        AnyOf(HasSubstr("missing: rank 2"), HasSubstr("not all processes have mapped it"));
  }
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) {
      EXPECT_EQ(processes[rank].Said(), "killed");
    } else {
      EXPECT_THAT(processes[rank].Said(), of_survivors) << "rank " << rank;
    }
  }
  EXPECT_TRUE(IsFree(name));

  processes.clear();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    processes.push_back(Start(rank == 0 ? Part::kCreate : Part::kJoin, Sharing(name, rank)));
  }
  for (Process& process : processes) EXPECT_EQ(process.Said(), "");
}

// A killed rank is heard of at once, not at the end of the others' time.
TEST(RegionProcesses, ADeadRankEndsTheSetupAtOnce) {
  const std::string name = NewName();
  Process creator = Start(Part::kCreate, Sharing(name, 0));
  RegionSharing sharing = Sharing(name, 3);
  sharing.at_stage = [](RegionStage stage) {
    if (stage == RegionStage::kReported) ::kill(::getpid(), SIGKILL);
  };
  Process joiner = Start(Part::kJoin, sharing);
  const std::string joiner_pid = std::to_string(joiner.pid());
  const auto started = std::chrono::steady_clock::now();
  EXPECT_EQ(joiner.Said(), "killed");
  EXPECT_EQ(creator.Said(),
            "create host region \"" + name + "\": rank 3 (pid " + joiner_pid +
                ") went away; 1 of 4 processes have mapped it; missing: rank 1, rank 2, rank 3");
  EXPECT_LT(std::chrono::steady_clock::now() - started, kPatience / 2);
}

// A creator that was killed with its joiners alive does not keep the next one from the name.
TEST(RegionProcesses, AKilledCreatorsNameIsFreeAndItsJoinersFindTheNext) {
  const std::string name = NewName();
  RegionSharing first = Sharing(name, 0);
  first.at_stage = [](RegionStage stage) {
    if (stage == RegionStage::kOffering) ::kill(::getpid(), SIGKILL);
  };
  std::vector<Process> joiners;
  for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
    joiners.push_back(Start(Part::kJoin, Sharing(name, rank)));
  }
  EXPECT_EQ(Start(Part::kCreate, first).Said(), "killed");
  EXPECT_EQ(Start(Part::kCreate, Sharing(name, 0)).Said(), "");
  for (Process& joiner : joiners) EXPECT_EQ(joiner.Said(), "");
}

// --- What does not fit ---

TEST(RegionProcesses, AJoinerChecksEveryField) {
  struct Case {
    const char* field;
    std::function<void(HostRegionOptions&, RegionSharing&)> change;
  };
  const Case cases[] = {
      {"identity is 08", [](auto&, auto& sharing) { sharing.identity.fill(8); }},
      {"chunk_bytes is 8000 here and 12000",
       [](auto& options, auto&) { options.chunk_bytes = 8000; }},
      {"stride_bytes is 8192 here and 12288",
       [](auto& options, auto&) { options.chunk_bytes = 8000; }},
      {"slot_count is 63 here and 64", [](auto& options, auto&) { options.total_bytes -= 1; }},
      {"rank_count is 2 here and 4", [](auto&, auto& sharing) { sharing.rank_count = 2; }},
      {"process_count is 5 here and 4", [](auto&, auto& sharing) { sharing.process_count = 5; }},
  };
  for (const Case& one : cases) {
    const std::string name = NewName();
    Process creator = Start(Part::kCreate, Sharing(name, 0));
    const std::string joiner = Process([&] {
                                 HostRegionOptions options = Options();
                                 RegionSharing sharing = Sharing(name, 1);
                                 one.change(options, sharing);
                                 return Take(Part::kJoin, sharing, options);
                               }).Said();
    EXPECT_THAT(joiner, HasSubstr("join host region \"" + name + "\": "));
    EXPECT_THAT(joiner, HasSubstr(one.field));
    EXPECT_THAT(creator.Said(), AllOf(HasSubstr(") gave up: "), HasSubstr(one.field)));
  }
}

TEST(RegionProcesses, AFailedMappingOfOneEndsTheOthersWithItsReason) {
  const std::string name = NewName();
  Process creator = Start(Part::kCreate, Sharing(name, 0));
  Process patient = Start(Part::kJoin, Sharing(name, 1));
  Process failing([&] {
    FakeMemoryOps ops;
    ops.mmap_error = ENOMEM;
    return Take(Part::kJoin, Sharing(name, 2), Options(), ops);
  });
  EXPECT_THAT(failing.Said(), HasSubstr("Cannot allocate memory"));
  EXPECT_THAT(creator.Said(), AllOf(HasSubstr("rank 2 (pid"), HasSubstr("Cannot allocate memory")));
  patient.Kill();  // It may have come when all was over.
}

TEST(RegionProcesses, ARankThatNeverComesIsNamed) {
  const std::string name = NewName();
  RegionSharing sharing = Sharing(name, 0);
  sharing.timeout = milliseconds(500);
  Process creator = Start(Part::kCreate, sharing);
  Process joiner = Start(Part::kJoin, Sharing(name, 2));
  EXPECT_THAT(creator.Said(),
              AllOf(HasSubstr("not all have come after 500 ms; "), HasSubstr("missing: rank 1, ")));
  joiner.Kill();
}

TEST(RegionProcesses, ACreatorThatNeverComesIsNotWaitedForForEver) {
  RegionSharing sharing = Sharing(NewName(), 1);
  sharing.timeout = milliseconds(100);
  EXPECT_EQ(Start(Part::kJoin, sharing).Said(),
            "join host region \"" + sharing.name + "\": nobody is creating it, for 100 ms");
}

TEST(RegionProcesses, ACreatorThatDoesNotAnswerIsNotWaitedForForEver) {
  const std::string name = NewName();
  const auto silent = ListenForRegion(name);
  ASSERT_TRUE(silent.ok());
  RegionSharing sharing = Sharing(name, 1);
  sharing.timeout = milliseconds(100);
  EXPECT_THAT(Start(Part::kJoin, sharing).Said(), HasSubstr("does not answer, for 100 ms"));
}

TEST(RegionProcesses, ARankCanNotComeTwice) {
  for (const std::uint32_t twice : {0u, 2u}) {
    const std::string name = NewName();
    Process creator = Start(Part::kCreate, Sharing(name, 0));
    Process one = Start(Part::kJoin, Sharing(name, twice));
    Process other = Start(Part::kJoin, Sharing(name, twice));
    EXPECT_THAT(creator.Said(),
                HasSubstr("is rank " + std::to_string(twice) + ", and so is another"));
    one.Kill();
    other.Kill();
  }
}

TEST(RegionProcesses, ThereAreNoMoreProcessesWithoutARankThanSaid) {
  const std::string name = NewName();
  Process creator = Start(Part::kCreate, Sharing(name, 0));
  Process joiner([&] {  // Says that it is one of five, so that only its rank is wrong.
    RegionSharing sharing = Sharing(name, std::nullopt);
    sharing.process_count = kRanks + 1;
    return Take(Part::kJoin, sharing);
  });
  EXPECT_THAT(joiner.Said(), HasSubstr("has no rank, and there are 0 such processes already"));
  EXPECT_THAT(creator.Said(), HasSubstr("has no rank"));
}

TEST(RegionProcesses, TwoCanNotCreateOne) {
  const std::string name = NewName();
  const auto taken = ListenForRegion(name);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(
      Start(Part::kCreate, Sharing(name, 0)).Said(),
      "create host region \"" + name + "\": another process is setting up a region of that name");
}

TEST(RegionProcesses, AnotherUserGetsNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become somebody else";
  auto as_nobody = [](Part part, const RegionSharing& sharing) {
    return Process([=]() -> std::string {
      if (::setuid(65534) != 0) return "no setuid";
      return Take(part, sharing);
    });
  };
  std::string name = NewName();
  RegionSharing sharing = Sharing(name, 1);
  sharing.timeout = milliseconds(500);
  {
    Process creator = Start(Part::kCreate, Sharing(name, 0));
    EXPECT_THAT(as_nobody(Part::kJoin, sharing).Said(),
                HasSubstr("of user 0, this one of user 65534"));
    creator.Kill();
  }
  name = sharing.name = NewName();
  Process creator = as_nobody(Part::kCreate, Sharing(name, 0));
  EXPECT_THAT(Start(Part::kJoin, sharing).Said(), HasSubstr("of user 65534, this one of user 0"));
}

// The creator's side of the same check, against a joiner that does not look.
TEST(RegionProcesses, AnotherUserIsOfferedNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become somebody else";
  const std::string name = NewName();
  Process creator = Start(Part::kCreate, Sharing(name, 0));
  Process stranger([&]() -> std::string {
    if (::setuid(65534) != 0) return "no setuid";
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      auto socket = ConnectToRegion(name);
      if (!socket.ok() || !socket.value()) continue;
      RegionMessage hello;
      hello.rank = 1;
      IgnoreError(SendRegionMessage(socket.value()->get(), hello), "it may be closed already");
      if (!WaitUntilReadable(socket.value()->get(), deadline)) return "no answer";
      auto answer = ReceiveRegionMessage(socket.value()->get());
      return answer.ok() && !answer.value() ? "closed" : "answered";
    }
    return "nobody listens";
  });
  EXPECT_EQ(stranger.Said(), "closed");
  creator.Kill();
}

// --- Nonsense at either end ---

UniqueFd ConnectPatiently(const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    auto socket = ConnectToRegion(name);
    if (socket.ok() && socket.value()) return std::move(*socket.value());
    std::this_thread::sleep_for(milliseconds(1));
  }
  return {};
}

TEST(RegionProcesses, StrangersDoNotDisturbASetup) {
  const std::string name = NewName();
  std::vector<Process> processes;
  processes.push_back(Start(Part::kCreate, Sharing(name, 0)));
  const UniqueFd silent = ConnectPatiently(name);
  { const UniqueFd gone_at_once = ConnectPatiently(name); }
  const UniqueFd short_one = ConnectPatiently(name);
  ASSERT_EQ(::send(short_one.get(), "GET /", 5, MSG_NOSIGNAL), 5);
  const UniqueFd newer = ConnectPatiently(name);
  RegionMessage hello;
  hello.version = RegionMessage::kVersion + 1;
  ASSERT_TRUE(SendRegionMessage(newer.get(), hello).ok());
  for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
    processes.push_back(Start(Part::kJoin, Sharing(name, rank)));
  }
  for (Process& process : processes) EXPECT_EQ(process.Said(), "");
  const auto answer = ReceiveRegionMessage(newer.get());
  ASSERT_TRUE(answer.ok() && answer.value());
  EXPECT_THAT(answer.value()->message.text, HasSubstr("version is 1 here and 2 there"));
}

// A joiner that is not even accepted when the set-up fails does not wait for another creator.
TEST(RegionProcesses, WhoComesAsTheSetupFailsIsToldToo) {
  Process creator([]() -> std::string {
    std::promise<void> both_wait;
    RegionSharing sharing = Sharing(NewName(), 0);
    sharing.at_stage = [&](RegionStage stage) {
      if (stage == RegionStage::kListening) both_wait.get_future().wait();
    };
    const auto region = HostRegion::CreateShared(Options(), sharing);
    if (!region.ok()) return region.error().message;
    const UniqueFd wrong = ConnectPatiently(sharing.name);
    const UniqueFd next = ConnectPatiently(sharing.name);
    RegionMessage hello;
    hello.rank = 9;
    if (!SendRegionMessage(wrong.get(), hello).ok()) return "not sent";
    both_wait.set_value();
    if (!WaitUntilReadable(next.get(), std::chrono::steady_clock::now() + kPatience))
      return "silence";
    auto told = ReceiveRegionMessage(next.get());
    if (!told.ok()) return told.error().message;
    return told.value() ? std::string(told.value()->message.text) : "closed without a word";
  });
  EXPECT_THAT(creator.Said(), HasSubstr("is rank 9, of 4 ranks"));
}

// What a joiner says to a creator that answers with `offer` and `memory`.
std::string JoinerOf(RegionMessage offer, int memory) {
  const std::string name = NewName();
  auto listener = ListenForRegion(name);
  if (!listener.ok()) return listener.error().message;
  Process joiner = Start(Part::kJoin, Sharing(name, 1));
  if (!WaitUntilReadable(listener.value().get(), std::chrono::steady_clock::now() + kPatience)) {
    return "it never came";
  }
  auto socket = AcceptForRegion(listener.value().get());
  if (!socket.ok() || !socket.value()) return "it went away";
  IgnoreError(SendRegionMessage(socket.value()->get(), offer, memory), "then the joiner says so");
  return joiner.Said();
}

RegionMessage Offer() {
  RegionMessage offer;
  offer.kind = RegionMessage::Kind::kOffer;
  offer.header = {.chunk_bytes = 12000,
                  .stride_bytes = 12288,
                  .mapping_bytes = 64 * 12288,
                  .slot_count = 64,
                  .rank_count = kRanks,
                  .process_count = kRanks,
                  .identity = Sharing("", 0).identity};
  return offer;
}

TEST(RegionProcesses, AJoinerDoesNotTrustAnOffer) {
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), 64 * 12288), 0);
  EXPECT_THAT(JoinerOf(Offer(), memory.get()), HasSubstr("its size is not sealed"));
  EXPECT_THAT(JoinerOf(Offer(), -1), HasSubstr("offers no memory"));

  RegionMessage offer = Offer();
  offer.magic = 1;
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("magic is wrong"));
  offer = Offer();
  offer.version = 2;
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("version is 1 here and 2 there"));
  offer = Offer();
  offer.header.huge_pages = 3;
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("huge_pages is 3"));
  offer = Offer();
  offer.header.mapping_bytes = 4096;
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("mapping_bytes is 4096, less than"));
  offer = Offer();
  offer.header.mapping_bytes += 4096;  // Beyond the file's end a touch is a SIGBUS.
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("it has 786432 bytes, its header says"));
  offer = Offer();
  std::memset(offer.text, 'x', sizeof(offer.text));
  EXPECT_THAT(JoinerOf(offer, memory.get()), HasSubstr("a message of"));
}

// It finds the socket closed when it reports, and says what the creator said before.
TEST(RegionProcesses, AJoinerThatIsLateSaysWhyTheCreatorGaveUp) {
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), 64 * 12288), 0);
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const std::string name = NewName();
  auto listener = ListenForRegion(name);
  ASSERT_TRUE(listener.ok());
  int closed[2];
  ASSERT_EQ(::pipe(closed), 0);
  RegionSharing sharing = Sharing(name, 1);
  sharing.at_stage = [&](RegionStage stage) {
    if (stage != RegionStage::kMapped) return;
    ::close(closed[1]);
    char byte = 0;
    EXPECT_EQ(::read(closed[0], &byte, 1), 1);
  };
  Process joiner = Start(Part::kJoin, sharing);
  ASSERT_TRUE(
      WaitUntilReadable(listener.value().get(), std::chrono::steady_clock::now() + kPatience));
  {
    auto socket = AcceptForRegion(listener.value().get());
    ASSERT_TRUE(socket.ok() && socket.value());
    ASSERT_TRUE(SendRegionMessage(socket.value()->get(), Offer(), memory.get()).ok());
    RegionMessage failed;
    failed.kind = RegionMessage::Kind::kFailed;
    failed.SetText("the disk is on fire");
    ASSERT_TRUE(SendRegionMessage(socket.value()->get(), failed).ok());
  }
  ASSERT_EQ(::write(closed[1], "x", 1), 1);
  EXPECT_THAT(joiner.Said(), HasSubstr("the disk is on fire"));
  ::close(closed[0]);
  ::close(closed[1]);
}

TEST(RegionSharing, NamesEveryFault) {
  RegionSharing sharing = Sharing("", 4);
  sharing.process_count = 3;
  const auto region = HostRegion::CreateShared(Options(), sharing);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(region.error().message,
            "share host memory: name has 0 characters, not 1 to 80; process_count is 3, for 4 "
            "ranks, at most 1024; rank is 4, of 4 ranks");
  sharing = Sharing(std::string(81, 'x'), std::nullopt);
  EXPECT_THAT(HostRegion::Join(Options(), sharing).error().message,
              HasSubstr("process_count is 4, for 4 ranks and this process without one"));
  HostRegionOptions options = Options();
  options.chunk_bytes = 12001;
  EXPECT_THAT(HostRegion::Join(options, Sharing("x", 0)).error().message,
              HasSubstr("can't be shared out to 4 ranks"));
}

}  // namespace
}  // namespace terrace::testing
