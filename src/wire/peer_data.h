// What is said on a data link between two peers: who asks (OPEN, OPENED), which chunk (READ), where
// it is and what it must hash to (CHUNK), and, where the link carries the bytes too, those (BYTES).
//
//   asker   OPEN             READ READ                 DONE          READ ...
//   holder        OPENED               BYTES.. CHUNK         CHUNK
//
// A frame has a head that says its kind and its size, so that what is no frame is told at its first
// bytes, and a size that is bounded by kDataFrameSizeMax. The byte layout is in docs/formats.md.
// Pure functions, no I/O, thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "terrace/result.h"
#include "wire/chunk_record.h"

namespace terrace {

inline constexpr std::uint16_t kDataLinkVersion = 1;
inline constexpr std::size_t kDataDetailSizeMax = 4096;
inline constexpr std::size_t kDataFrameSizeMax = 40 + kDataDetailSizeMax;

// The first frame of an asker.
struct DataOpen {
  std::uint16_t version = kDataLinkVersion;
  std::uint8_t plane = 0;  // A PlaneKind.
  std::array<std::uint8_t, 16> token{};
  friend bool operator==(const DataOpen&, const DataOpen&) = default;
};

// The holder's answer, if it takes the asker; else it hangs up.
struct DataOpened {
  std::uint16_t version = kDataLinkVersion;
  std::uint8_t plane = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t stride_bytes = 0;  // Between two slots.
  std::uint64_t region_bytes = 0;  // Of all slots.
  // What the plane needs to reach them; at most kDataDetailSizeMax bytes.
  std::vector<std::byte> detail;
  friend bool operator==(const DataOpened&, const DataOpened&) = default;
};

// Asker: send this chunk, or say where it is.
struct DataRead {
  std::uint64_t tag = 0;  // The asker's name for this read.
  std::uint64_t lease = 0;
  std::uint32_t index = 0;
  friend bool operator==(const DataRead&, const DataRead&) = default;
};

// Holder, if the link carries the bytes: the next `size` bytes after this frame are the next ones
// of the chunk. Its CHUNK comes behind the last of them, or earlier, if it is gone.
struct DataBytes {
  std::uint64_t tag = 0;
  std::uint32_t size = 0;  // >= 1
  friend bool operator==(const DataBytes&, const DataBytes&) = default;
};

enum class DataStatus : std::uint8_t { kHere = 1, kGone = 2 };

// Holder: the answer to a READ, the only one with this tag.
struct DataChunk {
  std::uint64_t tag = 0;
  DataStatus status = DataStatus::kGone;
  std::uint64_t where = 0;  // Its offset in the region, if the asker fetches it there.
  // An encoded chunk record; zeros if it is gone.
  std::array<std::byte, kChunkRecordFieldsSize> record{};
  friend bool operator==(const DataChunk&, const DataChunk&) = default;
};

// Asker, if it fetches by itself: it needs the chunk no more.
struct DataDone {
  std::uint64_t tag = 0;
  friend bool operator==(const DataDone&, const DataDone&) = default;
};

using DataFrame = std::variant<DataOpen, DataOpened, DataRead, DataBytes, DataChunk, DataDone>;

// Pre: the detail of an OPENED is not too large; the size of BYTES is not 0.
void AppendDataFrame(const DataFrame& frame, std::vector<std::byte>& out);

struct DecodedDataFrame {
  DataFrame frame;
  std::size_t size = 0;  // In bytes.
};
// The frame at the front of `bytes`; nullopt if more bytes are needed to tell. kCorrupt: what is
// there starts no frame. An OPEN or OPENED of another version decodes if it has the size of ours.
Result<std::optional<DecodedDataFrame>> DecodeDataFrame(std::span<const std::byte> bytes);

}  // namespace terrace
