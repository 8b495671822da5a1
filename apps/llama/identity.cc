#include "identity.h"

#include <utility>

namespace terrace::llama {

Result<CacheIdentity> MakeIdentity(const LlamaRuntime& runtime, const LlamaKv& kv,
                                   std::uint32_t tokens_per_chunk) {
  auto weights = runtime.WeightsFingerprint();
  if (!weights.ok()) return std::move(weights).error();
  return CacheIdentity::Create({.model = runtime.ModelName(),
                                .revision = "xxh3-128:" + weights.value(),
                                .dtype = kv.dtype(),
                                .layout = "llama-kv-rows",
                                .layout_version = 1,
                                .tokens_per_chunk = tokens_per_chunk,
                                .chunk_bytes = kv.chunk_bytes(),
                                .shard_index = 0,
                                .shard_count = 1,
                                .engine = TERRACE_LLAMA_ENGINE});
}

}  // namespace terrace::llama
