#include "host/host_region.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/support/memory_ops.h"

namespace terrace::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kMib = 1ULL << 20;
constexpr std::uint64_t kGib = 1ULL << 30;

class HostRegionTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostRegion> Create(const HostRegionOptions& options) {
    auto region = HostRegion::Create(options, ops_);
    EXPECT_TRUE(region.ok()) << (region.ok() ? "" : region.error().message);
    return region.ok() ? std::move(region).value() : nullptr;
  }
  std::string ErrorOf(const HostRegionOptions& options) {
    auto region = HostRegion::Create(options, ops_);
    EXPECT_FALSE(region.ok());
    return region.ok() ? "" : region.error().message;
  }

  FakeLimits limits_;
  FakeMemoryOps ops_{limits_.root()};
};

TEST_F(HostRegionTest, HasAsManyRowsAsFit) {
  const auto region = Create({.total_bytes = 3 * 8192 + 8191, .chunk_bytes = 5000});
  EXPECT_EQ(region->slot_count(), 3u);
  EXPECT_EQ(region->slot_stride_bytes(), 8192u);
  EXPECT_EQ(region->chunk_bytes(), 5000u);
  EXPECT_EQ(region->Slot(SlotId(2)).size(), 5000u);
  EXPECT_EQ(region->Slot(SlotId(2)).data(), region->base() + 2 * 8192);
  EXPECT_TRUE(region->AwaitAll().ok()) << "there are no others";
}

TEST_F(HostRegionTest, RefusesLessThanOneRow) {
  for (const auto& [total, chunk] :
       {std::pair<std::uint64_t, std::uint64_t>{4095, 1}, {1 << 20, 0}, {1 << 20, ~0ULL}}) {
    EXPECT_THAT(ErrorOf({.total_bytes = total, .chunk_bytes = chunk}),
                HasSubstr("raise cpu_bytes_to_use or lower tokens_per_chunk"));
  }
}

// Larger than 4 GiB, and than /dev/shm of many a container: it counts against neither.
TEST_F(HostRegionTest, ReachesBeyond32Bits) {
  const std::uint64_t total = 40 * kGib;
  const auto region = Create({.total_bytes = total, .chunk_bytes = kMib});
  ASSERT_EQ(region->slot_count(), 40u * 1024);
  const std::uint32_t slots[] = {0, 4095, 4096, 4097, 8192, 40 * 1024 - 1};
  for (const std::uint32_t slot : slots) {
    ASSERT_EQ(region->Slot(SlotId(slot)).data() - region->base(),
              static_cast<std::ptrdiff_t>(slot * kMib));
    std::memcpy(region->Slot(SlotId(slot)).data() + kMib - 4, &slot, 4);
  }
  for (const std::uint32_t slot : slots) {
    std::uint32_t found = 0;
    std::memcpy(&found, region->Slot(SlotId(slot)).data() + kMib - 4, 4);
    EXPECT_EQ(found, slot);
  }
}

// Nothing is left of it, whoever is killed when.
TEST_F(HostRegionTest, HasNoNameInAFileSystem) {
  const auto region = Create({.total_bytes = 8192, .chunk_bytes = 4096});
  std::ifstream maps("/proc/self/maps");
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(region->base()));
  std::string ours;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(begin) != std::string::npos) ours = line;
  }
  EXPECT_THAT(ours, HasSubstr("/memfd:terrace-host (deleted)"));
}

TEST_F(HostRegionTest, ChecksBounds) {
  const auto region = Create({.total_bytes = 8192, .chunk_bytes = 4096});
  EXPECT_DEATH(region->Slot(SlotId(2)), "a slot outside the region");
  EXPECT_DEATH(region->RankSlice(SlotId(0), 1), "a rank outside the row");
}

