// Whose chunks this engine's are.
#pragma once

#include "llama_kv.h"
#include "llama_runtime.h"
#include "terrace/cache_identity.h"
#include "terrace/result.h"

namespace terrace::llama {

// Cost: reads the model file once more, for its fingerprint.
Result<CacheIdentity> MakeIdentity(const LlamaRuntime& runtime, const LlamaKv& kv,
                                   std::uint32_t tokens_per_chunk);

}  // namespace terrace::llama
