// The engine without a model: that its answers tell right bytes from wrong ones.
#include "synthetic_engine.h"

#include <gtest/gtest.h>

#include <optional>

namespace terrace::matrix {
namespace {

constexpr SyntheticOptions kFast{.tokens_per_chunk = 4,
                                 .chunk_bytes = 4096,
                                 .step_tokens = 8,
                                 .step_time = std::chrono::microseconds(0),
                                 .token_time = std::chrono::nanoseconds(0)};

class SyntheticEngineTest : public ::testing::Test {
 protected:
  SyntheticEngineTest() {
    NodeConfig config;
    config.cpu_bytes_to_use = 1 << 20;
    EXPECT_TRUE(engine_.Open(config).ok());
  }

  MatrixAnswer Run(std::vector<Token> tokens, bool may_load = true) {
    std::optional<MatrixAnswer> answer;
    engine_.Submit({.tokens = std::move(tokens), .answer_tokens = 3, .may_load = may_load},
                   [&](MatrixAnswer done) { answer = std::move(done); });
    for (int i = 0; i < 1000 && !answer; ++i) EXPECT_TRUE(engine_.Step().ok());
    EXPECT_TRUE(answer);
    return answer.value_or(MatrixAnswer{});
  }

  SyntheticEngine engine_{kFast};
};

const std::vector<Token> kPrompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

TEST_F(SyntheticEngineTest, LoadsWhatItComputedAndAnswersTheSame) {
  const MatrixAnswer computed = Run(kPrompt);
  EXPECT_EQ(computed.computed_tokens, 13u);
  EXPECT_EQ(computed.tokens.size(), 3u);
  EXPECT_TRUE(computed.bytes_right);
  const MatrixAnswer loaded = Run(kPrompt);
  EXPECT_EQ(loaded.computed_tokens, 1u);
  EXPECT_EQ(loaded.fetched_tokens, 0u) << "from its own memory";
  EXPECT_EQ(loaded.tokens, computed.tokens);
  EXPECT_TRUE(loaded.bytes_right);
}

TEST_F(SyntheticEngineTest, AnotherPromptHasAnotherAnswer) {
  std::vector<Token> other = kPrompt;
  other[0] = 99;
  EXPECT_NE(Run(other).tokens, Run(kPrompt).tokens);
}

TEST_F(SyntheticEngineTest, AWrongByteShows) {
  const MatrixAnswer computed = Run(kPrompt);
  const HostSlots slots = engine_.node().host_slots();
  // In every slot, since nobody says which ones have the prompt.
  for (std::size_t i = 0; i < slots.slot_count; ++i) {
    slots.Slot(SlotId(static_cast<std::uint32_t>(i)))[100] ^= std::byte{1};
  }
  const MatrixAnswer loaded = Run(kPrompt);
  EXPECT_EQ(loaded.computed_tokens, 1u);
  EXPECT_FALSE(loaded.bytes_right);
}

TEST_F(SyntheticEngineTest, ComputesWhatItMayNotLoad) {
  Run(kPrompt);
  EXPECT_EQ(Run(kPrompt, /*may_load=*/false).computed_tokens, 13u);
}

TEST_F(SyntheticEngineTest, TellsItsWork) {
  Run(kPrompt);
  const MatrixWork work = engine_.TakeWork();
  EXPECT_EQ(work.tokens, 13u);
  EXPECT_EQ(work.step_s.size(), 2u) << "8 tokens, then 5";
  EXPECT_EQ(engine_.TakeWork().tokens, 0u);
  EXPECT_EQ(engine_.TakeWork().last_end, work.last_end);
}

TEST_F(SyntheticEngineTest, OpensAnotherNodeThatHasNothing) {
  Run(kPrompt);
  engine_.Close();
  NodeConfig config;
  config.cpu_bytes_to_use = 1 << 20;
  ASSERT_TRUE(engine_.Open(config).ok());
  EXPECT_EQ(Run(kPrompt).computed_tokens, 13u);
}

}  // namespace
}  // namespace terrace::matrix