TEST_F(HostRegionTest, NamesTheLimitThatIsTooLow) {
  limits_.SetAvailable(3 * kGib);
  EXPECT_EQ(ErrorOf({.total_bytes = 8 * kGib, .chunk_bytes = kMib}),
            "map host memory: cpu_bytes_to_use asks for 8.00 GiB, this machine has 3.00 GiB "
            "available; lower cpu_bytes_to_use");
  limits_.Write("/proc/self/cgroup", "0::/pod\n");
  limits_.Write("/sys/fs/cgroup/pod/memory.max", std::to_string(512 * kMib));
  limits_.Write("/sys/fs/cgroup/pod/memory.current", "0");
  EXPECT_EQ(ErrorOf({.total_bytes = kGib, .chunk_bytes = kMib}),
            "map host memory: cpu_bytes_to_use asks for 1.00 GiB, the cgroup /sys/fs/cgroup/pod "
            "has 512.00 MiB available; lower cpu_bytes_to_use");
}

TEST_F(HostRegionTest, AFailedMappingIsAnError) {
  ops_.mmap_error = ENOMEM;
  EXPECT_THAT(ErrorOf({.total_bytes = kMib, .chunk_bytes = 4096}),
              HasSubstr("map 1.00 MiB of host memory: Cannot allocate memory"));
}

// --- Touching first ---

TEST_F(HostRegionTest, TouchesNothingIfNotAsked) {
  const auto region = Create({.total_bytes = kMib, .chunk_bytes = 4096});
  EXPECT_EQ(region->prefault_progress().state, PrefaultProgress::State::kOff);
  EXPECT_EQ(ops_.populate_calls, 0);
}

TEST_F(HostRegionTest, TouchesEverythingOfAProcessAlone) {
  const auto region =
      Create({.total_bytes = 16 * kMib, .chunk_bytes = 5000, .prefault_threads = 2});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (region->prefault_progress().state == PrefaultProgress::State::kRunning) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    region->Slot(SlotId(7))[0] = std::byte{42};  // Of use meanwhile.
  }
  EXPECT_EQ(region->prefault_progress().state, PrefaultProgress::State::kDone);
  EXPECT_EQ(region->prefault_progress().touched_bytes, 16 * kMib);
}

// --- Huge pages ---

TEST_F(HostRegionTest, TakesTransparentHugePagesWhereTheyAreOffered) {
  limits_.SetTransparent("always within_size [advise] never deny force");
  const auto region =
      Create({.total_bytes = 4 * kMib, .chunk_bytes = 4096, .huge_pages = HugePages::kTransparent});
  EXPECT_EQ(region->huge_pages(), HugePages::kTransparent);
  EXPECT_EQ(ops_.hugepage_calls, 1);
  EXPECT_THAT(region->warnings(), IsEmpty());
}

TEST_F(HostRegionTest, SaysWhyThereAreNoTransparentHugePages) {
  limits_.SetTransparent("always within_size advise [never] deny force");
  const auto region =
      Create({.total_bytes = 4 * kMib, .chunk_bytes = 4096, .huge_pages = HugePages::kTransparent});
  EXPECT_EQ(region->huge_pages(), HugePages::kOff);
  EXPECT_EQ(ops_.hugepage_calls, 0);
  EXPECT_THAT(
      region->warnings(),
      ElementsAre("host memory: going on with ordinary pages: transparent huge pages can't be had: "
                  "/sys/kernel/mm/transparent_hugepage/shmem_enabled is \"never\"; echo advise > "
                  "/sys/kernel/mm/transparent_hugepage/shmem_enabled allows them"));
}

TEST_F(HostRegionTest, TakesReservedHugePagesInWholePages) {
  limits_.SetHugePages(/*free=*/3, /*reserved=*/1);
  limits_.SetAvailable(kMib);  // Of other memory, which does not matter.
  const auto region = Create({.total_bytes = 3 * kMib,
                              .chunk_bytes = kMib,
                              .huge_pages = HugePages::kExplicit,
                              .prefault_threads = 1});
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->huge_pages(), HugePages::kExplicit);
  EXPECT_EQ(region->slot_count(), 3u);
  region->Slot(SlotId(2))[kMib - 1] = std::byte{1};
}

