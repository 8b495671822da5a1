#include "tier/file/names.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <vector>

namespace terrace {
namespace {

CacheIdentity Identity(const std::string& model) {
  return CacheIdentity::Create({.model = model,
                                .revision = "r",
                                .dtype = "f16",
                                .layout = "l",
                                .layout_version = 1,
                                .tokens_per_chunk = 64,
                                .chunk_bytes = 4096,
                                .shard_index = 0,
                                .shard_count = 1,
                                .engine = "e"})
      .value();
}

std::string DirName(const std::string& model) {
  const std::string name = IdentityDirName(Identity(model));
  EXPECT_EQ(name.substr(name.size() - 16), Identity(model).ToHex().substr(0, 16));
  return name.substr(0, name.size() - 17);
}

TEST(Names, DirectoryIsReadableAndStaysBelowTheRoot) {
  EXPECT_EQ(DirName("Llama-3.2_1B"), "Llama-3.2_1B");
  EXPECT_EQ(DirName("meta/Llama 3"), "meta_Llama_3");
  EXPECT_EQ(DirName("../../etc"), "_._.._etc");
  EXPECT_EQ(DirName("."), "_");
  EXPECT_EQ(DirName(std::string("a\0b", 3)), "a_b");
  EXPECT_EQ(DirName("\xc3\xa9"), "__");
  EXPECT_EQ(DirName(std::string(300, 'x')), std::string(64, 'x'));
}

TEST(Names, ChunkNamesGoBothWays) {
  std::set<std::string> names;
  for (const std::size_t size : {1, 2, 16, 31, 32}) {
    for (const std::uint32_t group : {0u, 1u, 10u, 0xffffffffu}) {
      const ChunkKey key(std::vector<std::uint8_t>(size, 0xab), group);
      EXPECT_TRUE(names.insert(ChunkFileName(key)).second);
      EXPECT_EQ(ParseChunkFileName(ChunkFolderName(key), ChunkFileName(key)), key);
    }
  }
  EXPECT_TRUE(names.contains("abab_g10.chunk"));
}

TEST(Names, RefusesEveryOtherName) {
  ASSERT_TRUE(ParseChunkFileName("ab", "ab01_g1.chunk"));
  for (const char* name :
       {"", ".chunk", "_g1.chunk", "ab01.chunk", "ab01_g.chunk", "ab01_g1", "ab01_g1.chunk.bak",
        "ab01_g01.chunk", "ab01_g-1.chunk", "ab01_g+1.chunk", "ab01_g4294967296.chunk",
        "AB01_g1.chunk", "ab0_g1.chunk", "abxx_g1.chunk", "ab01_g1_g1.chunk", " ab01_g1.chunk",
        "ab01_gchunk", "ab01_g1.tmp"}) {
    EXPECT_FALSE(ParseChunkFileName("ab", name)) << name;
  }
  EXPECT_FALSE(ParseChunkFileName("ac", "ab01_g1.chunk")) << "in the wrong folder";
  const std::string long_hash(66, 'a');
  EXPECT_FALSE(ParseChunkFileName("aa", long_hash + "_g1.chunk"));
}

TEST(Names, KnowsItsTemporaries) {
  EXPECT_TRUE(IsInstanceFolderName(InstanceFolderName(0)));
  EXPECT_TRUE(IsInstanceFolderName(InstanceFolderName(~std::uint64_t{0})));
  EXPECT_FALSE(IsInstanceFolderName("0123"));
  EXPECT_FALSE(IsInstanceFolderName("0123456789abcdeg"));
  EXPECT_TRUE(IsTempFileName(TempFileName(0)));
  EXPECT_TRUE(IsTempFileName(TempFileName(~std::uint64_t{0})));
  for (const char* name : {"", ".tmp", "x.tmp", "1", "1.tmp.bak", "-1.tmp", "lock"}) {
    EXPECT_FALSE(IsTempFileName(name)) << name;
  }
}

// Three digits of the hash, two more and the group, all of it: computed by hand from the rule.
TEST(VllmNames, AreThoseOfVllm) {
  std::array<std::uint8_t, 32> hash;
  std::iota(hash.begin(), hash.end(), 0xe0);
  EXPECT_EQ(VllmChunkPath(ChunkKey(hash, 12)),
            "e0e/1e_g12/e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff.bin");
  EXPECT_EQ(VllmChunkPath(ChunkKey(std::array<std::uint8_t, 2>{0x0f, 0x3a}, 0)),
            "0f3/a_g0/0f3a.bin");
  EXPECT_EQ(VllmChunkPath(ChunkKey(std::array<std::uint8_t, 1>{0x0f}, 0)), "0f/_g0/0f.bin");
  EXPECT_EQ(VllmTempPath("/a/b.bin", 18446744073709551615u), "/a/b.bin_18446744073709551615.tmp");
}

}  // namespace
}  // namespace terrace
