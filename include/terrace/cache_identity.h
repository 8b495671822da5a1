// What must be equal for one process to use the chunks of another.
//
// Every field is part of the digest, encoded as tag, length and bytes, so that no two different
// identities can read alike. The digest names directories, is stamped on every record that leaves
// host memory, and is what peers compare.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/chunk_key.h"
#include "terrace/export.h"
#include "terrace/result.h"

namespace terrace {

// Fields of an identity; every one must be given. A number of 0 or an empty string counts as
// missing, except `shard_index`, which starts at 0.
struct CacheIdentityFields {
  std::string model;  // A name that people recognise.
  std::string
      revision;  // What tells two sets of weights of that name apart, e.g. a hash of the weights.
  std::string dtype;                   // Element types of the cache, e.g. "k=f16,v=f16".
  std::string layout;                  // How a chunk's bytes are arranged, by name.
  std::uint32_t layout_version = 0;    // >= 1; changes with the arrangement.
  std::uint32_t tokens_per_chunk = 0;  // >= 1
  std::uint64_t chunk_bytes = 0;       // >= 1; constant for the life of the cache.
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 0;  // > shard_index
  std::string engine;  // Who computed the chunks, with whatever of its version changes their bytes.
};

class CacheIdentity {
 public:
  // kInvalidArgument names every missing or impossible field at once.
  static TERRACE_API Result<CacheIdentity> Create(CacheIdentityFields fields);

  const CacheIdentityFields& fields() const { return fields_; }
  const Digest& digest() const { return digest_; }
  // Lower-case hex of the digest, 64 characters.
  TERRACE_API std::string ToHex() const;

 private:
  CacheIdentity(CacheIdentityFields fields, const Digest& digest)
      : fields_(std::move(fields)), digest_(digest) {}

  CacheIdentityFields fields_;
  Digest digest_;
};

}  // namespace terrace
