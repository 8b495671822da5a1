// Chunk keys for benchmarks: prefixes of 64 chunks, with bytes as a hash's are.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "terrace/chunk_key.h"

namespace terrace::bench {

inline constexpr std::size_t kPrefix = 64;

// The key of the n-th chunk: bytes as a hash's are.
inline ChunkKey HashedKey(std::uint64_t n) {
  std::array<std::uint8_t, 32> hash;
  for (std::size_t word = 0; word < 4; ++word) {
    // SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    std::uint64_t x = (n * 4 + word + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    std::memcpy(hash.data() + 8 * word, &x, sizeof x);
  }
  return ChunkKey(hash, 0);
}

inline std::vector<ChunkKey> PrefixKeys(std::uint64_t prefix) {
  std::vector<ChunkKey> keys;
  for (std::size_t i = 0; i < kPrefix; ++i) keys.push_back(HashedKey(prefix * kPrefix + i));
  return keys;
}

}  // namespace terrace::bench
