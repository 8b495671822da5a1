// An engine without a model: a step takes processor time by the token, and the KV bytes of a chunk
// are a function of all tokens up to its end, so that wrong bytes show.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "matrix_engine.h"
#include "terrace/worker.h"

namespace terrace::matrix {

struct SyntheticOptions {
  std::uint32_t tokens_per_chunk = 64;
  std::uint64_t chunk_bytes = 1 << 20;  // A multiple of 8.
  std::uint32_t step_tokens = 512;      // Most tokens in one step.
  std::chrono::microseconds step_time{1'000};
  std::chrono::nanoseconds token_time{200'000};
};

class SyntheticEngine final : public MatrixEngine {
 public:
  explicit SyntheticEngine(const SyntheticOptions& options);
  ~SyntheticEngine() override;

  Result<void> Open(const NodeConfig& config) override;
  void Close() override;
  Node& node() override { return *node_; }
  std::uint32_t tokens_per_chunk() const override { return options_.tokens_per_chunk; }
  std::uint64_t chunk_bytes() const override { return options_.chunk_bytes; }
  Token vocabulary_size() const override { return 32'000; }
  void Submit(MatrixPrompt prompt, std::function<void(MatrixAnswer)> on_done) override;
  Result<bool> Step() override;
  MatrixWork TakeWork() override {
    return std::exchange(work_, {.tokens = 0, .step_s = {}, .last_end = work_.last_end});
  }

 private:
  // The "KV memory": a chunk for each block.
  class Memory final : public EngineMemory {
   public:
    Result<void> ReadChunk(std::span<const BlockId> blocks, std::span<std::byte> chunk) override;
    Result<void> WriteChunk(std::span<const std::byte> chunk,
                            std::span<const BlockId> blocks) override;
    std::vector<BlockId> Take(std::size_t count, std::uint64_t chunk_bytes);
    void GiveBack(const std::vector<BlockId>& blocks);
    std::vector<std::byte>& Of(BlockId block) {
      return blocks_[static_cast<std::size_t>(block.value)];
    }

   private:
    std::vector<std::vector<std::byte>> blocks_;
    std::vector<BlockId> free_;
  };
  enum class Phase : std::uint8_t { kWaiting, kLoading, kPrefill, kFinishing };
  struct Request {
    RequestId id;
    MatrixPrompt prompt;
    std::function<void(MatrixAnswer)> on_done;
    std::chrono::steady_clock::time_point submitted;
    Phase phase = Phase::kWaiting;
    std::vector<std::uint64_t> seeds;  // Of the bytes of each whole chunk.
    std::vector<BlockId> blocks;
    std::uint32_t loaded = 0;
    std::uint32_t in_memory = 0;  // Tokens.
    std::uint32_t scheduled = 0;  // In the present step.
    MatrixAnswer answer;
    std::uint32_t size() const { return static_cast<std::uint32_t>(prompt.tokens.size()); }
  };

  bool TryStart(Request& request);
  StepPlan Plan();
  void RunModel();
  void CollectTransfers();
  void Answer(Request& request);
  bool ReleaseFinished();

  const SyntheticOptions options_;
  std::unique_ptr<Node> node_;
  Digest identity_{};
  Memory memory_;
  std::unique_ptr<Worker> worker_;
  std::deque<std::unique_ptr<Request>> requests_;
  MatrixWork work_;
  std::uint64_t next_request_ = 1;
};

}  // namespace terrace::matrix
