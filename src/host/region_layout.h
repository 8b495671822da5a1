// How host memory is divided: rows of one chunk each, and in a row one slice for each rank.
//
//   | rank 0 | rank 1 | ... | rank n-1 | padding |   row 0 = slot 0
//   | rank 0 | rank 1 | ... | rank n-1 | padding |   row 1 = slot 1
#pragma once

#include <cstdint>

#include "terrace/result.h"

namespace terrace {

struct RegionLayout {
  static constexpr std::uint64_t kAlignment = 4096;

  std::uint64_t chunk_bytes = 0;   // Of all ranks.
  std::uint64_t stride_bytes = 0;  // From one row to the next; a multiple of kAlignment.
  std::uint32_t slot_count = 0;
  std::uint32_t rank_count = 1;

  std::uint64_t rank_bytes() const { return chunk_bytes / rank_count; }
  std::uint64_t size_bytes() const { return stride_bytes * slot_count; }
};

struct RegionSize {
  std::uint64_t total_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t rank_count = 1;
};

// As many rows as fit. kInvalidArgument if not even one does, if there are more than 2^32 - 2, or
// if the ranks' slices are not of one size.
Result<RegionLayout> MakeRegionLayout(const RegionSize& size);

}  // namespace terrace
