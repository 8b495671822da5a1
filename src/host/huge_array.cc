#include "host/huge_array.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace terrace {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t kPage = 4096;

// Below this, writing zeroes costs less than asking the system for them.
constexpr std::size_t kSmall = std::size_t{64} << 10;
constexpr std::size_t kCacheLine = 64;

}  // namespace

void* MapZeroes(std::size_t bytes) {
  if (bytes < kSmall) {
    const std::size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    void* const memory = std::aligned_alloc(kCacheLine, rounded);
    TERRACE_CHECK(memory != nullptr, "no memory for the tables of host memory");
    return std::memset(memory, 0, rounded);
  }
  // A large mapping begins at a huge page's border: what comes before and after is given back.
  const std::size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* const mapped = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TERRACE_CHECK(mapped != MAP_FAILED, "no address space for the tables of host memory");
  if (slack == 0) return mapped;
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t past_border = reinterpret_cast<std::uintptr_t>(mapped) % kHugePage;
  const std::size_t before = past_border == 0 ? 0 : kHugePage - past_border;
  const std::size_t kept = (bytes + kPage - 1) / kPage * kPage;
  if (before > 0) ::munmap(start, before);
  if (before + kept < bytes + slack) ::munmap(start + before + kept, bytes + slack - before - kept);
  // Advice: without huge pages it only is slower.
  ::madvise(start + before, kept, MADV_HUGEPAGE);
  return start + before;
}

void UnmapZeroes(void* memory, std::size_t bytes) {
  if (bytes < kSmall) return std::free(memory);
  ::munmap(memory, bytes);
}

void ZeroAgain(void* memory, std::size_t bytes) {
  if (bytes < kSmall || ::madvise(memory, bytes, MADV_DONTNEED) != 0) {
    std::memset(memory, 0, bytes);
  }
}

}  // namespace terrace
