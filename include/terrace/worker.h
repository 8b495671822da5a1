// Copies chunks between the engine's memory and host slots.
//
// The connector says what to copy, the worker does it when the engine calls, and reports how it
// ended. The engine implements EngineMemory, which knows how a chunk lies in its own memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace {

// One chunk of an engine job: its slot, and the engine blocks that hold it (blocks_per_chunk of
// them).
struct ChunkCopy {
  SlotId slot;
  std::vector<BlockId> blocks;
};

// Chunks to copy for one request, in prefix order.
struct EngineJob {
  JobId id;
  RequestId request;
  std::vector<ChunkCopy> chunks;
};

// How an engine job ended: as a whole. A load that failed half-way may have overwritten its blocks.
struct TransferResult {
  JobId id;
  RequestId request;
  CopyOutcome outcome = CopyOutcome::kOk;
  std::uint64_t bytes = 0;
  double seconds = 0;  // Spent copying.
  std::string error;   // Why, if kFailed.
};

// The engine's KV memory. Implemented by the engine; called only from Worker's methods, on the
// thread that calls those.
class TERRACE_API EngineMemory {
 public:
  virtual ~EngineMemory() = default;
  // Engine memory to host: writes all of `chunk`, chunk_bytes of the cache's identity.
  virtual Result<void> ReadChunk(std::span<const BlockId> blocks, std::span<std::byte> chunk) = 0;
  // Host to engine memory.
  virtual Result<void> WriteChunk(std::span<const std::byte> chunk,
                                  std::span<const BlockId> blocks) = 0;
};

// Where slots are in memory.
struct HostSlots {
  std::byte* base = nullptr;
  std::size_t stride_bytes = 0;
  std::size_t chunk_bytes = 0;
  std::size_t slot_count = 0;
  // One for each slot: XXH3-64 of its chunk, 0 while nobody has hashed it. Null where nobody asks.
  std::atomic<std::uint64_t>* checksums = nullptr;

  // Pre: slot.value < slot_count.
  std::span<std::byte> Slot(SlotId slot) const {
    return {base + static_cast<std::size_t>(slot.value) * stride_bytes, chunk_bytes};
  }
};

// Confined to the engine's thread. Both references outlive it.
class TERRACE_API Worker {
 public:
  Worker(EngineMemory& memory, HostSlots slots) : memory_(memory), slots_(slots) {}

  void SubmitLoads(std::vector<EngineJob> jobs);
  void SubmitStores(std::vector<EngineJob> jobs);

  // Copies queued loads into engine memory, oldest first, until none is left or `byte_budget` is
  // used up (at least one chunk is copied): call it before each model step, so that long loads do
  // not hold up other requests' steps.
  void RunLoads(std::uint64_t byte_budget);

  // Copies queued stores to host memory, all of them: call it after the model step that computed
  // them, before their blocks are reused. In a node with peers it also hashes them, while they are
  // in the cache, so that no peer waits for that.
  void RunStores();

  // Ends queued stores as failed without copying: for a model step that did not compute what it
  // should have.
  void FailStores(std::string_view why);
  // Ends the queued loads of a request as failed, so that its blocks can be reused.
  void CancelLoads(RequestId request);

  bool HasLoads() const { return !loads_.empty(); }

  // Results since the last call. Pass them to Connector::OnTransfersDone().
  std::vector<TransferResult> TakeFinished();

 private:
  struct Running {
    EngineJob job;
    std::size_t done = 0;
    TransferResult result;
  };
  enum class Direction : std::uint8_t { kLoad, kStore };
  static void Submit(std::vector<EngineJob> jobs, std::deque<Running>& queue);
  void Run(std::deque<Running>& queue, Direction direction, std::uint64_t byte_budget);
  void CopyNext(Running& running, Direction direction);
  void Fail(Running& running, std::string_view why);

  EngineMemory& memory_;
  const HostSlots slots_;
  std::deque<Running> loads_;
  std::deque<Running> stores_;
  std::vector<TransferResult> finished_;
};

}  // namespace terrace
