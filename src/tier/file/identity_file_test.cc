#include "tier/file/identity_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

CacheIdentityFields Fields() {
  return {.model = "m \xff \"quoted\"",  // Not UTF-8: must neither throw nor differ from itself.
          .revision = "r",
          .dtype = "f16",
          .layout = "l",
          .layout_version = 1,
          .tokens_per_chunk = 64,
          .chunk_bytes = 1ull << 40,
          .shard_index = 0,
          .shard_count = 1,
          .engine = "e"};
}

CacheIdentity Identity() { return CacheIdentity::Create(Fields()).value(); }

std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = EncodeIdentityFile(Identity());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void ExpectRefused(const std::string& text, ErrorCode code, const std::string& why) {
  const auto checked = CheckIdentityFile(text, Identity());
  ASSERT_FALSE(checked.ok()) << text;
  EXPECT_EQ(checked.error().code, code) << checked.error().message;
  EXPECT_THAT(checked.error().message, HasSubstr(why));
}

TEST(IdentityFile, KnowsItsOwn) {
  EXPECT_TRUE(CheckIdentityFile(EncodeIdentityFile(Identity()), Identity()).ok());
}

TEST(IdentityFile, IgnoresFieldsItDoesNotKnow) {
  EXPECT_TRUE(CheckIdentityFile(Replaced("{", "{\"comment\": \"mine\","), Identity()).ok());
}

TEST(IdentityFile, RefusesWhatIsNoIdentity) {
  for (const char* text : {"", "{", "[]", "1", "{}", "{\"format_version\": \"1\"}",
                           "{\"format_version\": -1}", "\xff"}) {
    ExpectRefused(text, ErrorCode::kCorrupt, "no JSON object with a format_version");
  }
}

TEST(IdentityFile, RefusesANewerFormat) {
  ExpectRefused(Replaced("\"format_version\": 1", "\"format_version\": 3"),
                ErrorCode::kIncompatible,
                "written by a newer format (3; this build knows up to 1): use another root_dir or "
                "upgrade");
}

TEST(IdentityFile, RefusesAnOlderOneThatNeverWas) {
  ExpectRefused(Replaced("\"format_version\": 1", "\"format_version\": 0"),
                ErrorCode::kIncompatible, "format_version is 0, wanted 1");
}

TEST(IdentityFile, NamesTheFieldThatDiffersOrIsMissing) {
  ExpectRefused(Replaced("\"digest\": \"", "\"digest\": \"0"), ErrorCode::kIncompatible,
                "digest is ");
  ExpectRefused(Replaced("\"dtype\": \"f16\"", "\"dtype\": \"f32\""), ErrorCode::kIncompatible,
                "dtype is \"f32\", wanted \"f16\"");
  ExpectRefused(Replaced("1099511627776", "5"), ErrorCode::kIncompatible, "chunk_bytes is 5");
  ExpectRefused(Replaced("\"engine\"", "\"engine2\""), ErrorCode::kCorrupt, "engine is missing");
}

}  // namespace
}  // namespace terrace
