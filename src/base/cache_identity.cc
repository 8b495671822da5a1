#include "terrace/cache_identity.h"

#include <utility>

#include "base/hash.h"

namespace terrace {

Result<CacheIdentity> CacheIdentity::Create(CacheIdentityFields fields) {
  std::string faults;
  auto require = [&faults](bool given, const char* name, const char* what) {
    if (given) return;
    faults += faults.empty() ? "" : "; ";
    faults += std::string(name) + " " + what;
  };
  require(!fields.model.empty(), "model", "is missing");
  require(!fields.revision.empty(), "revision", "is missing");
  require(!fields.dtype.empty(), "dtype", "is missing");
  require(!fields.layout.empty(), "layout", "is missing");
  require(fields.layout_version >= 1, "layout_version", "is missing");
  require(fields.tokens_per_chunk >= 1, "tokens_per_chunk", "is missing");
  require(fields.chunk_bytes >= 1, "chunk_bytes", "is missing");
  require(fields.shard_count >= 1, "shard_count", "is missing");
  require(fields.shard_count == 0 || fields.shard_index < fields.shard_count, "shard_index",
          "is not below shard_count");
  require(!fields.engine.empty(), "engine", "is missing");
  if (!faults.empty()) {
    return Error{ErrorCode::kInvalidArgument, "make a cache identity: " + faults};
  }
  Sha256 hash;
  hash.UpdateField("terrace.identity", std::uint64_t{1});
  hash.UpdateField("model", fields.model);
  hash.UpdateField("revision", fields.revision);
  hash.UpdateField("dtype", fields.dtype);
  hash.UpdateField("layout", fields.layout);
  hash.UpdateField("layout_version", std::uint64_t{fields.layout_version});
  hash.UpdateField("tokens_per_chunk", std::uint64_t{fields.tokens_per_chunk});
  hash.UpdateField("chunk_bytes", std::uint64_t{fields.chunk_bytes});
  hash.UpdateField("shard_index", std::uint64_t{fields.shard_index});
  hash.UpdateField("shard_count", std::uint64_t{fields.shard_count});
  hash.UpdateField("engine", fields.engine);
  const Digest digest = hash.Finish();
  return CacheIdentity(std::move(fields), digest);
}

std::string CacheIdentity::ToHex() const { return HexEncode(digest_); }

}  // namespace terrace
