#include "node/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string FaultsOf(std::string_view text) {
  Faults faults;
  const auto document = ReadJson(text, faults);
  EXPECT_FALSE(faults.empty()) << text;
  return faults.ToString();
}

std::string Nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ReadJson, ReadsEveryKindOfValue) {
  constexpr std::string_view kText =
      R"({"a": [1, -2, 2.5, "x", true, false, null, {}, []], "b": {"c": {"a": 1}, "d": 3}})";
  Faults faults;
  const auto document = ReadJson(kText, faults);
  ASSERT_TRUE(document);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(*document, nlohmann::json::parse(kText));
}

TEST(ReadJson, TakesSpaceAndAByteOrderMark) {
  Faults faults;
  EXPECT_EQ(ReadJson("\xEF\xBB\xBF \r\n\t7 \n", faults), nlohmann::json(7));
}

TEST(ReadJson, NamesLineAndColumnOfASyntaxError) {
  EXPECT_THAT(FaultsOf("{\"a\": 1,\n  \"b\" 2}"), StartsWith("line 2, column 7: is not JSON: "));
  EXPECT_THAT(FaultsOf("{\"a\": 1"), StartsWith("line 1, column 8: is not JSON: "));
  EXPECT_THAT(FaultsOf("{\"a\": 1,}"), StartsWith("line 1, column 9: is not JSON: "));
  EXPECT_THAT(FaultsOf("\n\nx"), StartsWith("line 3, column 1: is not JSON: "));
  EXPECT_THAT(FaultsOf("{\"a\"\n: \"b\nc\"}"), StartsWith("line 2, column 5: is not JSON: "));
}

TEST(ReadJson, RefusesWhatSomeParsersAllow) {
  for (const char* text : {"{'a': 1}", "{a: 1}", "{\"a\": 1} // b", "/* a */ {}", "{\"a\": NaN}",
                           "{\"a\": Infinity}", "{\"a\": +1}", "{\"a\": 01}", "{\"a\": .5}",
                           "{\"a\": 0x10}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"}) {
    EXPECT_THAT(FaultsOf(text), HasSubstr("is not JSON: ")) << text;
  }
}

TEST(ReadJson, ShowsNoRawBytesAndNoLongOnes) {
  const std::string faults = FaultsOf("{\"a\": \"\x7f\xc3\xa9\x1b" + std::string(5000, 'x') + "}");
  EXPECT_LT(faults.size(), 300u);
  for (const char c : faults) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
  EXPECT_LT(FaultsOf("{\"" + std::string(5000, 'x')).size(), 300u);
}

TEST(ReadJson, RefusesTextAfterTheDocument) {
  EXPECT_THAT(FaultsOf("{} {}"), StartsWith("line 1, column 4: is not JSON: "));
}

TEST(ReadJson, RefusesANulByteEvenAfterTheDocument) {
  EXPECT_THAT(FaultsOf(std::string_view("{}\n\0 rubbish", 12)),
              StartsWith("line 2, column 1: is not JSON: a NUL byte"));
}

TEST(ReadJson, SaysThatNothingIsThere) {
  EXPECT_THAT(FaultsOf(""), StartsWith("document: is empty"));
  EXPECT_THAT(FaultsOf(" \r\n\t"), StartsWith("document: is empty"));
}

TEST(ReadJson, RefusesTheTooLong) {
  const std::string longest = "7" + std::string(kMaxDocumentBytes - 1, ' ');
  Faults faults;
  EXPECT_TRUE(ReadJson(longest, faults));
  EXPECT_THAT(FaultsOf(longest + " "), StartsWith("document: has more than 1048576 bytes"));
}

TEST(ReadJson, RefusesTheTooDeep) {
  Faults faults;
  EXPECT_TRUE(ReadJson(Nested(kMaxDocumentDepth), faults));
  EXPECT_THAT(FaultsOf(Nested(kMaxDocumentDepth + 1)),
              HasSubstr("[0][0]: is nested deeper than 16 levels"));
  EXPECT_THAT(FaultsOf(Nested(kMaxDocumentBytes / 2)), HasSubstr("is nested deeper"));
}

TEST(ReadJson, NamesKeysGivenTwiceAndGoesOn) {
  Faults faults;
  const auto document =
      ReadJson(R"({"a": [0, {"b": 1, "c": {"b": 1}, "b": 2}], "d": 1, "a": 3})", faults);
  EXPECT_EQ(faults.ToString(), "a[1].b: is given more than once\na: is given more than once");
  ASSERT_TRUE(document);
  EXPECT_EQ(*document, nlohmann::json::parse(R"({"a": 3, "d": 1})"));
}

TEST(ReadJson, NamesAKeyGivenTwiceAlsoIfASyntaxErrorFollows) {
  EXPECT_THAT(FaultsOf(R"({"a": 1, "a": 2, )"),
              StartsWith("a: is given more than once\nline 1, column 18: is not JSON: "));
}

}  // namespace
}  // namespace terrace
