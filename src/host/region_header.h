// What the processes of one region tell one another while they set it up, and what must be equal.
//
// The messages never leave the machine and live as long as a set-up: they are structs, sent as they
// lie in memory, behind a magic number and a version that every later version keeps in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "host/region_layout.h"
#include "terrace/chunk_key.h"
#include "terrace/result.h"

namespace terrace {

// What a region is, as its creator says and as a joiner expects it.
struct RegionHeader {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t stride_bytes = 0;
  std::uint64_t mapping_bytes = 0;  // Of the memory behind it; a joiner expects none in particular.
  std::uint32_t slot_count = 0;
  std::uint32_t rank_count = 0;
  std::uint32_t process_count = 0;
  std::uint32_t huge_pages = 0;  // What the creator obtained; a joiner expects none in particular.
  Digest identity{};             // CacheIdentity::digest()
};

// Ok if a process that expects `expected` may use a region that is `offered`. kIncompatible names
// every field that differs, with both values, and what to set alike.
Result<void> CheckRegionHeader(const RegionHeader& expected, const RegionHeader& offered);

struct RegionMessage {
  static constexpr std::uint64_t kMagic = 0x5445525241434552;  // "TERRACER"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint32_t kNoRank = 0xffffffff;

  enum class Kind : std::uint32_t {
    kHello,     // Joiner, once connected: its rank, and as text its instance.
    kOffer,     // Creator: the header, and the memory as a descriptor.
    kMapped,    // Joiner: it has mapped the memory.
    kComplete,  // Creator: all have.
    kFailed,    // Either: it gives up, and why.
  };

  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  Kind kind = Kind::kHello;
  std::uint32_t rank = kNoRank;
  std::uint32_t reserved = 0;
  RegionHeader header;
  char text[1024] = {};  // Ends with NUL.

  void SetText(std::string_view text);
};
static_assert(std::is_trivially_copyable_v<RegionMessage>);

// Ok if `size_bytes` bytes that came from another process are a message of this version.
// kIncompatible says what they are instead.
Result<void> CheckRegionMessage(const RegionMessage& message, std::size_t size_bytes);

}  // namespace terrace
