// Chunks out of and into llama.cpp's KV memory, on a tiny model.

#include "llama_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "llama_runtime.h"

namespace terrace::llama {
namespace {

constexpr std::uint32_t kChunk = 32;

class LlamaKvTest : public testing::Test {
 protected:
  void SetUp() override {
    runtime_ = LlamaRuntime::Create({.model_path = TERRACE_TINY_MODEL,
                                     .context_tokens = 512,
                                     .sequences = 3,
                                     .step_tokens = 128,
                                     .threads = 1})
                   .value();
    kv_ = LlamaKv::Create(*runtime_, kChunk).value();
  }
  void Compute(std::int32_t sequence, std::int32_t first, std::int32_t count) {
    std::vector<BatchToken> batch;
    for (std::int32_t i = first; i < first + count; ++i) {
      batch.push_back({(i * 7 + 3) % 250, i, sequence, i + 1 == first + count});
    }
    ASSERT_EQ(runtime_->Decode(batch).value(), DecodeOutcome::kOk);
  }
  std::vector<std::byte> Read(std::int32_t sequence, std::uint32_t chunk) {
    std::vector<std::byte> bytes(kv_->chunk_bytes());
    const BlockId block = BlockOf(sequence, chunk);
    kv_->ReadChunk({&block, 1}, bytes).value();
    return bytes;
  }
  void Write(std::span<const std::byte> bytes, std::int32_t sequence, std::uint32_t chunk) {
    const BlockId block = BlockOf(sequence, chunk);
    kv_->WriteChunk(bytes, {&block, 1}).value();
  }

  std::unique_ptr<LlamaRuntime> runtime_;
  std::unique_ptr<LlamaKv> kv_;
};

TEST_F(LlamaKvTest, AChunkThatGoesOutAndComesBackIsTheSame) {
  Compute(0, 0, 3 * kChunk);
  const auto first = Read(0, 0);
  const auto second = Read(0, 1);
  EXPECT_NE(first, second);
  Write(first, 1, 0);
  Write(second, 1, 1);
  EXPECT_EQ(Read(1, 0), first);
  EXPECT_EQ(Read(1, 1), second);
  EXPECT_EQ(Read(0, 0), first) << "the original was touched";
}

// Whatever sequence and cells the tokens lie in: equal tokens computed alike are equal bytes.
TEST_F(LlamaKvTest, BytesDoNotDependOnSequenceOrCells) {
  Compute(0, 0, 2 * kChunk);
  const auto expected = Read(0, 1);
  runtime_->Truncate(0, 0);
  Compute(2, 0, 2 * kChunk);
  EXPECT_EQ(Read(2, 1), expected);
}

// Cells of another order than positions: what is restored last lies in cells that became free in
// the middle.
TEST_F(LlamaKvTest, RowsComeOutInOrderOfPosition) {
  Compute(0, 0, 4 * kChunk);
  std::vector<std::vector<std::byte>> chunks;
  for (std::uint32_t i = 0; i < 4; ++i) chunks.push_back(Read(0, i));
  // Chunk 3 goes first into low cells, token by token, in reverse order of position.
  runtime_->Truncate(0, 0);
  for (std::uint32_t i : {3U, 1U, 2U, 0U}) Write(chunks[i], 1, i);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(Read(1, i), chunks[i]) << i;

  // Holes: two sequences interleaved, one gives its cells up, and a chunk fills them.
  runtime_->Truncate(1, 0);
  std::vector<BatchToken> mixed;
  for (std::int32_t i = 0; i < 60; ++i) {
    mixed.push_back({5, i, 0, false});
    mixed.push_back({6, i, 2, i == 59});
  }
  ASSERT_EQ(runtime_->Decode(mixed).value(), DecodeOutcome::kOk);
  runtime_->Truncate(0, 0);
  Write(chunks[1], 1, 1);
  EXPECT_EQ(Read(1, 1), chunks[1]);
}

TEST_F(LlamaKvTest, WhatIsRestoredContinuesAsWhatWasComputed) {
  Compute(0, 0, 3 * kChunk);
  std::vector<std::vector<std::byte>> chunks;
  for (std::uint32_t i = 0; i < 3; ++i) chunks.push_back(Read(0, i));
  Compute(0, 3 * kChunk, 5);
  const Token expected = runtime_->Greedy(4);
  runtime_->Truncate(0, 0);
  for (std::uint32_t i = 0; i < 3; ++i) Write(chunks[i], 1, i);
  Compute(1, 3 * kChunk, 5);
  EXPECT_EQ(runtime_->Greedy(4), expected);
}

TEST_F(LlamaKvTest, TokensThatAreNotThereAreAnErrorNotBytes) {
  Compute(0, 0, kChunk / 2);
  std::vector<std::byte> bytes(kv_->chunk_bytes());
  const BlockId block = BlockOf(0, 0);
  EXPECT_FALSE(kv_->ReadChunk({&block, 1}, bytes).ok());
}

TEST_F(LlamaKvTest, AFullMemoryIsAnErrorAndLosesNothing) {
  Compute(0, 0, 128);
  const auto chunk = Read(0, 0);
  for (std::int32_t first = 128; first < 512; first += 128) Compute(0, first, 128);
  const BlockId block = BlockOf(1, 0);
  EXPECT_FALSE(kv_->WriteChunk(chunk, {&block, 1}).ok());
  EXPECT_EQ(Read(0, 0), chunk);
}

TEST_F(LlamaKvTest, AChunkLongerThanAStepIsRefused) {
  EXPECT_FALSE(LlamaKv::Create(*runtime_, 256).ok());
}

TEST(LlamaRuntimeTest, SaysWhatIsWrongWithAModel) {
  auto message = [](const std::string& path) {
    return LlamaRuntime::Create({.model_path = path}).error().message;
  };
  EXPECT_THAT(message("/nonexistent.gguf"), testing::HasSubstr("no such file"));
  EXPECT_THAT(message("/"), testing::HasSubstr("is a directory"));
  EXPECT_THAT(message("/proc/self/maps"), testing::HasSubstr("not a GGUF file"));
}

}  // namespace
}  // namespace terrace::llama
