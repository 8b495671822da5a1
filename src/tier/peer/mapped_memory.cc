#include "tier/peer/mapped_memory.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/thread.h"

// Linux 5.14; older headers lack the name, older kernels answer EINVAL.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace terrace {
namespace {

// Some 30 us, in which nobody of this process can map or unmap anything else; and then the others'
// turn. Not at a low priority: whoever waits for the lock would wait for the processor, too.
constexpr std::size_t kPieceSize = 256 << 10;
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

Result<std::unique_ptr<MappedMemory>> MappedMemory::Map(UniqueFd file, std::size_t size) {
  void* const base = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return ErrnoError("map the peer's memory", errno);
  std::unique_ptr<MappedMemory> memory(
      new MappedMemory(std::move(file), static_cast<const std::byte*>(base), size));
  auto mapper = StartThread("terrace-peer-", "m", [raw = memory.get()] {
    MapPages(raw->file_.get(), raw->base_, raw->size_, raw->stop_);
  });
  // Without it the memory is slower at first, and no less right.
  if (mapper.ok()) memory->mapper_ = std::move(mapper).value();
  return memory;
}

MappedMemory::~MappedMemory() {
  stop_.store(true, std::memory_order_relaxed);
  if (mapper_.joinable()) mapper_.join();
  ::munmap(const_cast<std::byte*>(base_), size_);
}

void MappedMemory::MapPages(int file, const std::byte* base, std::size_t size,
                            const std::atomic<bool>& stop) {
  // Huge pages' file system tells of no holes; its pages are few anyway.
  struct statfs system {};
  if (::fstatfs(file, &system) != 0 || system.f_type != TMPFS_MAGIC) return;
  for (std::size_t at = 0; at < size;) {
    const off_t data = ::lseek(file, static_cast<off_t>(at), SEEK_DATA);
    const off_t hole = data < 0 ? data : ::lseek(file, data, SEEK_HOLE);
    if (hole < 0) return;  // No more pages, or a file that does not tell.
    const std::size_t end = std::min(static_cast<std::size_t>(hole), size);
    at = static_cast<std::size_t>(data);
    while (at < end) {
      if (stop.load(std::memory_order_relaxed)) return;
      const std::size_t piece = std::min(kPieceSize, end - at);
      if (::madvise(const_cast<std::byte*>(base) + at, piece, MADV_POPULATE_READ) != 0) return;
      at += piece;
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace terrace
