// The mapping that holds every slot, of one process or shared by several.
//
// It has no name in any file system, so it is gone with the last process that maps it, also after
// kill -9; region_setup.h says how several processes come to share it. Its pages may be touched in
// the background: the region is of use at once, and what is not touched yet is at first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/memory_ops.h"
#include "host/prefault.h"
#include "host/region_layout.h"
#include "host/region_memory.h"
#include "host/region_setup.h"
#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace {

struct HostRegionOptions {
  std::uint64_t total_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // Of all ranks.
  HugePages huge_pages = HugePages::kOff;
  std::uint32_t prefault_threads = 0;  // That touch pages in the background; 0: at first use.
  bool lock_memory = false;            // Never swap out pages once they are touched.
};

// Thread-compatible after creation; the bytes of a slot belong to whoever the manager lets write or
// read them.
class HostRegion {
 public:
  static constexpr std::size_t kAlignment = RegionLayout::kAlignment;

  // Rows of round_up(chunk_bytes, kAlignment), as many as fit into total_bytes, for this process
  // alone. kInvalidArgument if not even one does; kResourceExhausted, with need and available, if
  // the machine or a cgroup has less memory than that. Huge pages and locking that can't be had are
  // warnings: logged, and kept in warnings().
  // Cost: a few system calls; with `prefault_threads`, work in the background.
  static Result<std::unique_ptr<HostRegion>> Create(const HostRegionOptions& options,
                                                    MemoryOps& ops = PosixMemoryOps());
  static Result<std::unique_ptr<HostRegion>> Create(std::uint64_t total_bytes,
                                                    std::uint64_t chunk_bytes);

  // The same for several processes: one creates, the others join with equal sizes and `sharing`
  // (but for `rank`). Creating does not wait for anybody; joining waits for the creator. Each
  // touches the pages of its own rank's slices, and none if it has no rank.
  static Result<std::unique_ptr<HostRegion>> CreateShared(const HostRegionOptions& options,
                                                          const RegionSharing& sharing,
                                                          MemoryOps& ops = PosixMemoryOps());
  static Result<std::unique_ptr<HostRegion>> Join(const HostRegionOptions& options,
                                                  const RegionSharing& sharing,
                                                  MemoryOps& ops = PosixMemoryOps());
  // Waits until all have mapped it; see RegionSetup. Ok at once if there are no others.
  Result<void> AwaitAll();

  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  std::byte* base() const { return memory_.base(); }
  // Of the mapping, slot 0 at its front.
  int descriptor() const { return memory_.fd(); }
  std::size_t slot_stride_bytes() const { return layout_.stride_bytes; }
  std::size_t chunk_bytes() const { return layout_.chunk_bytes; }
  std::uint32_t slot_count() const { return layout_.slot_count; }
  std::uint32_t rank_count() const { return layout_.rank_count; }

  // A chunk of all ranks, and the part of one rank. Out of bounds is a bug.
  std::span<std::byte> Slot(SlotId slot) const;
  std::span<std::byte> RankSlice(SlotId slot, std::uint32_t rank) const;

  // What was obtained.
  HugePages huge_pages() const { return memory_.huge_pages(); }
  bool is_locked() const { return is_locked_; }
  // What was asked for and can't be had, why, and what to do about it.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Thread-safe.
  PrefaultProgress prefault_progress() const;

 private:
  HostRegion(const RegionLayout& layout, RegionMemory memory)
      : layout_(layout), memory_(std::move(memory)) {}

  void Warn(std::string warning);
  void LockMemory(MemoryOps& ops);
  // The part of each row that this process touches: all of it, one rank's, or nothing.
  struct Share {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  static Share ShareOf(const RegionLayout& layout, const RegionSharing& sharing);
  // What follows once it is mapped.
  void Prepare(const HostRegionOptions& options, Share share, MemoryOps& ops);

  const RegionLayout layout_;
  const RegionMemory memory_;
  bool is_locked_ = false;
  std::vector<std::string> warnings_;
  // Each uses what stands above it.
  std::unique_ptr<RegionSetup> setup_;
  std::unique_ptr<Prefault> prefault_;
};

}  // namespace terrace