TEST_F(HostRegionTest, GoesOnWithoutHugePagesAndSaysHowManyToReserve) {
  limits_.SetTransparent("[never]");
  limits_.SetHugePages(/*free=*/3, /*reserved=*/2);
  const auto region =
      Create({.total_bytes = 5 * kMib, .chunk_bytes = 4096, .huge_pages = HugePages::kExplicit});
  EXPECT_EQ(region->huge_pages(), HugePages::kOff);
  ASSERT_EQ(region->warnings().size(), 1u);
  EXPECT_THAT(region->warnings()[0],
              HasSubstr("huge_pages \"explicit\" needs 5.00 MiB in huge pages, "
                        "/sys/kernel/mm/hugepages/hugepages-2048kB has 2.00 MiB; reserve them "
                        "(have 2 more in vm.nr_hugepages"));
  region->Slot(SlotId(0))[0] = std::byte{1};
}

// Visible on the machine, and not for this container: a touch would be a SIGBUS.
TEST_F(HostRegionTest, GoesOnWithoutHugePagesThatACgroupForbids) {
  limits_.SetTransparent("[advise]");
  limits_.SetHugePages(100, 0);
  limits_.Write("/proc/self/cgroup", "0::/pod\n");
  limits_.Write("/sys/fs/cgroup/pod/hugetlb.2MB.max", "0\n");
  limits_.Write("/sys/fs/cgroup/pod/hugetlb.2MB.current", "0\n");
  const auto region =
      Create({.total_bytes = 4 * kMib, .chunk_bytes = 4096, .huge_pages = HugePages::kExplicit});
  EXPECT_EQ(region->huge_pages(), HugePages::kTransparent) << "the next best";
  ASSERT_EQ(region->warnings().size(), 1u);
  EXPECT_THAT(region->warnings()[0], HasSubstr("going on with transparent huge pages"));
  EXPECT_THAT(region->warnings()[0], HasSubstr("the cgroup /sys/fs/cgroup/pod has 0 bytes"));
}

TEST_F(HostRegionTest, GoesOnWithoutHugePagesThatTheKernelRefuses) {
  limits_.SetTransparent("[never]");
  limits_.SetHugePages(100, 0);
  ops_.hugetlb_error = ENOSYS;
  const auto region =
      Create({.total_bytes = 4 * kMib, .chunk_bytes = 4096, .huge_pages = HugePages::kExplicit});
  EXPECT_EQ(region->huge_pages(), HugePages::kOff);
  EXPECT_THAT(region->warnings(), ElementsAre(HasSubstr("Function not implemented")));
}

// --- Locking ---

TEST_F(HostRegionTest, GoesOnUnlockedAndNamesNeedAndLimit) {
  ops_.mlock_error = ENOMEM;
  const auto region = Create({.total_bytes = 16 * kMib, .chunk_bytes = 4096, .lock_memory = true});
  EXPECT_FALSE(region->is_locked());
  ASSERT_EQ(region->warnings().size(), 1u);
  EXPECT_THAT(region->warnings()[0],
              HasSubstr("going on unlocked: lock_memory needs 16.00 MiB, RLIMIT_MEMLOCK leaves "));
  EXPECT_THAT(region->warnings()[0], HasSubstr("mlock2: Cannot allocate memory"));
}

TEST_F(HostRegionTest, LocksASmallRegion) {
  const auto region = Create({.total_bytes = 8192, .chunk_bytes = 4096, .lock_memory = true});
  EXPECT_EQ(region->is_locked(), region->warnings().empty());
  region->Slot(SlotId(1))[0] = std::byte{1};
}

}  // namespace
}  // namespace terrace::testing
