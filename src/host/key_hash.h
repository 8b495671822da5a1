// Hashes of keys for tables in this process: some nanoseconds each.
#pragma once

#include <cstdint>
#include <cstring>

#include "terrace/chunk_key.h"

namespace terrace {

// The high and the low half of a 128-bit product folded: one multiplication that mixes all bits.
inline std::uint64_t FoldedProduct(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// A key already is a hash, but an engine may choose a weak one (tests count from 0), so all of it
// is mixed. Equal keys have equal hashes; nothing else is promised, and it never leaves the
// process.
inline std::uint64_t KeyHash(const ChunkKey& key) {
  // Bytes behind a short hash are zero (chunk_key.h).
  std::uint64_t words[4];
  static_assert(sizeof(words) == ChunkKey::kMaxHashSize);
  std::memcpy(words, key.hash().data(), sizeof words);
  // Digits of pi: any odd numbers without pattern do.
  const std::uint64_t front =
      FoldedProduct(words[0] ^ 0x243f6a8885a308d3, words[1] ^ 0x13198a2e03707345);
  const std::uint64_t back =
      FoldedProduct(words[2] ^ 0xa4093822299f31d1 ^ key.group(), words[3] ^ 0x082efa98ec4e6c89);
  return FoldedProduct(front ^ 0x452821e638d01377, back ^ 0xbe5466cf34e90c6d);
}

// Maps a 32-bit hash evenly to 0 .. size - 1 (Lemire, "Fast Random Integer Generation in an
// Interval"), so that a table's size need not be a power of two.
inline std::size_t ReduceToRange(std::uint32_t hash, std::size_t size) {
  return static_cast<std::size_t>((static_cast<std::uint64_t>(hash) * size) >> 32);
}

}  // namespace terrace
