#include "prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace::llama {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::vector<Prompt> Parse(std::string_view jsonl) { return ParsePrompts(jsonl, "p.jsonl").value(); }

std::string Faults(std::string_view jsonl) {
  const auto prompts = ParsePrompts(jsonl, "p.jsonl");
  return prompts.ok() ? "" : prompts.error().message;
}

TEST(Prompts, ReadsEveryKey) {
  const auto prompts =
      Parse(R"({"id":"a","prompt":"text","max_tokens":7,"salt":"s","cache":"none","cuts":"free"}

{"tokens":[1,2],"continues":"a","cut_like":"a","cache":"keep"})");
  ASSERT_THAT(prompts, SizeIs(2));
  EXPECT_EQ(prompts[0].id, "a");
  EXPECT_EQ(prompts[0].text, "text");
  EXPECT_EQ(prompts[0].max_tokens, 7u);
  EXPECT_EQ(prompts[0].salt, "s");
  EXPECT_EQ(prompts[0].cache, CacheMode::kNone);
  EXPECT_EQ(prompts[0].cuts, Cuts::kFree);
  EXPECT_EQ(prompts[1].id, "line 3");
  EXPECT_THAT(prompts[1].tokens, testing::ElementsAre(1, 2));
  EXPECT_EQ(prompts[1].continues, "a");
  EXPECT_EQ(prompts[1].cut_like, "a");
  EXPECT_EQ(prompts[1].cache, CacheMode::kKeep);
}

TEST(Prompts, ReadsWhichNodesAPromptConcerns) {
  const auto prompts = Parse(R"({"prompt": "x"}
{"prompt": "x", "kv_transfer_params": {"remote_kv_source": {"remote_host": "a", "remote_port": 7}}})");
  ASSERT_THAT(prompts, SizeIs(2));
  EXPECT_EQ(prompts[0].route, nullptr);
  ASSERT_NE(prompts[1].route, nullptr);
  EXPECT_EQ(prompts[1].route->source->address, (PeerAddress{"a", 7}));
  EXPECT_THAT(Faults(R"({"prompt": "x", "kv_transfer_params": {"remote_kv_source": {}}})"),
              HasSubstr("line 1: kv_transfer_params is wrong: remote_kv_source.remote_host: is "
                        "missing;remote_kv_source.remote_port: is missing"));
  EXPECT_THAT(Faults(R"({"prompt": "x", "kv_transfer_params": 7})"),
              HasSubstr("must be an object"));
}

TEST(Prompts, NamesEveryFaultyLine) {
  const std::string faults = Faults(
      "{\"prompt\":\"ok\"}\n{oops\n[1]\n{\"prompt\":3}\n{\"prompt\":\"x\",\"promt\":1}\n{}\n"
      "{\"prompt\":\"x\",\"max_tokens\":0}\n{\"prompt\":\"x\",\"cache\":\"maybe\"}\n"
      "{\"prompt\":\"x\",\"cuts\":\"free\"}\n{\"prompt\":\"x\",\"continues\":\"later\"}\n"
      "{\"prompt\":\"x\",\"tokens\":[1]}\n{\"tokens\":[-1]}\n{\"id\":\"line "
      "1\",\"prompt\":\"x\"}\n");
  EXPECT_THAT(faults, HasSubstr("p.jsonl"));
  EXPECT_THAT(faults, HasSubstr("line 2: is not valid JSON"));
  EXPECT_THAT(faults, HasSubstr("line 3: is not a JSON object"));
  EXPECT_THAT(faults, HasSubstr("line 4: prompt is not a string"));
  EXPECT_THAT(faults, HasSubstr("line 5: \"promt\" is not a key"));
  EXPECT_THAT(faults, HasSubstr("line 6: prompt is missing"));
  EXPECT_THAT(faults, HasSubstr("line 7: max_tokens is not a number from 1"));
  EXPECT_THAT(faults, HasSubstr("line 8: cache is \"maybe\", not one of"));
  EXPECT_THAT(faults, HasSubstr("line 9: cuts can be \"free\" only"));
  EXPECT_THAT(faults, HasSubstr("line 10: continues names \"later\""));
  EXPECT_THAT(faults, HasSubstr("line 11: prompt and tokens are both given"));
  EXPECT_THAT(faults, HasSubstr("line 12: tokens is not a list"));
  EXPECT_THAT(faults, HasSubstr("line 13: id \"line 1\" is on line 1 already"));
  EXPECT_THAT(faults, testing::Not(HasSubstr("line 1:")));
}

TEST(Prompts, AKeyGivenTwiceIsAFault) {
  EXPECT_THAT(Faults(R"({"prompt":"a","prompt":"b"})"), HasSubstr("\"prompt\" is given twice"));
}

TEST(Prompts, AnEmptyFileIsAnErrorAndWindowsLineEndsAreNot) {
  EXPECT_THAT(Faults("\n \n"), HasSubstr("has none"));
  EXPECT_THAT(Parse("{\"prompt\":\"x\"}\r\n{\"prompt\":\"y\"}\r\n"), SizeIs(2));
}

TEST(Prompts, BytesThatAreNotUtf8AreAFaultOfTheirLine) {
  EXPECT_THAT(Faults("{\"prompt\":\"\xff\xfe\"}"), HasSubstr("line 1: is not valid JSON"));
}

TEST(Prompts, AMissingFileOrADirectoryIsNamed) {
  const auto prompts = LoadPrompts("/nonexistent/p.jsonl", nullptr);
  ASSERT_FALSE(prompts.ok());
  EXPECT_THAT(prompts.error().message, HasSubstr("/nonexistent/p.jsonl"));
  EXPECT_THAT(LoadPrompts("/tmp", nullptr).error().message, HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace terrace::llama
