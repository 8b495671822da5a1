// The whole path on a tiny model: prompts in, chunks out to host memory and a tier, and back.

#include "engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "terrace/cache_identity.h"

namespace terrace::llama {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kChunk = 32;

struct Setup {
  std::uint32_t slots = 64;
  std::uint32_t context = 2048;
  std::uint32_t parallel = 4;
  std::string tiers = "[]";
  std::uint64_t load_bytes_per_step = 64 << 20;
};

// An engine and all it stands on.
class TestEngine {
 public:
  explicit TestEngine(const Setup& setup = {}) {
    runtime_ = LlamaRuntime::Create({.model_path = TERRACE_TINY_MODEL,
                                     .context_tokens = setup.context,
                                     .sequences = setup.parallel,
                                     .step_tokens = 128,
                                     .threads = 1,
                                     .stop = &stop})
                   .value();
    kv_ = LlamaKv::Create(*runtime_, kChunk).value();
    const auto identity = CacheIdentity::Create({.model = "tiny",
                                                 .revision = "1",
                                                 .dtype = kv_->dtype(),
                                                 .layout = "llama-kv-rows",
                                                 .layout_version = 1,
                                                 .tokens_per_chunk = kChunk,
                                                 .chunk_bytes = kv_->chunk_bytes(),
                                                 .shard_index = 0,
                                                 .shard_count = 1,
                                                 .engine = "test"})
                              .value();
    const std::size_t stride = (kv_->chunk_bytes() + 4095) / 4096 * 4096;
    const std::string config =
        "{\"cpu_bytes_to_use\": " + std::to_string(stride * setup.slots) +
        ", \"tokens_per_chunk\": 32, \"offload_prompt_only\": false, \"secondary_tiers\": " +
        setup.tiers + "}";
    node_ = Node::Create(ParseNodeConfig(config).value(), identity).value();
    scope_.identity = identity.digest();
    scope_.tokens_per_chunk = kChunk;
    options_ = {.max_tokens = 32,
                .ignore_end_of_text = true,
                .verify = true,
                .load_bytes_per_step = setup.load_bytes_per_step};
    ReplaceEngine();
  }

  void ReplaceEngine() {
    engine_.reset();
    engine_ = std::make_unique<Engine>(*runtime_, *kv_, *node_, scope_, options_, &stop);
  }

  void Submit(const Prompt& prompt) {
    engine_->Submit(prompt, [this](Answer answer) {
      const std::string id = answer.id;
      answers.emplace(id, std::move(answer));
    });
  }
  // Steps until nothing is left to do; a bound, so that a livelock is a failure and not a hang.
  Result<void> RunToEnd() {
    for (int i = 0; i < 20'000; ++i) {
      auto stepped = engine_->Step();
      if (!stepped.ok()) return std::move(stepped).error();
      if (!stepped.value()) return {};
    }
    return Error{ErrorCode::kUnavailable, "not done after 20000 steps"};
  }
  Answer Ask(const Prompt& prompt) {
    Submit(prompt);
    RunToEnd().value();
    return answers.at(prompt.id);
  }
  ManagerStats Stats() {
    ManagerRegion region(node_->manager());
    return node_->manager().Stats();
  }
  // Nothing is held once nothing runs.
  void ExpectQuiet() {
    node_->Drain(std::chrono::seconds(10));
    EXPECT_EQ(Stats().pinned_chunks, 0u);
    EXPECT_EQ(Stats().writing_chunks, 0u);
  }

  Node& node() { return *node_; }
  Engine& engine() { return *engine_; }
  void DestroyEngine() { engine_.reset(); }

  std::atomic<bool> stop{false};
  std::map<std::string, Answer> answers;

