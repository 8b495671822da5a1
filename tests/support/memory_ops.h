// Host memory's system calls that answer what a test wants, and limits that it writes.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "host/memory_ops.h"

namespace terrace::testing {

inline constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack.

// A root for memory_limits.h: at first a machine with 64 GiB available and no cgroups.
class FakeLimits {
 public:
  FakeLimits() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-limits-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
    SetAvailable(64ULL << 30);
  }
  ~FakeLimits() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  FakeLimits(const FakeLimits&) = delete;
  FakeLimits& operator=(const FakeLimits&) = delete;

  const std::string& root() const { return root_; }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void SetAvailable(std::uint64_t bytes) const {
    Write("/proc/meminfo",
          "MemAvailable: " + std::to_string(bytes >> 10) + " kB\nHugepagesize:       2048 kB\n");
  }
  // Of 2 MiB.
  void SetHugePages(int free, int reserved) const {
    const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
    Write(pool + "free_hugepages", std::to_string(free) + "\n");
    Write(pool + "resv_hugepages", std::to_string(reserved) + "\n");
  }
  void SetTransparent(const std::string& choices) const {
    Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", choices + "\n");
  }

 private:
  std::string root_;
};

// Passes on what it is not told to answer.
class FakeMemoryOps final : public MemoryOps {
 public:
  explicit FakeMemoryOps(std::string limits_root = "") : root_(std::move(limits_root)) {}

  // An errno; 0 for the system's own answer.
  std::atomic<int> populate_error{0};
  std::atomic<int> mmap_error{0};
  std::atomic<int> mlock_error{0};
  // What MFD_HUGETLB gives: ordinary memory in its place, or an errno.
  std::atomic<int> hugetlb_error{0};
  std::atomic<int> populate_calls{0};
  std::atomic<int> hugepage_calls{0};

  int MemfdCreate(const char* name, unsigned flags) override {
    if ((flags & MFD_HUGETLB) == 0) return posix_.MemfdCreate(name, flags);
    if (hugetlb_error != 0) return -hugetlb_error;
    return posix_.MemfdCreate(name, flags & ~MFD_HUGETLB);
  }
  int Ftruncate(int fd, std::uint64_t size_bytes) override {
    return posix_.Ftruncate(fd, size_bytes);
  }
  void* Mmap(int fd, std::size_t size_bytes, int& error) override {
    error = mmap_error;
    return error != 0 ? nullptr : posix_.Mmap(fd, size_bytes, error);
  }
  int Madvise(void* begin, std::size_t size_bytes, int advice) override {
    if (advice == MADV_HUGEPAGE) ++hugepage_calls;
    if (advice != kPopulateWrite) return posix_.Madvise(begin, size_bytes, advice);
    ++populate_calls;
    return populate_error != 0 ? -populate_error : posix_.Madvise(begin, size_bytes, advice);
  }
  int MlockOnFault(void* begin, std::size_t size_bytes) override {
    return mlock_error != 0 ? -mlock_error : posix_.MlockOnFault(begin, size_bytes);
  }
  const std::string& limits_root() const override { return root_; }

 private:
  MemoryOps& posix_ = PosixMemoryOps();
  const std::string root_;
};

}  // namespace terrace::testing
