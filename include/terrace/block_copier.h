// Copies blocks of an engine's paged KV memory to and from host slots, on threads of its own.
//
// For engines whose KV cache lies in tensors of pages, one page a block, that the CPU can address:
// a worker gives it the tensors, its part of the host memory (HostMemory::rank_slots()), and jobs.
// In a slot each tensor has blocks_per_chunk pages, one tensor after the other:
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
  std::uint32_t threads = 2;
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
};

struct BlockResult {
  JobId id;
  std::uint64_t bytes = 0;
  double seconds = 0;  // From its first copy's begin to its last one's end.
};

// Thread-safe. Loads go before stores.
class TERRACE_API BlockCopier {
 public:
  // kInvalidArgument if the tensors' pages do not fit into a slot, or a group names a tensor that
  // is not there. What the tensors and slots point to outlives it.
  static Result<std::unique_ptr<BlockCopier>> Create(HostSlots slots, BlockCopierOptions options);
  // Drops what is queued and ends what runs.
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
