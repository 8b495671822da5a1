// How much memory this process may still take, by every limit that would end it otherwise.
//
// `root` is a seam for tests: "" is the real file system.
// Cost of each call: some small files are read.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limited_by;  // "this machine", or what else it is: "the cgroup /sys/fs/cgroup/x".
};

// The least of what the machine has available and what each cgroup above this process allows, page
// cache that can be dropped counted as available. Huge pages of the kernel's pool are none of it.
// UINT64_MAX bytes if nothing says anything.
AvailableMemory FindAvailableMemory(const std::string& root = "");

// The size of the huge pages that MAP_HUGETLB and MFD_HUGETLB give if no size is named; 0 if the
// kernel has none.
std::uint64_t HugePageBytes(const std::string& root = "");
// Pages of that size: free ones of the kernel's pool (and those it may still add to it), or what a
// cgroup allows of them; a page beyond the latter is a SIGBUS for who touches it.
AvailableMemory FindAvailableHugePages(const std::string& root = "");

// Whether the kernel gives transparent huge pages to a mapping of a memfd that asks for them; if
// not, what says so: "/sys/... is "never"".
struct TransparentHugePages {
  bool offered = false;
  std::string refused_by;
};
TransparentHugePages FindTransparentHugePages(const std::string& root = "");

// What RLIMIT_MEMLOCK leaves to this process. UINT64_MAX bytes if it is unlimited.
AvailableMemory FindLockableMemory(const std::string& root = "");

// For messages: "8.00 GiB", "512.00 MiB"; bytes below one MiB.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace terrace
