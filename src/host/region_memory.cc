#include "host/region_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "host/memory_limits.h"

namespace terrace {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t MissingPages(std::uint64_t need, std::uint64_t available, std::uint64_t page_bytes) {
  if (page_bytes == 0) return 0;
  const std::uint64_t need_pages = RoundUp(need, page_bytes) / page_bytes;
  return need_pages - std::min(need_pages, available / page_bytes);
}

Result<std::byte*> MapFile(MemoryOps& ops, int fd, std::uint64_t bytes) {
  int error = 0;
  void* base = ops.Mmap(fd, bytes, error);
  if (base == nullptr) {
    return ErrnoError(fmt::format("map {} of host memory", FormatBytes(bytes)), error);
  }
  return static_cast<std::byte*>(base);
}

}  // namespace

Result<RegionMemory> RegionMemory::Create(MemoryOps& ops, std::uint64_t size_bytes,
                                          HugePages wanted) {
  std::string fallback;
  if (wanted == HugePages::kExplicit) {
    auto memory = CreateExplicit(ops, size_bytes);
    if (memory.ok()) return memory;
    fallback = memory.error().message;
  }
  auto memory = CreateOrdinary(ops, size_bytes);
  if (!memory.ok()) return memory;
  memory.value().fallback_ = std::move(fallback);
  if (wanted != HugePages::kOff) memory.value().AskForHugePages(ops);
  return memory;
}

Result<RegionMemory> RegionMemory::CreateOrdinary(MemoryOps& ops, std::uint64_t size_bytes) {
  const AvailableMemory available = FindAvailableMemory(ops.limits_root());
  if (size_bytes > available.bytes) {
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("map host memory: cpu_bytes_to_use asks for {}, {} has {} available; "
                    "lower cpu_bytes_to_use",
                    FormatBytes(size_bytes), available.limited_by, FormatBytes(available.bytes))};
  }
  return CreateFile(ops, size_bytes, HugePages::kOff);
}

Result<RegionMemory> RegionMemory::CreateExplicit(MemoryOps& ops, std::uint64_t size_bytes) {
  const std::uint64_t page_bytes = HugePageBytes(ops.limits_root());
  const AvailableMemory available = FindAvailableHugePages(ops.limits_root());
  if (page_bytes == 0 || RoundUp(size_bytes, page_bytes) > available.bytes) {
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("huge_pages \"explicit\" needs {} in huge pages, {} has {}; reserve them (have "
                    "{} more in vm.nr_hugepages, and in the container's limit of them)",
                    FormatBytes(size_bytes), available.limited_by, FormatBytes(available.bytes),
                    MissingPages(size_bytes, available.bytes, page_bytes))};
  }
  return CreateFile(ops, RoundUp(size_bytes, page_bytes), HugePages::kExplicit);
}

Result<RegionMemory> RegionMemory::CreateFile(MemoryOps& ops, std::uint64_t mapping_bytes,
                                              HugePages pages) {
  const unsigned huge = pages == HugePages::kExplicit ? MFD_HUGETLB : 0;
  const int made = ops.MemfdCreate("terrace-host", MFD_CLOEXEC | MFD_ALLOW_SEALING | huge);
  if (made < 0) return ErrnoError("create host memory (memfd_create)", -made);
  UniqueFd fd(KeepAwayFromStdio(made));
  if (!fd.valid()) return ErrnoError("create host memory (dup)", errno);
  if (const int sized = ops.Ftruncate(fd.get(), mapping_bytes); sized < 0) {
    return ErrnoError(fmt::format("size host memory to {}", FormatBytes(mapping_bytes)), -sized);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoError("seal host memory (F_ADD_SEALS)", errno);
  }
  auto base = MapFile(ops, fd.get(), mapping_bytes);  // Reserves the huge pages.
  if (!base.ok()) return std::move(base).error();
  return RegionMemory(std::move(fd), base.value(), mapping_bytes, pages);
}

Result<RegionMemory> RegionMemory::Map(MemoryOps& ops, UniqueFd fd, std::uint64_t mapping_bytes,
                                       HugePages obtained) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError("look at offered host memory", errno);
  if (static_cast<std::uint64_t>(info.st_size) != mapping_bytes) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("join host memory: it has {} bytes, its header says {}", info.st_size,
                             mapping_bytes)};
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Error{ErrorCode::kIncompatible, "join host memory: its size is not sealed"};
  }
  auto base = MapFile(ops, fd.get(), mapping_bytes);
  if (!base.ok()) return std::move(base).error();
  RegionMemory memory(std::move(fd), base.value(), mapping_bytes, obtained);
  // Each mapping asks for itself.
  if (obtained == HugePages::kTransparent) memory.AskForHugePages(ops);
  return memory;
}

void RegionMemory::AskForHugePages(MemoryOps& ops) {
  huge_pages_ = HugePages::kOff;
  std::string why;
  const TransparentHugePages found = FindTransparentHugePages(ops.limits_root());
  if (!found.offered) {
    why = found.refused_by;
  } else if (const int asked = ops.Madvise(base_, mapping_bytes_, MADV_HUGEPAGE); asked < 0) {
    why = ErrnoError("madvise(MADV_HUGEPAGE)", -asked).message;
  } else {
    huge_pages_ = HugePages::kTransparent;
    return;
  }
  if (!fallback_.empty()) fallback_ += "; ";
  fallback_ += fmt::format(
      "transparent huge pages can't be had: {}; echo advise > "
      "/sys/kernel/mm/transparent_hugepage/shmem_enabled allows them",
      why);
}

RegionMemory::~RegionMemory() {
  if (base_ != nullptr) ::munmap(base_, mapping_bytes_);
}

}  // namespace terrace
