#include "host/prefault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/memory_ops.h"

namespace terrace::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::Eventually;
using State = PrefaultProgress::State;

constexpr std::uint64_t kPage = 4096;

// Shared memory, as a region's is, none of it touched.
class Memory {
 public:
  explicit Memory(std::size_t pages) : bytes_(pages * kPage) {
    void* base = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(base);
  }
  ~Memory() { ::munmap(base_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* base() const { return base_; }
  // The numbers of the pages that were touched.
  std::vector<int> Touched() const {
    std::vector<unsigned char> resident(bytes_ / kPage);
    if (::mincore(base_, bytes_, resident.data()) != 0) std::abort();
    std::vector<int> pages;
    for (std::size_t i = 0; i < resident.size(); ++i) {
      if ((resident[i] & 1) != 0) pages.push_back(static_cast<int>(i));
    }
    return pages;
  }

 private:
  const std::size_t bytes_;
  std::byte* base_;
};

PrefaultProgress AwaitEnd(const Prefault& prefault) {
  EXPECT_TRUE(Eventually([&] { return prefault.progress().state != State::kRunning; }));
  return prefault.progress();
}

// With the kernel's help (0) and without (EINVAL, as kernels before 5.14 answer).
class PrefaultTest : public ::testing::TestWithParam<int> {
 protected:
  PrefaultTest() { ops_.populate_error = GetParam(); }
  std::unique_ptr<Prefault> Start(const PrefaultPlan& plan, std::uint32_t threads = 1) {
    auto prefault = Prefault::Start(ops_, plan, threads);
    EXPECT_TRUE(prefault.ok());
    return std::move(prefault).value();
  }

  FakeLimits limits_;
  FakeMemoryOps ops_{limits_.root()};
};
INSTANTIATE_TEST_SUITE_P(Kernel, PrefaultTest, ::testing::Values(0, EINVAL),
                         [](const auto& kernel) { return kernel.param == 0 ? "New" : "Old"; });

TEST_P(PrefaultTest, TouchesAllOfWhatItIsGiven) {
  const Memory memory(3000);  // More than one batch, and not a whole number of them.
  for (const std::uint32_t threads : {1u, 4u}) {
    const auto prefault = Start({memory.base(), 300 * kPage, 10, 0, 300 * kPage}, threads);
    const PrefaultProgress progress = AwaitEnd(*prefault);
    EXPECT_EQ(progress.state, State::kDone);
    EXPECT_EQ(progress.touched_bytes, 3000 * kPage);
    EXPECT_EQ(progress.total_bytes, 3000 * kPage);
    EXPECT_EQ(memory.Touched().size(), 3000u);
  }
}

// A row of four pages; the slice reaches into pages 1 and 2, whose other bytes are other ranks'.
TEST_P(PrefaultTest, TouchesThePagesAroundASliceInEachRow) {
  const Memory memory(12);
  AwaitEnd(*Start({memory.base(), 4 * kPage, 3, kPage + 100, 2 * kPage + 100}));
  EXPECT_THAT(memory.Touched(), ::testing::ElementsAre(1, 2, 5, 6, 9, 10));
}

TEST_P(PrefaultTest, LeavesBytesAsTheyAre) {
  const Memory memory(600);
  for (std::size_t i = 0; i < 600; i += 7) memory.base()[i * kPage] = std::byte{0xa5};
  AwaitEnd(*Start({memory.base(), 600 * kPage, 1, 0, 600 * kPage}));
  for (std::size_t i = 0; i < 600; ++i) {
    ASSERT_EQ(memory.base()[i * kPage], i % 7 == 0 ? std::byte{0xa5} : std::byte{0}) << i;
  }
}

// The byte that is touched by hand is the one that the other thread counts up, so that a write
// between its read and its write would be lost.
TEST_P(PrefaultTest, LosesNoByteWrittenMeanwhile) {
  const Memory memory(1);
  auto* counter = reinterpret_cast<unsigned char*>(memory.base());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    unsigned char expected = 0;
    bool lost = false;
    for (int i = 0; i < 20'000'000 && !done; ++i) {
      if (__atomic_load_n(counter, __ATOMIC_RELAXED) != expected) lost = true;
      __atomic_store_n(counter, ++expected, __ATOMIC_RELAXED);
    }
    EXPECT_FALSE(lost);
  });
  for (int i = 0; i < 300; ++i) {
    // A row of no stride: the same page again and again.
    AwaitEnd(*Start({memory.base(), /*stride_bytes=*/0, 5000, 0, 1}));
  }
  done = true;
  writer.join();
}

TEST_P(PrefaultTest, StopsWithTheWorkHalfDone) {
  const Memory memory(1);
  const auto started = std::chrono::steady_clock::now();
  // Days of work.
  auto prefault = Start({memory.base(), 0, 1ULL << 40, 0, 1}, 2);
  EXPECT_TRUE(Eventually([&] { return prefault->progress().touched_bytes > 0; }));
  EXPECT_EQ(prefault->progress().state, State::kRunning);
  prefault.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
}

TEST(Prefault, AsksTheKernelOnceIfItCanNot) {
  FakeMemoryOps ops;
  ops.populate_error = EINVAL;
  const Memory memory(4);
  AwaitEnd(*Prefault::Start(ops, {memory.base(), 2 * kPage, 2, 0, kPage}, 1).value());
  EXPECT_EQ(ops.populate_calls, 1);
}

TEST(Prefault, OtherErrorsSurfaceAndEndIt) {
  for (const int error : {ENOMEM, EFAULT, EPERM}) {
    FakeMemoryOps ops;
    ops.populate_error = error;
    const Memory memory(2);
    const auto prefault = Prefault::Start(ops, {memory.base(), kPage, 2, 0, kPage}, 1).value();
    const PrefaultProgress progress = AwaitEnd(*prefault);
    EXPECT_EQ(progress.state, State::kFailed);
    EXPECT_EQ(progress.touched_bytes, 0u);
    EXPECT_THAT(progress.error,
                HasSubstr("touch host memory: stopped after 0 bytes of 8192 bytes"));
    EXPECT_THAT(progress.error, HasSubstr("lower cpu_bytes_to_use"));
    EXPECT_THAT(memory.Touched(), ::testing::IsEmpty());
  }
}

// What others have taken since the region was made is left to them.
TEST(Prefault, StopsBeforeMemoryRunsOut) {
  const FakeLimits limits;
  FakeMemoryOps ops(limits.root());
  limits.Write("/proc/self/cgroup", "0::/pod\n");
  limits.Write("/sys/fs/cgroup/pod/memory.max", "1000000\n");
  limits.Write("/sys/fs/cgroup/pod/memory.current", "900000\n");
  const Memory memory(100);
  const PrefaultPlan plan{memory.base(), 100 * kPage, 1, 0, 100 * kPage};
  const auto prefault = Prefault::Start(ops, plan, 1).value();
  const PrefaultProgress progress = AwaitEnd(*prefault);
  EXPECT_EQ(progress.state, State::kFailed);
  EXPECT_THAT(progress.error, HasSubstr("the cgroup /sys/fs/cgroup/pod has only 100000 bytes "
                                        "available, 409600 bytes are still needed"));
  EXPECT_THAT(memory.Touched(), ::testing::IsEmpty());

  // Huge pages are reserved, whatever there is besides.
  PrefaultPlan reserved = plan;
  reserved.pages = HugePages::kExplicit;
  EXPECT_EQ(AwaitEnd(*Prefault::Start(ops, reserved, 1).value()).state, State::kDone);
}

}  // namespace
}  // namespace terrace::testing
