// The memory behind a host region: an anonymous memfd and this process's mapping of it.
//
// A memfd has no name in any file system and counts against no /dev/shm: it is gone with the last
// process that maps it, also after kill -9, and only the machine's and the cgroup's memory bound
// it. Sealed against a change of size, so that no other process can turn a touch into a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/fd.h"
#include "host/memory_ops.h"
#include "terrace/result.h"

namespace terrace {

enum class HugePages : std::uint8_t {
  kOff,          // The machine's ordinary pages.
  kTransparent,  // Asked for; the kernel gives them where it finds them.
  kExplicit,     // Reserved from the kernel's pool.
};

// Move-only. Thread-compatible.
class RegionMemory {
 public:
  // At least `size_bytes`; kExplicit rounds up to whole huge pages. What is wanted and can't be had
  // is replaced by the next below it, and fallback() says why. kResourceExhausted, with need and
  // available, if the machine or a cgroup has less memory. Touches nothing.
  // Cost: a few system calls.
  static Result<RegionMemory> Create(MemoryOps& ops, std::uint64_t size_bytes, HugePages wanted);
  // What another process made, with its size and what it obtained. kIncompatible if the file is not
  // as it says.
  static Result<RegionMemory> Map(MemoryOps& ops, UniqueFd fd, std::uint64_t mapping_bytes,
                                  HugePages obtained);
  RegionMemory(RegionMemory&& other) noexcept
      : fd_(std::move(other.fd_)),
        base_(std::exchange(other.base_, nullptr)),
        mapping_bytes_(other.mapping_bytes_),
        huge_pages_(other.huge_pages_),
        fallback_(std::move(other.fallback_)) {}
  RegionMemory& operator=(RegionMemory&&) = delete;
  ~RegionMemory();

  int fd() const { return fd_.get(); }
  std::byte* base() const { return base_; }
  std::uint64_t mapping_bytes() const { return mapping_bytes_; }
  // What was obtained.
  HugePages huge_pages() const { return huge_pages_; }
  // Why that is less than what was wanted, and what to do about it; empty if it is not.
  const std::string& fallback() const { return fallback_; }

 private:
  RegionMemory(UniqueFd fd, std::byte* base, std::uint64_t mapping_bytes, HugePages huge_pages)
      : fd_(std::move(fd)), base_(base), mapping_bytes_(mapping_bytes), huge_pages_(huge_pages) {}

  static Result<RegionMemory> CreateOrdinary(MemoryOps& ops, std::uint64_t size_bytes);
  static Result<RegionMemory> CreateExplicit(MemoryOps& ops, std::uint64_t size_bytes);
  static Result<RegionMemory> CreateFile(MemoryOps& ops, std::uint64_t mapping_bytes,
                                         HugePages pages);
  // Asks for transparent huge pages, or adds to fallback_ why not.
  void AskForHugePages(MemoryOps& ops);

  UniqueFd fd_;
  std::byte* base_;
  std::uint64_t mapping_bytes_;
  HugePages huge_pages_;
  std::string fallback_;
};

}  // namespace terrace
