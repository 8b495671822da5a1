#include "host/memory_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace terrace {
namespace {

// "max", and files that are not there, are no number.
std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind `name` in a file of names and numbers; 0 if it has none.
std::uint64_t ReadField(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t Difference(std::uint64_t all, std::uint64_t taken) {
  return all > taken ? all - taken : 0;
}

// Where a version of cgroups keeps what, below a group's directory.
struct Layout {
  std::string mount;
  std::string limit;
  std::string used;
  std::string droppable;  // A field of memory.stat; empty if nothing is.
};

// A limit holds for all groups below it, so each up to the mount's root is asked.
void Narrow(AvailableMemory& available, const std::string& root, const Layout& layout,
            std::string group) {
  while (true) {
    const std::string dir = root + layout.mount + group + "/";
    const auto limit = ReadNumber(dir + layout.limit);
    const auto used = ReadNumber(dir + layout.used);
    if (limit && used) {
      const std::uint64_t droppable =
          layout.droppable.empty() ? 0 : ReadField(dir + "memory.stat", layout.droppable);
      const std::uint64_t left = Difference(*limit, Difference(*used, droppable));
      if (left < available.bytes) available = {left, "the cgroup " + layout.mount + group};
    }
    if (group.empty()) return;
    group.erase(group.find_last_of('/'));
  }
}

// Narrows by every group that this process is in: `first` in hierarchies of the first version that
// have `controller`, `second` in the one of the second.
void NarrowByGroups(AvailableMemory& available, const std::string& root,
                    const std::string& controller, const Layout& first, const Layout& second) {
  // Lines of "number:controllers:path"; version 2 has the number 0 and no controllers.
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t next = line.find(':', colon + 1);
    if (colon == std::string::npos || next == std::string::npos) continue;
    const std::string controllers = line.substr(colon + 1, next - colon - 1);
    std::string group = line.substr(next + 1);
    if (group == "/" || group.empty() || group[0] != '/') group.clear();
    if (controllers.empty()) Narrow(available, root, second, group);
    if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      Narrow(available, root, first, group);
    }
  }
}

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kKib = 1ULL << 10;
constexpr std::uint64_t kMib = 1ULL << 20;
constexpr std::uint64_t kGib = 1ULL << 30;

// As the hugetlb controller writes a page size in the names of its files.
std::string ControllerSize(std::uint64_t page_bytes) {
  if (page_bytes >= kGib) return fmt::format("{}GB", page_bytes / kGib);
  if (page_bytes >= kMib) return fmt::format("{}MB", page_bytes / kMib);
  return fmt::format("{}KB", page_bytes / kKib);
}

// The word in brackets of "always [madvise] never"; empty if the file is not there.
std::string ReadChoice(const std::string& path) {
  const std::string line = ReadLine(path);
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return line.substr(begin + 1, end - begin - 1);
}

}  // namespace

AvailableMemory FindAvailableMemory(const std::string& root) {
  AvailableMemory available{kNoLimit, "this machine"};
  if (const std::uint64_t kib = ReadField(root + "/proc/meminfo", "MemAvailable:"); kib > 0) {
    available.bytes = kib * kKib;
  }
  NarrowByGroups(available, root, "memory",
                 {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                  "total_inactive_file"},
                 {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"});
  return available;
}

std::uint64_t HugePageBytes(const std::string& root) {
  return ReadField(root + "/proc/meminfo", "Hugepagesize:") * kKib;
}

AvailableMemory FindAvailableHugePages(const std::string& root) {
  const std::uint64_t page_bytes = HugePageBytes(root);
  if (page_bytes == 0) return {0, "this kernel, which has no huge pages,"};
  const std::string pool =
      fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / kKib);
  auto count = [&](const char* name) { return ReadNumber(root + pool + "/" + name).value_or(0); };
  const std::uint64_t free = Difference(count("free_hugepages"), count("resv_hugepages"));
  const std::uint64_t more =
      Difference(count("nr_overcommit_hugepages"), count("surplus_hugepages"));
  AvailableMemory available{(free + more) * page_bytes, pool};
  const std::string size = ControllerSize(page_bytes);
  NarrowByGroups(
      available, root, "hugetlb",
      {"/sys/fs/cgroup/hugetlb", "hugetlb." + size + ".limit_in_bytes",
       "hugetlb." + size + ".usage_in_bytes", ""},
      {"/sys/fs/cgroup", "hugetlb." + size + ".max", "hugetlb." + size + ".current", ""});
  return available;
}

// The file for all sizes alone decides: those of single sizes are for memory without a file.
TransparentHugePages FindTransparentHugePages(const std::string& root) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string choice = ReadChoice(root + path);
  for (const char* offer : {"always", "within_size", "advise", "force"}) {
    if (choice == offer) return {true, ""};
  }
  return {false, choice.empty() ? "this kernel has no " + path
                                : fmt::format("{} is \"{}\"", path, choice)};
}

AvailableMemory FindLockableMemory(const std::string& root) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return {kNoLimit, "RLIMIT_MEMLOCK"};
  }
  const std::uint64_t locked = ReadField(root + "/proc/self/status", "VmLck:") * kKib;
  return {Difference(limit.rlim_cur, locked), "RLIMIT_MEMLOCK"};
}

std::string FormatBytes(std::uint64_t bytes) {
  if (bytes >= kGib) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGib));
  }
  if (bytes >= kMib) {
    return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / static_cast<double>(kMib));
  }
  return fmt::format("{} bytes", bytes);
}

}  // namespace terrace