 private:
  std::unique_ptr<LlamaRuntime> runtime_;
  std::unique_ptr<LlamaKv> kv_;
  std::unique_ptr<Node> node_;
  KeyScope scope_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

std::string Text(std::size_t size, int seed = 1) {
  std::string text;
  std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761U;
  while (text.size() < size) {
    state = state * 1664525U + 1013904223U;
    text.push_back(static_cast<char>('a' + (state >> 24) % 26));
  }
  return text;
}

Prompt MakePrompt(const std::string& id, const std::string& text,
                  CacheMode cache = CacheMode::kTerrace) {
  Prompt prompt;
  prompt.id = id;
  prompt.text = text;
  prompt.cache = cache;
  return prompt;
}

void ExpectRestoredBytesAreStoredBytes(const TestEngine& engine) {
  std::map<ChunkKey, std::uint64_t> stored;
  for (const auto& [id, answer] : engine.answers) {
    for (const ChunkHash& chunk : answer.stored) stored.emplace(chunk.key, chunk.hash);
  }
  for (const auto& [id, answer] : engine.answers) {
    EXPECT_EQ(answer.restored.size() * kChunk, answer.loaded.total()) << id;
    for (const ChunkHash& chunk : answer.restored)
      EXPECT_EQ(stored.at(chunk.key), chunk.hash) << id;
  }
}

TEST(Engine, ARestoredPromptIsAnsweredAsARecomputedOne) {
  TestEngine engine;
  const std::string text = Text(300);
  const Answer first = engine.Ask(MakePrompt("first", text));
  const Answer host = engine.Ask(MakePrompt("host", text));
  const Answer recomputed = engine.Ask(MakePrompt("recomputed", text, CacheMode::kNone));
  EXPECT_EQ(first.loaded.total(), 0u);
  EXPECT_EQ(host.loaded.total(), 9 * kChunk);
  EXPECT_EQ(host.computed_tokens + host.loaded.total(), host.prompt_tokens.size());
  EXPECT_EQ(host.tokens.size(), 32u);
  EXPECT_EQ(host.tokens, recomputed.tokens);
  EXPECT_EQ(first.tokens, recomputed.tokens);
  ExpectRestoredBytesAreStoredBytes(engine);
  engine.ExpectQuiet();
}

TEST(Engine, APrefixIsSharedAndAPromptOfWholeChunksStillComputesItsLastToken) {
  TestEngine engine;
  const std::string shared = Text(200);
  engine.Ask(MakePrompt("a", shared + Text(50, 2)));
  const Answer b = engine.Ask(MakePrompt("b", shared + Text(70, 3)));
  EXPECT_EQ(b.loaded.total(), 6 * kChunk);
  Prompt like = MakePrompt("b recomputed", shared + Text(70, 3), CacheMode::kNone);
  like.cut_like = "b";
  EXPECT_EQ(engine.Ask(like).tokens, b.tokens);

  Prompt whole;
  whole.id = "whole";
  whole.tokens = std::vector<Token>(4 * kChunk, 65);
  engine.Ask(whole);
  whole.id = "whole again";
  EXPECT_EQ(engine.Ask(whole).loaded.total(), 3 * kChunk);
  engine.ExpectQuiet();
}

TEST(Engine, AnotherSaltSharesNothing) {
  TestEngine engine;
  Prompt prompt = MakePrompt("tenant 1", Text(200));
  prompt.salt = "1";
  engine.Ask(prompt);
  prompt.id = "tenant 2";
  prompt.salt = "2";
  EXPECT_EQ(engine.Ask(prompt).loaded.total(), 0u);
  prompt.id = "nobody";
  prompt.salt = "";
  EXPECT_EQ(engine.Ask(prompt).loaded.total(), 0u);
  prompt.id = "tenant 1 again";
  prompt.salt = "1";
  EXPECT_EQ(engine.Ask(prompt).loaded.total(), 6 * kChunk);
}

// Chunks of generated tokens: the reference is an engine that keeps its own cache.
TEST(Engine, AGrowingConversationIsAnsweredAsByAnEngineThatKeptItsCache) {
  TestEngine engine;
  for (const auto& [suffix, cache] :
       {std::pair("", CacheMode::kTerrace), std::pair(" kept", CacheMode::kKeep)}) {
    Prompt turn = MakePrompt(std::string("1") + suffix, Text(150), cache);
    turn.max_tokens = 80;
    engine.Ask(turn);
    for (int i = 2; i <= 3; ++i) {
      Prompt next = MakePrompt(std::to_string(i) + suffix, Text(20, i), cache);
      next.continues = std::to_string(i - 1) + suffix;
      next.max_tokens = 40;
      engine.Ask(next);
    }
  }
  for (const std::string id : {"2", "3"}) {
    const Answer& restored = engine.answers.at(id);
    const Answer& kept = engine.answers.at(id + " kept");
    EXPECT_EQ(restored.prompt_tokens, kept.prompt_tokens);
    EXPECT_EQ(restored.tokens, kept.tokens);
    EXPECT_EQ(restored.loaded.total(), kept.kept_tokens);
    EXPECT_GT(restored.loaded.total(), 150u) << "no chunk of the answer was restored";
  }
  ExpectRestoredBytesAreStoredBytes(engine);
  engine.ExpectQuiet();
}

TEST(Engine, ChunksComeBackFromATierOnceHostMemoryHasForgottenThem) {
  TestEngine engine({.slots = 12, .tiers = R"([{"type": "memory", "bytes": "64MiB"}])"});
  const std::string text = Text(300);
  const Answer first = engine.Ask(MakePrompt("first", text));
  engine.node().Drain(std::chrono::seconds(10));
  engine.Ask(MakePrompt("other", Text(350, 9)));
  engine.node().Drain(std::chrono::seconds(10));
  const Answer again = engine.Ask(MakePrompt("again", text));
  EXPECT_GT(again.loaded.by_source[static_cast<int>(LoadSource::kMemory)], 0u);
  EXPECT_EQ(again.tokens, first.tokens);
  ExpectRestoredBytesAreStoredBytes(engine);
  engine.ExpectQuiet();
}

// Many prompts at once, sharing prefixes, in a context and a host memory that do not hold all of
// them. Answers may differ in floating point from those of a lone prompt; bytes may not, and
// everybody is served.
TEST(Engine, ServesManyAtOnce) {
  TestEngine engine({.slots = 24,
                     .context = 1024,
                     .parallel = 3,
                     .tiers = R"([{"type": "memory", "bytes": "64MiB"}])",
                     .load_bytes_per_step = 1});
  for (int i = 0; i < 12; ++i) {
    engine.Submit(MakePrompt(
        "p" + std::to_string(i),
        Text(100 + 20 * (i % 3), i % 3) + Text(static_cast<std::size_t>(13 * i + 1), i)));
  }
  engine.RunToEnd().value();
  EXPECT_EQ(engine.answers.size(), 12u);
  std::uint32_t loaded = 0;
  for (const auto& [id, answer] : engine.answers) {
    EXPECT_EQ(answer.error, "") << id;
    EXPECT_EQ(answer.tokens.size(), 32u) << id;
    loaded += answer.loaded.total();
  }
  EXPECT_GT(loaded, 0u);
  EXPECT_GT(engine.engine().stats().steps_of_several, 0u);
  EXPECT_GT(engine.engine().stats().mixed_steps, 0u);
  ExpectRestoredBytesAreStoredBytes(engine);
  engine.ExpectQuiet();
}

// A kept sequence in the way, a prompt without room, and one that waits for that prompt: nobody
// waits for ever.
TEST(Engine, AKeptSequenceGivesWayToAPromptWithoutRoom) {
  TestEngine engine({.context = 512, .parallel = 2});
  engine.Ask(MakePrompt("kept", Text(300), CacheMode::kKeep));
  engine.Submit(MakePrompt("large", Text(300, 2)));
  Prompt follower = MakePrompt("follower", "x");
  follower.continues = "large";
  engine.Submit(follower);
  engine.RunToEnd().value();
  EXPECT_EQ(engine.answers.at("follower").error, "");
}

// Small prompts do not overtake a large one for ever.
TEST(Engine, WhoWaitsForRoomIsNotOvertaken) {
  TestEngine engine({.context = 512, .parallel = 4});
  std::vector<std::string> order;
  auto submit = [&](const std::string& id, std::size_t size) {
    engine.engine().Submit(MakePrompt(id, Text(size, static_cast<int>(order.size()))),
                           [&order, id](const Answer&) { order.push_back(id); });
  };
  submit("first", 100);
  submit("large", 450);
  for (int i = 0; i < 5; ++i) submit("small " + std::to_string(i), 30);
  engine.RunToEnd().value();
  EXPECT_EQ(order.at(1), "large");
}

// Whatever state its requests are in when an engine goes, another one can use the node.
TEST(Engine, ANodeOutlivesItsEngine) {
  TestEngine engine({.context = 512, .parallel = 2});
  for (int i = 0; i < 4; ++i) engine.Submit(MakePrompt(std::to_string(i), Text(200, i)));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.engine().Step().ok());
  engine.ReplaceEngine();
  engine.ExpectQuiet();
  EXPECT_EQ(engine.Ask(MakePrompt("after", Text(200, 0))).error, "");
  engine.ExpectQuiet();
}

TEST(Engine, HostMemoryOfOneChunkIsEnoughToServe) {
  TestEngine engine({.slots = 1});
  const std::string text = Text(300);
  const Answer first = engine.Ask(MakePrompt("first", text));
  const Answer second = engine.Ask(MakePrompt("second", text));
  EXPECT_EQ(second.loaded.total(), kChunk);
  EXPECT_EQ(first.tokens, second.tokens);
  engine.ExpectQuiet();
}

TEST(Engine, APromptThatDoesNotFitIsAnsweredWithAReason) {
  TestEngine engine({.context = 256});
  engine.Submit(MakePrompt("long", Text(300)));
  Prompt follower = MakePrompt("follower", "more");
  follower.continues = "long";
  engine.Submit(follower);
  engine.Submit(MakePrompt("short", Text(40)));
  Prompt alien;
  alien.id = "alien";
  alien.tokens = {1, 2, 1'000'000};
  engine.Submit(alien);
  engine.RunToEnd().value();
  EXPECT_THAT(engine.answers.at("long").error, HasSubstr("the context holds 256"));
  EXPECT_THAT(engine.answers.at("follower").error, HasSubstr("the context holds 256"));
  EXPECT_THAT(engine.answers.at("alien").error,
              HasSubstr("1000000 is not in the model's vocabulary"));
  EXPECT_EQ(engine.answers.at("short").error, "");
}

TEST(Engine, StoppingInTheMiddleHoldsNothing) {
  TestEngine engine({.tiers = R"([{"type": "memory", "bytes": "64MiB"}])"});
  engine.Ask(MakePrompt("before", Text(300)));
  for (int i = 0; i < 4; ++i) engine.Submit(MakePrompt(std::to_string(i), Text(300, i % 2 + 1)));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.engine().Step().ok());
  engine.stop = true;
  const auto stopped = engine.RunToEnd();
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  engine.DestroyEngine();
  engine.ExpectQuiet();
}

}  // namespace
}  // namespace terrace::llama
