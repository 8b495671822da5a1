// An engine in eighty lines: it "computes" one byte per token, and has Terrace keep what it
// computed.
//
// The first request computes its prompt and stores it; the second has the same beginning and loads
// that.
#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "terrace/node.h"

using namespace terrace;  // NOLINT: an example

constexpr std::uint32_t kChunk = 64;  // Tokens, and here bytes too.

// The engine's KV memory: a chunk of bytes for each block.
struct ToyMemory final : EngineMemory {
  Result<void> ReadChunk(std::span<const BlockId> from, std::span<std::byte> chunk) override {
    std::copy(bytes[from[0]].begin(), bytes[from[0]].end(), chunk.begin());
    return {};
  }
  Result<void> WriteChunk(std::span<const std::byte> chunk, std::span<const BlockId> to) override {
    bytes[to[0]].assign(chunk.begin(), chunk.end());
    return {};
  }
  std::map<BlockId, std::vector<std::byte>> bytes;
};

// Serves one request; says how many of its tokens it did not have to compute.
std::uint32_t Serve(Node& node, Worker& worker, ToyMemory& memory, const Digest& identity,
                    RequestId id, const std::vector<Token>& tokens) {
  Connector& connector = node.connector();
  KeyChain chain({identity, /*salt=*/"", /*adapter=*/"", /*group=*/0, kChunk});
  chain.Append(tokens);
  std::vector<BlockId> blocks;
  for (std::size_t i = 0; i < chain.keys().size(); ++i) blocks.emplace_back(id.value * 1000 + i);
  const auto size = static_cast<std::uint32_t>(tokens.size());

  connector.OnNewRequest(id, {.prompt_tokens = size});
  connector.AppendKeys(id, chain.keys());
  MatchedTokens match;
  while ((match = connector.GetMatchedTokens(id, 0, size - 1)).status ==
         MatchedTokens::Status::kLater) {
    connector.BuildStep({});  // It is on its way from a tier: other requests would go on here.
    node.WaitForProgress(std::chrono::milliseconds(10));
  }
  connector.UpdateAfterAlloc(id, blocks, 0, match.tokens);
  const ScheduledRequest step{id, {}, match.tokens, size - match.tokens};
  connector.OnRequestFinished(id, size);  // After this step, that is: it generates nothing.
  StepPlan plan = connector.BuildStep({.scheduled = {&step, 1}, .preempted = {}});

  worker.SubmitLoads(std::move(plan.loads));
  worker.RunLoads(UINT64_MAX);
  for (std::size_t i = match.tokens / kChunk; i < blocks.size(); ++i) {  // The "model".
    memory.bytes[blocks[i]].assign(kChunk, static_cast<std::byte>(i));
  }
  worker.SubmitStores(std::move(plan.stores));
  worker.RunStores();
  connector.OnTransfersDone(worker.TakeFinished());
  return match.tokens;
}

// embed [CONFIGURATION FILE]
int main(int argc, char** argv) {
  // Model, revision, dtype, layout and its version, tokens and bytes per chunk, shard of how many,
  // engine.
  const auto identity =
      CacheIdentity::Create({"toy", "1", "byte", "toy", 1, kChunk, kChunk, 0, 1, "toy"}).value();
  const auto config =
      argc > 1 ? LoadNodeConfig(argv[1]) : ParseNodeConfig(R"({"cpu_bytes_to_use": "1MiB"})");
  if (!config.ok()) return std::fprintf(stderr, "%s\n", config.error().message.c_str()), 1;
  auto node = Node::Create(config.value(), identity);
  if (!node.ok()) return std::fprintf(stderr, "%s\n", node.error().message.c_str()), 1;
  ToyMemory memory;
  Worker worker(memory, node.value()->host_slots());
  const std::vector<Token> prompt(1000, 42);
  for (RequestId id(1); id.value <= 2; ++id.value) {
    const auto loaded = Serve(*node.value(), worker, memory, identity.digest(), id, prompt);
    std::printf("%u of %zu tokens loaded\n", loaded, prompt.size());
  }
}
