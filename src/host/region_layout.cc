#include "host/region_layout.h"

#include <fmt/format.h>

#include <limits>

namespace terrace {

Result<RegionLayout> MakeRegionLayout(const RegionSize& size) {
  constexpr std::uint64_t kAlignment = RegionLayout::kAlignment;
  if (size.rank_count == 0 || size.chunk_bytes % size.rank_count != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("map host memory: a chunk of {} bytes can't be shared out to {} ranks",
                             size.chunk_bytes, size.rank_count)};
  }
  const std::uint64_t stride = (size.chunk_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::uint64_t slots = stride == 0 ? 0 : size.total_bytes / stride;
  if (slots == 0) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("map host memory: cpu_bytes_to_use is {} bytes, but one chunk takes {}; raise "
                    "cpu_bytes_to_use or lower tokens_per_chunk",
                    size.total_bytes, stride)};
  }
  if (slots > std::numeric_limits<std::uint32_t>::max() - 1) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("map host memory: cpu_bytes_to_use makes {} slots, more than 2^32 - 2; "
                    "raise tokens_per_chunk",
                    slots)};
  }
  return RegionLayout{.chunk_bytes = size.chunk_bytes,
                      .stride_bytes = stride,
                      .slot_count = static_cast<std::uint32_t>(slots),
                      .rank_count = size.rank_count};
}

}  // namespace terrace
