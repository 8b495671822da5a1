// kill -9 at every system call of a process that stores: what it published is whole, what it left
// unfinished is cleaned up, and a living neighbour is not disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/file/file_tier.h"

extern char** environ;

namespace terrace::testing {
namespace {

constexpr std::uint32_t kChunks = 3;

// A running file_tier_writer; killed and waited for at the end.
class Writer {
 public:
  explicit Writer(std::vector<std::string> arguments) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addclose(&actions, ends[0]);
    arguments.insert(arguments.begin(), FILE_TIER_WRITER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (::posix_spawn(&pid_, FILE_TIER_WRITER, &actions, nullptr, argv.data(), environ) != 0) {
      std::abort();
    }
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ends[0];
  }
  ~Writer() {
    if (pid_ > 0) {
      Kill();
      Wait();
    }
    ::close(out_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // False if the process does not write `count` bytes in time.
  bool AwaitOutput(std::size_t count) {
    pollfd ready{out_, POLLIN, 0};
    const int patience_ms =
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count());
    for (std::size_t got = 0; got < count; ++got) {
      char byte = 0;
      if (::poll(&ready, 1, patience_ms) != 1 || ::read(out_, &byte, 1) != 1) return false;
    }
    return true;
  }
  void Kill() { ::kill(pid_, SIGKILL); }
  int Wait() {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) std::abort();
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

std::unique_ptr<FileTier> Open(const std::string& root, FakeTierHost& host) {
  auto tier = FileTier::Create({.root_dir = root}, host);
  if (!tier) {
    ADD_FAILURE() << tier.error().message;
    return nullptr;
  }
  return std::move(tier).value();
}

// How many of the first `count` chunks are there; each must load whole.
std::uint32_t CountWholeChunks(FileTier& tier, FakeTierHost& host, std::uint32_t count) {
  TierDriver driver(tier, host);
  std::uint32_t whole = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (driver.Lookup(TestKey(i)) != TierLookup::kHit) continue;
    EXPECT_THAT(driver.Load({TestKey(i)}, {SlotId(0)}).outcomes,
                ::testing::ElementsAre(CopyOutcome::kOk))
        << "chunk " << i << " was published and is not whole";
    ++whole;
  }
  return whole;
}

// Only this tier's own folder is left, and in it only the lock.
void ExpectTidy(const FileTier& tier) {
  const auto folders = NamesIn(tier.path() + "/tmp");
  ASSERT_EQ(folders.size(), 1u);
  EXPECT_THAT(NamesIn(tier.path() + "/tmp/" + folders[0]), ::testing::ElementsAre("lock"));
}

TEST(FileTierCrash, AtEverySystemCall) {
  std::uint32_t most = 0;
  bool crashed = true;
  for (int n = 1; crashed; ++n) {
    SCOPED_TRACE("killed at call " + std::to_string(n));
    const TempDir dir;
    const int status = Writer({dir.path(), "at", std::to_string(n)}).Wait();
    crashed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!crashed) {
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    FakeTierHost host(kChunks);
    const auto tier = Open(dir.path(), host);
    ASSERT_NE(tier, nullptr);
    ExpectTidy(*tier);
    const std::uint32_t whole = CountWholeChunks(*tier, host, kChunks);
    most = std::max(most, whole);
    EXPECT_TRUE(crashed || whole == kChunks) << whole;
    if (::testing::Test::HasFailure()) return;
    ASSERT_LT(n, 500) << "it crashes for ever";
  }
  EXPECT_EQ(most, kChunks);
}

TEST(FileTierCrash, KeepsWhatWasReportedAndLeavesTheLivingAlone) {
  const TempDir dir;
  FakeTierHost host(8, /*chunk_bytes=*/1 << 20);
  const auto neighbour = Open(dir.path(), host);
  ASSERT_NE(neighbour, nullptr);
  constexpr std::uint32_t kReported = 5;
  Writer writer({dir.path(), "on"});
  ASSERT_TRUE(writer.AwaitOutput(kReported));
  writer.Kill();
  writer.Wait();
  const auto after = Open(dir.path(), host);
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(NamesIn(after->path() + "/tmp").size(), 2u) << "the neighbour's and ours";
  const std::uint32_t whole = CountWholeChunks(*after, host, 8 * (kReported + 1));
  EXPECT_GE(whole, 8 * (kReported - 1) + 1) << "a chunk was reported as stored and is lost";
  TierDriver driver(*neighbour, host);
  EXPECT_THAT(driver.Store(TestKeys(2, 1000), TestSlots(2)).outcomes,
              ::testing::Each(CopyOutcome::kOk));
}

}  // namespace
}  // namespace terrace::testing
