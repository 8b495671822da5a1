// Copies blocks of an engine's paged KV memory to and from host slots, in the background.
//
// For engines whose KV cache lies in tensors of pages, one page a block: a worker gives it the
// tensors, its part of the host memory (HostMemory::rank_slots()), and jobs. Tensors that the CPU
// can address are copied by threads, those of a CUDA device by that device's copy engines on
// streams of their own. In a slot each tensor has blocks_per_chunk pages, one tensor after the
// other:
//
//   | tensor 0, block 0 | tensor 0, block 1 | ... | tensor 1, block 0 | ...
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/export.h"
#include "terrace/result.h"
#include "terrace/types.h"
#include "terrace/worker.h"

namespace terrace {

// Pages of one size, one for each block.
struct PagedTensor {
  std::byte* base = nullptr;
  std::size_t block_count = 0;
  std::size_t block_stride_bytes = 0;  // From one page to the next.
  std::size_t page_bytes = 0;
};

// What a KV-cache group keeps in the pages of a tensor: their first `bytes`.
struct GroupTensor {
  std::uint32_t tensor = 0;
  std::size_t bytes = 0;
};

struct BlockCopierOptions {
  std::vector<PagedTensor> tensors;
  std::vector<std::vector<GroupTensor>> groups;
  std::uint32_t blocks_per_chunk = 1;
  std::uint32_t threads = 2;  // That copy; none does for a device.
  // Ordinal of the CUDA device whose memory the tensors are, in its primary context, as the CUDA
  // runtime and torch have them. -1: the CPU can address them.
  int device = -1;
};

// Blocks of one group, one after the other in their request.
struct GroupBlocks {
  std::vector<std::uint32_t> blocks;
  // The place of the first one in its chunk: then it begins in the middle of the first slot.
  std::uint32_t first_in_chunk = 0;
  // ceil((first_in_chunk + blocks) / blocks_per_chunk) of them.
  std::vector<SlotId> slots;
};

struct BlockJob {
  enum class Direction : std::uint8_t { kStore, kLoad };
  JobId id;
  Direction direction = Direction::kStore;
  bool urgent = false;              // Before all that is queued: somebody waits for it.
  std::vector<GroupBlocks> groups;  // By group; those with nothing to copy are empty.
  // A CUevent (or cudaEvent_t) of the device, recorded behind the work that the copies come after;
  // 0: after nothing. What it stood for during Submit() counts: then it may be recorded anew, or
  // destroyed. Only for tensors of a device.
  std::uintptr_t after_event = 0;
};

struct BlockResult {
  JobId id;
  std::uint64_t bytes = 0;  // 0 if it failed.
  double seconds = 0;       // From its first copy's begin to its last one's end.
  // Only a device's copies fail. Then what the job was to write is undefined, and not written any
  // more.
  CopyOutcome outcome = CopyOutcome::kOk;
  std::string error;  // Why, if it failed.
};

// Thread-safe. Loads go before stores; a device does both at once.
class TERRACE_API BlockCopier {
 public:
  // kInvalidArgument if the tensors' pages do not fit into a slot, or a group names a tensor that
  // is not there; for a device kNotFound if this build or machine has no CUDA or no such device, or
  // what its driver answers. What the tensors and slots point to outlives it.
  //
  // For a device the slots are page-locked by a thread in the background. Until then, and where the
  // system refuses (one warning says so), copies are slower, and Submit() of a store may wait for
  // what it comes after.
  static Result<std::unique_ptr<BlockCopier>> Create(HostSlots slots, BlockCopierOptions options);
  // Whether this build has CUDA, and the machine a driver of it. Loads it at the first call.
  static bool HasCuda();
  // Drops what is queued and ends what runs. For a device it waits for all of it, and for what it
  // comes after.
  virtual ~BlockCopier() = default;

  // Queues a job. kInvalidArgument, and nothing queued, if it names a block, slot or group that
  // does not exist, or its id is under way. The blocks belong to it until it has ended.
  virtual Result<void> Submit(BlockJob job) = 0;
  // Jobs that ended since the last call.
  virtual std::vector<BlockResult> TakeFinished() = 0;
  // Blocks until the jobs have ended, or `timeout` passed; true if they have. One that is unknown
  // has. They are still to be taken.
  virtual bool WaitFor(std::span<const JobId> jobs, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace terrace
