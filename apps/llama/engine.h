// Serves prompts with continuous batching over one llama.cpp context, its KV cache kept by a
// Terrace node.
//
// A step: waiting requests are matched against the cache and started where a sequence and cells are
// free; the connector plans; loads are copied in; one decode runs over one token of each answering
// request and whole chunks of prefilling ones; tokens are taken; what is new is copied out. A
// request that waits for a promotion or a load holds up nobody else's step.
//
// Prefill steps end on chunk boundaries, the last boundary before a prompt's end among them. Which
// floating-point result llama.cpp gives depends on where steps are cut, so this is what makes a
// restored run repeat a recomputed one exactly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llama_kv.h"
#include "llama_runtime.h"
#include "prompts.h"
#include "terrace/chunk_key.h"
#include "terrace/node.h"
#include "terrace/result.h"
#include "terrace/worker.h"

namespace terrace::llama {

struct EngineOptions {
  std::uint32_t max_tokens = 32;    // Default for prompts that don't say.
  bool ignore_end_of_text = false;  // Always generate max_tokens.
  bool verify =
      false;  // Hash chunks when stored, and again in the KV memory after they were restored.
  std::uint64_t load_bytes_per_step = 64ULL << 20;
};

// A chunk's name and the XXH3-64 of its bytes.
struct ChunkHash {
  ChunkKey key;
  std::uint64_t hash;
};

struct Answer {
  std::string id;
  std::string error;  // Empty if all went well.
  std::vector<Token> prompt_tokens;
  std::vector<Token> tokens;
  LoadedTokens loaded;
  std::uint32_t kept_tokens = 0;      // Taken over from a kept sequence.
  std::uint32_t computed_tokens = 0;  // Of the prompt.
  std::uint64_t bytes_loaded = 0;
  std::uint64_t bytes_stored = 0;
  double ttft_s = 0;  // From submission to the first token.
  double total_s = 0;
  std::uint32_t steps_waited = 0;   // Scheduler steps between submission and start.
  std::vector<ChunkHash> stored;    // With verify: as copied out.
  std::vector<ChunkHash> restored;  // With verify: as read back from the KV memory at the end.
};

// Model steps since the engine was made.
struct EngineStats {
  std::uint64_t steps = 0;
  std::uint64_t steps_of_several = 0;  // With tokens of more than one request.
  std::uint64_t mixed_steps = 0;       // With prefill and answering together.
  std::uint64_t tokens = 0;            // Computed.
  std::chrono::nanoseconds model_time{0};
  std::chrono::steady_clock::time_point last_end{};  // Of a step.
};

// Confined to one thread.
class Engine {
 public:
  // References outlive the engine. `stop` may be null.
  Engine(LlamaRuntime& runtime, LlamaKv& kv, Node& node, const KeyScope& scope,
         const EngineOptions& options, const std::atomic<bool>* stop);
  ~Engine();

  // Queues a prompt; a prompt that continues one that is not finished waits for it. `on_done` is
  // called from Step().
  void Submit(const Prompt& prompt, std::function<void(Answer)> on_done);
  // What the request that has waited longest is doing, for a person who waits.
  std::string Progress() const;
  const EngineStats& stats() const { return stats_; }
  // One scheduler step. False once there is nothing left to do. An error is final.
  Result<bool> Step();

 private:
  enum class Phase : std::uint8_t { kWaiting, kLoading, kPrefill, kAnswering, kFinishing };
  struct Request {
    RequestId id;
    Prompt prompt;
    std::function<void(Answer)> on_done;
    std::chrono::steady_clock::time_point submitted;
    Phase phase = Phase::kWaiting;
    std::int32_t sequence = -1;
    std::vector<Token> tokens;  // Prompt and answer.
    std::uint32_t prompt_size = 0;
    std::uint32_t extra_cut = 0;  // Where a prefill step must end too; 0 for nowhere.
    std::uint32_t in_memory = 0;  // Tokens in KV memory.
    std::uint32_t max_tokens = 0;
    std::uint32_t blocks_told = 0;    // Chunks whose blocks the connector knows.
    std::unique_ptr<KeyChain> chain;  // If cached by Terrace.
    std::size_t keys_told = 0;
    Answer answer;
  };
  // What is left of a finished prompt for those that continue it.
  struct Finished {
    std::vector<Token> tokens;
    std::uint32_t restored = 0;
    std::int32_t kept_sequence = -1;
    std::uint32_t in_memory = 0;
  };
  struct Piece {
    Request* request;
    std::size_t first_index;  // In the batch.
    std::uint32_t tokens;
  };

  void Prepare(std::unique_ptr<Request>& slot);
  void Admit();
  bool TryStart(Request& request);
  std::uint32_t CellsInUse() const;
  bool HasRoomFor(const Request& request) const;
  void DropKept();
  bool TakeOverKept(Request& request);
  void StartLoad(Request& request, std::uint32_t tokens);
  std::vector<Piece> FillBatch();
  std::uint32_t PieceTokens(const Request& request, std::uint32_t budget) const;
  StepPlan Plan(const std::vector<Piece>& pieces);
  void TellBlocks(Request& request, std::uint32_t tokens, std::vector<BlockId>& blocks) const;
  void TellKeys(Request& request);
  void CollectTransfers(const StepPlan& plan);
  void OnLoadDone(Request& request, const TransferResult& result);
  void OnStoreDone(Request& request, const TransferResult& result, const StepPlan& plan);
  void CountStep(const std::vector<Piece>& pieces);
  Result<void> Decode(const std::vector<Piece>& pieces);
  void TakeTokens(const std::vector<Piece>& pieces);
  void AddToken(Request& request, Token token);
  void Finish(Request& request, std::string error);
  bool ReleaseFinished();
  void HashRestored(Request& request);
  Request* Find(RequestId id);

  LlamaRuntime& runtime_;
  LlamaKv& kv_;
  Node& node_;
  const KeyScope scope_;
  const EngineOptions options_;
  const std::atomic<bool>* const stop_;
  Worker worker_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::deque<std::unique_ptr<Request>> running_;
  std::uint32_t kept_cells_ = 0;  // Of all kept sequences.
  std::map<std::string, Finished> finished_;
  std::vector<std::int32_t> free_sequences_;
  std::vector<BatchToken> batch_;
  std::vector<std::byte> scratch_chunk_;
  EngineStats stats_;
  std::uint64_t next_request_ = 1;
};

}  // namespace terrace::llama
