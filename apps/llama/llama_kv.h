// Moves chunks between llama.cpp's KV memory and Terrace's slots, through libllama's public state
// API.
//
// libllama serialises a sequence as headers, a list of cells and, for each layer, rows of keys and
// of values. Everything but the rows follows from the model, the positions and the number of
// tokens, so a chunk is stored as its rows alone, in order of position: "llama-kv-rows" version 1.
// It has the same size for every chunk, and the same bytes whichever cells and whichever sequence
// the tokens lay in.
//
// Out: the chunk's positions are shared with a scratch sequence (no copy), that one is serialised,
// the rows are taken out. In: the rows are put into a serialised form made at start, which is read
// into the scratch sequence and then shared with the request's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama_runtime.h"
#include "terrace/result.h"
#include "terrace/types.h"
#include "terrace/worker.h"

namespace terrace::llama {

// A block of this engine is one chunk of one sequence.
BlockId BlockOf(std::int32_t sequence, std::uint32_t chunk_index);
std::uint32_t ChunkIndexOf(BlockId block);

// Confined to the engine's thread.
class LlamaKv final : public EngineMemory {
 public:
  // Learns the form of the serialised state from one token. kIncompatible if it is not one that
  // this build knows, or if the model's sliding window is shorter than a chunk. Pre: the context is
  // empty. `runtime` outlives it.
  static Result<std::unique_ptr<LlamaKv>> Create(LlamaRuntime& runtime,
                                                 std::uint32_t tokens_per_chunk);

  std::size_t chunk_bytes() const { return chunk_bytes_; }
  // "k=1,v=1" in ggml type numbers, of all layers if they agree.
  const std::string& dtype() const { return dtype_; }

  Result<void> ReadChunk(std::span<const BlockId> blocks, std::span<std::byte> chunk) override;
  Result<void> WriteChunk(std::span<const std::byte> chunk,
                          std::span<const BlockId> blocks) override;

 private:
  // Rows of one tensor of one layer: `row_bytes` for each token.
  struct Tensor {
    std::int32_t type;
    std::uint64_t row_bytes;
  };
  // One KV cache: plain models have one, sliding-window models two.
  struct Cache {
    std::vector<Tensor> keys;
    std::vector<Tensor> values;
  };
  // Where things are in the image of a chunk.
  struct Rows {
    std::size_t offset;  // Of the first row.
    std::uint64_t row_bytes;
  };
  LlamaKv(LlamaRuntime& runtime, std::uint32_t tokens_per_chunk, std::vector<Cache> caches);
  void BuildImage();
  void SetPositions(std::int32_t first);
  bool PositionsAre(std::int32_t first) const;
  bool HeadersMatch() const;
  Result<void> TakeRows(std::int32_t first, std::span<std::byte> chunk) const;
  static Result<std::vector<Cache>> ParseOneToken(std::span<const std::byte> state);

  LlamaRuntime& runtime_;
  const std::uint32_t tokens_per_chunk_;
  const std::vector<Cache> caches_;
  std::size_t chunk_bytes_ = 0;
  std::string dtype_;

  std::vector<std::byte> image_;    // The serialised form of one chunk in the scratch sequence.
  std::vector<std::byte> headers_;  // As image_, with rows and positions zero: what never changes.
  std::vector<std::size_t> positions_;  // Offsets of the cells' positions, cache by cache.
  std::vector<Rows> rows_;
};

}  // namespace terrace::llama
