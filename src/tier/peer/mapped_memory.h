// A peer's memory, mapped for reading.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>

#include "base/fd.h"
#include "terrace/result.h"

namespace terrace {

// Immovable. Its pages are mapped ahead in the background: else each page of a chunk would be a
// fault (16 at a time, with the kernel's fault-around) while somebody waits for the chunk, which is
// about a third of what it takes to copy it.
class MappedMemory {
 public:
  // `size` bytes from the front of `file`, a memfd of at least that many.
  // Cost: two system calls; the rest is done by a thread that takes little of the processor, in
  // some seconds a GiB.
  static Result<std::unique_ptr<MappedMemory>> Map(UniqueFd file, std::size_t size);
  // Waits for that thread, a millisecond at most.
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::span<const std::byte> bytes() const { return {base_, size_}; }

  // What the thread does, for a test: maps the pages that `file` has, unless `stop` is set
  // meanwhile. A page that it lacks is left alone, since to read it would be to make it.
  static void MapPages(int file, const std::byte* base, std::size_t size,
                       const std::atomic<bool>& stop);

 private:
  MappedMemory(UniqueFd file, const std::byte* base, std::size_t size)
      : file_(std::move(file)), base_(base), size_(size) {}

  const UniqueFd file_;
  const std::byte* const base_;
  const std::size_t size_;
  std::atomic<bool> stop_{false};  // Nothing else depends on it.
  std::thread mapper_;
};

}  // namespace terrace
