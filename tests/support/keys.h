// Chunk keys for tests: the n-th is always the same.
#pragma once

#include <cstring>
#include <vector>

#include "terrace/chunk_key.h"

namespace terrace::testing_support {

inline ChunkKey Key(std::uint64_t n, std::uint32_t group = 0) {
  std::array<std::uint8_t, 32> hash{};
  std::memcpy(hash.data(), &n, sizeof n);
  return ChunkKey(hash, group);
}

// Keys first, first + 1, ..., first + count - 1.
inline std::vector<ChunkKey> Keys(std::uint64_t first, std::size_t count) {
  std::vector<ChunkKey> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(Key(first + i));
  return keys;
}

}  // namespace terrace::testing_support
