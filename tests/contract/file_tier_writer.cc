// A process to be killed: opens a file tier and stores chunks.
//
//   file_tier_writer ROOT at N    kills itself at the N-th system call of the tier; if that is a
//                                 write, after half of it. Exits 0 if there are fewer.
//   file_tier_writer ROOT on      stores until somebody kills it; one byte to stdout per chunk.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/contract/tier_driver.h"
#include "tier/file/file_tier.h"

namespace terrace::testing {
namespace {

constexpr std::uint32_t kChunks = 3;

[[noreturn]] void Die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

class DeadlyFileOps final : public FileOps {
 public:
  explicit DeadlyFileOps(std::uint64_t last_call) : last_call_(last_call) {}

  int Open(const std::string& path, int flags, mode_t mode) override {
    Count();
    return posix_.Open(path, flags, mode);
  }
  int Close(int fd) override {
    Count();
    return posix_.Close(fd);
  }
  ssize_t Preadv(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    Count();
    return posix_.Preadv(fd, pieces, offset);
  }
  ssize_t Pwritev(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    if (++calls_ == last_call_) {
      posix_.Pwritev(fd, pieces.first(1), offset);
      Die();
    }
    return posix_.Pwritev(fd, pieces, offset);
  }
  int Fstat(int fd, FileInfo& info) override {
    Count();
    return posix_.Fstat(fd, info);
  }
  int Stat(const std::string& path, FileInfo& info) override {
    Count();
    return posix_.Stat(path, info);
  }
  int Fsync(int fd) override {
    Count();
    return posix_.Fsync(fd);
  }
  int Flock(int fd, int operation) override {
    Count();
    return posix_.Flock(fd, operation);
  }
  int Rename(const std::string& from, const std::string& to) override {
    Count();
    return posix_.Rename(from, to);
  }
  int Unlink(const std::string& path) override {
    Count();
    return posix_.Unlink(path);
  }
  int Mkdir(const std::string& path, mode_t mode) override {
    Count();
    return posix_.Mkdir(path, mode);
  }
  int Rmdir(const std::string& path) override {
    Count();
    return posix_.Rmdir(path);
  }
  int ListDir(const std::string& path, std::vector<std::string>& names) override {
    Count();
    return posix_.ListDir(path, names);
  }

 private:
  void Count() {
    if (++calls_ == last_call_) Die();
  }

  FileOps& posix_ = PosixFileOps();
  const std::uint64_t last_call_;
  std::atomic<std::uint64_t> calls_{0};
};

int StoreSome(const std::string& root, std::uint64_t last_call) {
  DeadlyFileOps ops(last_call);
  FakeTierHost host(kChunks);
  auto tier = FileTier::Create({.root_dir = root}, host, {.ops = &ops, .now = {}});
  if (!tier) return 2;
  TierDriver driver(*tier.value(), host);
  const auto stored = driver.Store(TestKeys(kChunks), TestSlots(kChunks));
  return stored.outcomes == std::vector(kChunks, CopyOutcome::kOk) ? 0 : 3;
}

int StoreUntilKilled(const std::string& root) {
  FakeTierHost host(8, /*chunk_bytes=*/1 << 20);
  auto tier = FileTier::Create({.root_dir = root}, host);
  if (!tier) return 2;
  TierDriver driver(*tier.value(), host);
  for (std::uint32_t i = 0;; ++i) {
    // The next seven are being written when the first is reported and the parent may kill us.
    const JobId first = driver.SubmitStore(TestKeys(1, 8 * i), TestSlots(1));
    const JobId rest = driver.SubmitStore(TestKeys(7, 8 * i + 1), TestSlots(7, 1));
    driver.Await(first);
    if (::write(STDOUT_FILENO, "+", 1) != 1) return 4;
    driver.Await(rest);
  }
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) {
  const std::string how = argc > 2 ? argv[2] : "";
  if (how == "at" && argc == 4) {
    return terrace::testing::StoreSome(argv[1], std::strtoull(argv[3], nullptr, 10));
  }
  if (how == "on") return terrace::testing::StoreUntilKilled(argv[1]);
  return 1;
}
