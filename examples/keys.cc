// How Terrace names the chunks of a token sequence.
//
// Two conversations begin with the same tokens: their first chunks have the same keys, on every
// machine and in every run, and so can be shared. From the first difference on all keys differ.
#include <cstdio>
#include <vector>

#include "terrace/cache_identity.h"
#include "terrace/chunk_key.h"

namespace {

std::vector<terrace::ChunkKey> Keys(const terrace::CacheIdentity& identity,
                                    const std::vector<terrace::Token>& tokens) {
  terrace::KeyScope scope;
  scope.identity = identity.digest();
  scope.tokens_per_chunk = identity.fields().tokens_per_chunk;
  terrace::KeyChain chain(scope);
  chain.Append(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

}  // namespace

int main() {
  // What must be equal for two processes to share chunks. Leave one out, and Create() says which.
  auto identity = terrace::CacheIdentity::Create({.model = "example",
                                                  .revision = "1",
                                                  .dtype = "k=f16,v=f16",
                                                  .layout = "example",
                                                  .layout_version = 1,
                                                  .tokens_per_chunk = 4,
                                                  .chunk_bytes = 4096,
                                                  .shard_index = 0,
                                                  .shard_count = 1,
                                                  .engine = "example 1.0"});
  if (!identity.ok()) {
    std::fprintf(stderr, "%s\n", identity.error().message.c_str());
    return 1;
  }

  // Only whole chunks have names: of 14 tokens the last two have none yet.
  const auto a = Keys(identity.value(), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  const auto b = Keys(identity.value(), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::printf("chunk %zu  %.16s  %.16s  %s\n", i, a[i].ToHex().c_str(), b[i].ToHex().c_str(),
                a[i] == b[i] ? "shared" : "different");
  }
  return 0;
}
