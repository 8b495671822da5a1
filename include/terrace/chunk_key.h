// What a chunk is called, in every tier, on every machine.
//
// A key is a chained content hash: it commits to every token before it, so equal keys mean equal
// prefixes. It never contains a rank, an address, a process's seed or anything of std::hash, so two
// processes that saw the same tokens name the same chunk alike.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/result.h"

namespace terrace {

using Digest = std::array<std::uint8_t, 32>;
using Token = std::int32_t;

// The name of a chunk: the engine's chained block hash and the KV-cache group it belongs to. Value
// type, 40 bytes.
class ChunkKey {
 public:
  static constexpr std::size_t kMaxHashSize = 32;

  ChunkKey() = default;
  // Pre: 1 <= hash.size() <= kMaxHashSize (aborts otherwise; at the edges use Make()).
  TERRACE_API ChunkKey(std::span<const std::uint8_t> hash, std::uint32_t group);
  // The same for input that nobody has checked yet.
  static TERRACE_API Result<ChunkKey> Make(std::span<const std::uint8_t> hash, std::uint32_t group);

  std::span<const std::uint8_t> hash() const { return {hash_.data(), hash_size_}; }
  std::uint32_t group() const { return group_; }
  // Lower-case hex of the hash, two digits a byte; the group is not part of it.
  TERRACE_API std::string ToHex() const;

  friend bool operator==(const ChunkKey&, const ChunkKey&) = default;
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;

 private:
  std::array<std::uint8_t, kMaxHashSize>
      hash_{};  // Unused tail bytes stay zero, so == may compare all of it.
  std::uint32_t group_ = 0;
  std::uint8_t hash_size_ = 0;
};

// What separates two requests with the same tokens. Equal scopes share chunks; any difference
// shares nothing.
struct KeyScope {
  Digest identity{};                   // CacheIdentity::digest(): model, layout, chunk size, ...
  std::string salt;                    // A tenant's secret or name; "" for none.
  std::string adapter;                 // LoRA adapter with its version; "" for none.
  std::uint32_t group = 0;             // KV-cache group.
  std::uint32_t tokens_per_chunk = 0;  // >= 1
};

// Names the chunks of one growing token sequence: key i = SHA-256(key i-1, tokens of chunk i),
// where "key -1" is the SHA-256 of the scope as tagged, length-prefixed fields. Only whole chunks
// have names.
//
// Thread-compatible.
// Cost: one SHA-256 over 32 + 4 * tokens_per_chunk bytes per chunk (about 0.5 us
// for 64 tokens).
class KeyChain {
 public:
  // Pre: scope.tokens_per_chunk >= 1.
  explicit TERRACE_API KeyChain(const KeyScope& scope);

  // Appends `tokens` and names every chunk that became whole.
  TERRACE_API void Append(std::span<const Token> tokens);
  // Keys of all whole chunks so far, in order. Invalidated by Append().
  std::span<const ChunkKey> keys() const { return keys_; }

 private:
  std::uint32_t group_;
  std::uint32_t tokens_per_chunk_;
  Digest parent_;
  std::vector<Token> partial_;
  std::vector<ChunkKey> keys_;
};

}  // namespace terrace

template <>
struct std::hash<terrace::ChunkKey> {
  // For containers in this process only; never leaves it.
  TERRACE_API std::size_t operator()(const terrace::ChunkKey& key) const noexcept;
};
