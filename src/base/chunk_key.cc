#include "terrace/chunk_key.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

namespace terrace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as little-endian 32-bit integers without conversion");

ChunkKey::ChunkKey(std::span<const std::uint8_t> hash, std::uint32_t group) : group_(group) {
  TERRACE_CHECK(!hash.empty() && hash.size() <= kMaxHashSize, "a chunk's hash has 1 to 32 bytes");
  std::copy(hash.begin(), hash.end(), hash_.begin());
  hash_size_ = static_cast<std::uint8_t>(hash.size());
}

Result<ChunkKey> ChunkKey::Make(std::span<const std::uint8_t> hash, std::uint32_t group) {
  if (hash.empty() || hash.size() > kMaxHashSize) {
    return Error{ErrorCode::kInvalidArgument, "make a chunk key: the hash has " +
                                                  std::to_string(hash.size()) +
                                                  " bytes, it must have 1 to 32"};
  }
  return ChunkKey(hash, group);
}

std::string ChunkKey::ToHex() const { return HexEncode(hash()); }

KeyChain::KeyChain(const KeyScope& scope)
    : group_(scope.group), tokens_per_chunk_(scope.tokens_per_chunk) {
  TERRACE_CHECK(tokens_per_chunk_ >= 1, "a chunk has at least one token");
  Sha256 root;
  root.UpdateField("terrace.key_chain", std::uint64_t{1});
  root.UpdateField("identity", std::as_bytes(std::span(scope.identity)));
  root.UpdateField("salt", scope.salt);
  root.UpdateField("adapter", scope.adapter);
  root.UpdateField("group", std::uint64_t{scope.group});
  root.UpdateField("tokens_per_chunk", std::uint64_t{scope.tokens_per_chunk});
  parent_ = root.Finish();
  partial_.reserve(tokens_per_chunk_);
}

void KeyChain::Append(std::span<const Token> tokens) {
  Sha256 sha;
  while (!tokens.empty()) {
    const std::size_t room = tokens_per_chunk_ - partial_.size();
    const auto taken = tokens.first(std::min(room, tokens.size()));
    partial_.insert(partial_.end(), taken.begin(), taken.end());
    tokens = tokens.subspan(taken.size());
    if (partial_.size() < tokens_per_chunk_) return;
    sha.Update(std::as_bytes(std::span(parent_)));
    sha.Update(std::as_bytes(std::span(partial_)));
    parent_ = sha.Finish();
    keys_.emplace_back(std::span<const std::uint8_t>(parent_), group_);
    partial_.clear();
  }
}

}  // namespace terrace

std::size_t std::hash<terrace::ChunkKey>::operator()(const terrace::ChunkKey& key) const noexcept {
  return terrace::Xxh3(std::as_bytes(key.hash())) ^ (0x9e3779b97f4a7c15ULL * key.group());
}
