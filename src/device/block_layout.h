// Where the blocks of a job lie, in engine memory and in slots: what every copier needs to know.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "terrace/block_copier.h"
#include "terrace/result.h"

namespace terrace {

// Bytes that lie together on both sides.
struct BlockPage {
  std::byte* engine;
  std::byte* host;
  std::size_t bytes;
};

enum class PageMerging : std::uint8_t {
  kNone,
  kInSlot,  // Neighbours on both sides become one, if they are of one slot.
};

// kInvalidArgument, with the job's number.
Error JobFault(JobId id, const std::string& what);

// Constant.
class BlockLayout {
 public:
  // kInvalidArgument as BlockCopier::Create().
  static Result<BlockLayout> Create(HostSlots slots, BlockCopierOptions options);

  // kInvalidArgument if the job names a block, slot or group that does not exist.
  Result<void> Check(const BlockJob& job) const;
  // Slot by slot and there tensor by tensor, so that parts of a job write different slots for the
  // most part. None is empty.
  // Pre: Check(job).ok()
  std::vector<BlockPage> PagesOf(const BlockJob& job, PageMerging merging) const;

  const HostSlots& slots() const { return slots_; }
  const BlockCopierOptions& options() const { return options_; }

 private:
  BlockLayout(HostSlots slots, BlockCopierOptions options);

  HostSlots slots_;
  BlockCopierOptions options_;
  std::vector<std::size_t> offsets_;  // Of each tensor in a slot.
};

}  // namespace terrace
