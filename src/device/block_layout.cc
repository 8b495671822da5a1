#include "device/block_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace terrace {

Error JobFault(JobId id, const std::string& what) {
  return {ErrorCode::kInvalidArgument, fmt::format("copy job {}: {}", id.value, what)};
}

BlockLayout::BlockLayout(HostSlots slots, BlockCopierOptions options)
    : slots_(slots), options_(std::move(options)) {
  std::size_t at = 0;
  for (const PagedTensor& tensor : options_.tensors) {
    offsets_.push_back(at);
    at += tensor.page_bytes * options_.blocks_per_chunk;
  }
}

Result<BlockLayout> BlockLayout::Create(HostSlots slots, BlockCopierOptions options) {
  const auto fault = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "make a block copier: " + what};
  };
  if (options.blocks_per_chunk == 0) return fault("blocks_per_chunk is 0");
  std::size_t bytes = 0;
  for (std::size_t t = 0; t < options.tensors.size(); ++t) {
    const PagedTensor& tensor = options.tensors[t];
    if (tensor.block_stride_bytes < tensor.page_bytes) {
      return fault(fmt::format("tensor {}: pages of {} bytes, {} bytes apart", t, tensor.page_bytes,
                               tensor.block_stride_bytes));
    }
    bytes += tensor.page_bytes * options.blocks_per_chunk;
  }
  if (bytes > slots.chunk_bytes) {
    return fault(fmt::format("{} tensors have {} bytes a chunk, a slot has {}",
                             options.tensors.size(), bytes, slots.chunk_bytes));
  }
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    for (const GroupTensor& part : options.groups[g]) {
      if (part.tensor >= options.tensors.size()) {
        return fault(fmt::format("group {}: tensor {}, there are {}", g, part.tensor,
                                 options.tensors.size()));
      }
      if (part.bytes > options.tensors[part.tensor].page_bytes) {
        return fault(fmt::format("group {}: {} bytes of tensor {}, whose pages have {}", g,
                                 part.bytes, part.tensor, options.tensors[part.tensor].page_bytes));
      }
    }
  }
  return BlockLayout(slots, std::move(options));
}

Result<void> BlockLayout::Check(const BlockJob& job) const {
  if (job.groups.size() > options_.groups.size()) {
    return JobFault(
        job.id, fmt::format("{} groups, there are {}", job.groups.size(), options_.groups.size()));
  }
  const std::size_t per_chunk = options_.blocks_per_chunk;
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    const GroupBlocks& group = job.groups[g];
    if (group.blocks.empty() && group.slots.empty()) continue;
    if (group.first_in_chunk >= per_chunk) {
      return JobFault(job.id, fmt::format("group {}: first_in_chunk {}, a chunk has {} blocks", g,
                                          group.first_in_chunk, per_chunk));
    }
    const std::size_t slots =
        (group.first_in_chunk + group.blocks.size() + per_chunk - 1) / per_chunk;
    if (slots != group.slots.size()) {
      return JobFault(job.id, fmt::format("group {}: {} blocks from place {} on take {} slots, not "
                                          "{}",
                                          g, group.blocks.size(), group.first_in_chunk, slots,
                                          group.slots.size()));
    }
    for (const SlotId slot : group.slots) {
      if (slot.value >= slots_.slot_count) {
        return JobFault(job.id, fmt::format("group {}: slot {}, there are {}", g, slot.value,
                                            slots_.slot_count));
      }
    }
    for (const GroupTensor& part : options_.groups[g]) {
      const std::size_t count = options_.tensors[part.tensor].block_count;
      for (const std::uint32_t block : group.blocks) {
        if (block < count) continue;
        return JobFault(job.id, fmt::format("group {}: block {}, tensor {} has {}", g, block,
                                            part.tensor, count));
      }
    }
  }
  return {};
}

std::vector<BlockPage> BlockLayout::PagesOf(const BlockJob& job, PageMerging merging) const {
  const std::size_t per_chunk = options_.blocks_per_chunk;
  std::vector<BlockPage> pages;
  for (std::size_t g = 0; g < job.groups.size(); ++g) {
    const GroupBlocks& group = job.groups[g];
    std::size_t next = 0;
    for (std::size_t s = 0; s < group.slots.size(); ++s) {
      std::byte* const row = slots_.Slot(group.slots[s]).data();
      const std::size_t first = s == 0 ? group.first_in_chunk : 0;
      const std::size_t count = std::min(per_chunk - first, group.blocks.size() - next);
      for (const GroupTensor& part : options_.groups[g]) {
        if (part.bytes == 0) continue;
        const PagedTensor& tensor = options_.tensors[part.tensor];
        for (std::size_t i = 0; i < count; ++i) {
          const BlockPage page{tensor.base + group.blocks[next + i] * tensor.block_stride_bytes,
                               row + offsets_[part.tensor] + (first + i) * tensor.page_bytes,
                               part.bytes};
          if (merging == PageMerging::kInSlot && i > 0 &&
              pages.back().engine + pages.back().bytes == page.engine &&
              pages.back().host + pages.back().bytes == page.host) {
            pages.back().bytes += page.bytes;
          } else {
            pages.push_back(page);
          }
        }
      }
      next += count;
    }
  }
  return pages;
}

}  // namespace terrace
