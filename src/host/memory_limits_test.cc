#include "host/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class MemoryLimitsTest : public testing::Test {
 protected:
  MemoryLimitsTest() {
    std::string name = (fs::temp_directory_path() / "terrace-limits-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    Write("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:    500 kB\n");
  }
  ~MemoryLimitsTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(MemoryLimitsTest, WithoutACgroupTheMachineCounts) {
  EXPECT_EQ(FindAvailableMemory(root_).bytes, 500u * 1024);
  EXPECT_EQ(FindAvailableMemory(root_).limited_by, "this machine");
}

TEST_F(MemoryLimitsTest, TheNarrowestGroupAboveTheProcessCounts) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  Write("/sys/fs/cgroup/outer/memory.max", "300000\n");
  Write("/sys/fs/cgroup/outer/memory.current", "100000\n");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  Write("/sys/fs/cgroup/outer/inner/memory.current", "50000\n");
  EXPECT_EQ(FindAvailableMemory(root_).bytes, 200000u);
  EXPECT_THAT(FindAvailableMemory(root_).limited_by, HasSubstr("/outer"));
}

// Page cache that the kernel would drop is room: the model's file and our own chunks fill it.
TEST_F(MemoryLimitsTest, DroppablePageCacheIsRoom) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "300000\n");
  Write("/sys/fs/cgroup/memory.current", "299000\n");
  Write("/sys/fs/cgroup/memory.stat", "anon 1000\ninactive_file 250000\n");
  EXPECT_EQ(FindAvailableMemory(root_).bytes, 251000u);
}

TEST_F(MemoryLimitsTest, KnowsTheFirstVersionToo) {
  Write("/proc/self/cgroup", "7:cpu,memory:/docker/x\n3:pids:/docker/x\n");
  Write("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "200000\n");
  Write("/sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "150000\n");
  Write("/sys/fs/cgroup/memory/docker/x/memory.stat", "total_inactive_file 20000\n");
  EXPECT_EQ(FindAvailableMemory(root_).bytes, 70000u);
}

TEST_F(MemoryLimitsTest, WithoutHugePagesInTheKernelThereAreNone) {
  EXPECT_EQ(HugePageBytes(root_), 0u);
  EXPECT_EQ(FindAvailableHugePages(root_).bytes, 0u);
}

TEST_F(MemoryLimitsTest, CountsHugePagesThatAreFreeOrMayBeAdded) {
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  Write("/proc/meminfo", "Hugepagesize:    2048 kB\n");
  Write(pool + "free_hugepages", "10\n");
  Write(pool + "resv_hugepages", "4\n");
  EXPECT_EQ(FindAvailableHugePages(root_).bytes, 6u << 21);
  Write(pool + "nr_overcommit_hugepages", "5\n");
  Write(pool + "surplus_hugepages", "2\n");
  EXPECT_EQ(FindAvailableHugePages(root_).bytes, 9u << 21);
  Write("/proc/self/cgroup", "4:hugetlb:/pod\n0::/\n");
  Write("/sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.limit_in_bytes", "4194304\n");
  Write("/sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.usage_in_bytes", "2097152\n");
  EXPECT_EQ(FindAvailableHugePages(root_).bytes, 1u << 21);
  EXPECT_EQ(FindAvailableHugePages(root_).limited_by, "the cgroup /sys/fs/cgroup/hugetlb/pod");
}

TEST_F(MemoryLimitsTest, ReadsWhetherSharedMemoryMayHaveHugePages) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  EXPECT_FALSE(FindTransparentHugePages(root_).offered);
  EXPECT_THAT(FindTransparentHugePages(root_).refused_by, HasSubstr("this kernel has no"));
  for (const char* choice : {"always", "within_size", "advise", "force"}) {
    Write(path, "x [" + std::string(choice) + "] y\n");
    EXPECT_TRUE(FindTransparentHugePages(root_).offered) << choice;
  }
  for (const char* choice : {"never", "deny"}) {
    Write(path, "always [" + std::string(choice) + "]\n");
    EXPECT_FALSE(FindTransparentHugePages(root_).offered) << choice;
    EXPECT_EQ(FindTransparentHugePages(root_).refused_by,
              path + " is \"" + std::string(choice) + "\"");
  }
}

TEST_F(MemoryLimitsTest, SubtractsWhatIsLockedAlready) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(FindLockableMemory(root_).bytes, ~0ULL);
    return;
  }
  EXPECT_EQ(FindLockableMemory(root_).bytes, limit.rlim_cur);
  Write("/proc/self/status", "VmLck:\t       4 kB\n");
  EXPECT_EQ(FindLockableMemory(root_).bytes,
            limit.rlim_cur - std::min<rlim_t>(limit.rlim_cur, 4096));
}

TEST(MemoryLimits, WritesSizesInTheirUnit) {
  EXPECT_EQ(FormatBytes(1023), "1023 bytes");
  EXPECT_EQ(FormatBytes(3 << 19), "1.50 MiB");
  EXPECT_EQ(FormatBytes(5ULL << 29), "2.50 GiB");
}

TEST(MemoryLimits, TheRealOnesSaySomething) { EXPECT_GT(FindAvailableMemory().bytes, 0u); }

}  // namespace
}  // namespace terrace
