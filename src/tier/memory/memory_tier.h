// A tier that keeps copies of chunks in this process: the example to copy.
//
// What every tier must do, and where it stands here: never block the caller (Submit* only queue; a
// thread of the tier's own copies), report each job exactly once (Finish), serve no byte that was
// not verified (LoadChunk), and give back every job at shutdown (Shutdown).
//
// Chunks are kept in at most `bytes` bytes of payload. When that is full, the chunk that was stored
// or loaded longest ago goes first.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_config.h"
#include "terrace/tier_host.h"
#include "tier/common/result_queue.h"

namespace terrace {

// Thread-safe, which is more than SecondaryTier asks for.
class MemoryTier final : public SecondaryTier {
 public:
  using Checksum = std::function<std::uint64_t(std::span<const std::byte>)>;

  // kInvalidArgument if `config.bytes` does not hold one chunk. `host` outlives the tier.
  // `checksum` is a seam: a test lets it find damage.
  static Result<std::unique_ptr<MemoryTier>> Create(const MemoryTierConfig& config, TierHost& host,
                                                    Checksum checksum = {});
  // Waits for a running copy for kDestructorPatience, then aborts.
  ~MemoryTier() override;

  std::string_view type() const override { return "memory"; }
  LoadSource load_source() const override { return LoadSource::kMemory; }
  TierLookup Lookup(const ChunkKey& key, const Request& request) override;
  void SubmitStore(TransferJob job) override;
  void SubmitLoad(TransferJob job) override;
  void TakeFinished(std::vector<JobResult>& results) override;
  std::vector<CounterValue> Counters() const override;
  bool Drain(std::chrono::milliseconds timeout) override;
  // After false, a later call may say true.
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds timeout) override;

 private:
  enum class Direction : std::uint8_t { kStore, kLoad };
  struct Work {
    Direction direction;
    TransferJob job;
  };
  // Immutable once in the map, so that it is copied from without the lock.
  struct Chunk {
    std::vector<std::byte> bytes;
    std::uint64_t checksum = 0;
  };
  struct Entry {
    std::shared_ptr<const Chunk> chunk;
    std::list<ChunkKey>::iterator recency;
  };

  MemoryTier(const MemoryTierConfig& config, TierHost& host, Checksum checksum);

  void Submit(Work work);
  void Run();
  JobResult Copy(const Work& work);
  void Cancel(const TransferJob& job);
  void Finish(JobResult result);
  // Add what they copied to `bytes_moved`.
  CopyOutcome StoreChunk(const ChunkKey& key, SlotId slot, std::uint64_t& bytes_moved);
  CopyOutcome LoadChunk(const ChunkKey& key, SlotId slot, std::uint64_t& bytes_moved);
  std::shared_ptr<const Chunk> Find(const ChunkKey& key);
  void Insert(const ChunkKey& key, std::shared_ptr<const Chunk> chunk);
  void Erase(const ChunkKey& key);
  void EraseLocked(std::unordered_map<ChunkKey, Entry>::iterator entry) TERRACE_REQUIRES(mutex_);

  TierHost& host_;
  const std::size_t chunks_max_;
  const Checksum checksum_;

  Mutex mutex_;
  CondVar work_arrived_;
  CondVar became_idle_;
  std::deque<Work> queue_ TERRACE_GUARDED_BY(mutex_);
  bool running_ TERRACE_GUARDED_BY(mutex_) = false;  // A job has left queue_ and is not reported.
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::unordered_map<ChunkKey, Entry> entries_ TERRACE_GUARDED_BY(mutex_);
  std::list<ChunkKey> recency_ TERRACE_GUARDED_BY(mutex_);  // Oldest first.

  ResultQueue finished_;
  EndingThread thread_;  // Started by Create(); joined by a Shutdown().

  // Relaxed: numbers for people, they order nothing.
  std::atomic<std::uint64_t> stored_chunks_{0};
  std::atomic<std::uint64_t> loaded_chunks_{0};
  std::atomic<std::uint64_t> evicted_chunks_{0};
  std::atomic<std::uint64_t> missing_chunks_{0};
  std::atomic<std::uint64_t> corrupt_chunks_{0};
};

}  // namespace terrace
