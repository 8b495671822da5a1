#include "terrace/cache_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace terrace {
namespace {

CacheIdentityFields Fields() {
  return {.model = "m",
          .revision = "r",
          .dtype = "f16",
          .layout = "l",
          .layout_version = 1,
          .tokens_per_chunk = 64,
          .chunk_bytes = 4096,
          .shard_index = 0,
          .shard_count = 1,
          .engine = "e"};
}

TEST(CacheIdentity, NamesEveryMissingFieldAtOnce) {
  const auto identity = CacheIdentity::Create({});
  ASSERT_FALSE(identity.ok());
  for (const char* name : {"model", "revision", "dtype", "layout", "layout_version",
                           "tokens_per_chunk", "chunk_bytes", "shard_count", "engine"}) {
    EXPECT_THAT(identity.error().message, testing::HasSubstr(std::string(name) + " is missing"));
  }
}

TEST(CacheIdentity, RefusesAShardOutsideTheCount) {
  auto fields = Fields();
  fields.shard_index = 1;
  EXPECT_FALSE(CacheIdentity::Create(fields).ok());
}

TEST(CacheIdentity, EveryFieldChangesTheDigest) {
  const std::vector<std::function<void(CacheIdentityFields&)>> changes = {
      [](auto&) {},
      [](auto& f) { f.model = "m2"; },
      [](auto& f) { f.revision = "r2"; },
      [](auto& f) { f.dtype = "f32"; },
      [](auto& f) { f.layout = "l2"; },
      [](auto& f) { f.layout_version = 2; },
      [](auto& f) { f.tokens_per_chunk = 32; },
      [](auto& f) { f.chunk_bytes = 8192; },
      [](auto& f) { f.shard_count = 2; },
      [](auto& f) { f.shard_count = 2, f.shard_index = 1; },
      [](auto& f) { f.engine = "e2"; },
      [](auto& f) { f.model = "mr", f.revision = "r"; },
      [](auto& f) { f.model = "m", f.revision = "rr"; },
  };
  std::set<Digest> seen;
  for (const auto& change : changes) {
    auto fields = Fields();
    change(fields);
    EXPECT_TRUE(seen.insert(CacheIdentity::Create(fields).value().digest()).second);
  }
}

}  // namespace
}  // namespace terrace
