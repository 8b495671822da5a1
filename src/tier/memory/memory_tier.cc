#include "tier/memory/memory_tier.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/hash.h"
#include "base/log.h"

namespace terrace {

Result<std::unique_ptr<MemoryTier>> MemoryTier::Create(const MemoryTierConfig& config,
                                                       TierHost& host, Checksum checksum) {
  const std::uint64_t chunk_bytes = host.identity().fields().chunk_bytes;
  if (config.bytes < chunk_bytes) {
    return Error{ErrorCode::kInvalidArgument,
                 "make a memory tier: bytes is " + std::to_string(config.bytes) +
                     ", one chunk takes " + std::to_string(chunk_bytes)};
  }
  if (!checksum) checksum = Xxh3;
  std::unique_ptr<MemoryTier> tier(new MemoryTier(config, host, std::move(checksum)));
  auto started = tier->thread_.Start("terrace-memory", "", [raw = tier.get()] { raw->Run(); });
  if (!started) return std::move(started).error();
  return tier;
}

MemoryTier::MemoryTier(const MemoryTierConfig& config, TierHost& host, Checksum checksum)
    : host_(host),
      chunks_max_(config.bytes / host.identity().fields().chunk_bytes),
      checksum_(std::move(checksum)) {}

MemoryTier::~MemoryTier() {
  TERRACE_CHECK(Shutdown(kDestructorPatience), "a copy of the memory tier hangs");
}

TierLookup MemoryTier::Lookup(const ChunkKey& key, const Request&) {
  MutexLock lock(mutex_);
  return entries_.contains(key) ? TierLookup::kHit : TierLookup::kMiss;
}

void MemoryTier::SubmitStore(TransferJob job) { Submit({Direction::kStore, std::move(job)}); }
void MemoryTier::SubmitLoad(TransferJob job) { Submit({Direction::kLoad, std::move(job)}); }

void MemoryTier::Submit(Work work) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      queue_.push_back(std::move(work));
      work_arrived_.NotifyOne();
      return;
    }
  }
  Cancel(work.job);
}

void MemoryTier::TakeFinished(std::vector<JobResult>& results) { finished_.Take(results); }

// The tier's thread: one job after the other, copied without the lock.
void MemoryTier::Run() {
  for (;;) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) work_arrived_.Wait(mutex_);
      if (stopping_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    Finish(Copy(work));
    MutexLock lock(mutex_);
    running_ = false;
    became_idle_.NotifyAll();
  }
}

JobResult MemoryTier::Copy(const Work& work) {
  JobResult result{work.job.id, {}, 0};
  for (std::size_t i = 0; i < work.job.keys.size(); ++i) {
    const ChunkKey& key = work.job.keys[i];
    const SlotId slot = work.job.slots[i];
    const bool store = work.direction == Direction::kStore;
    result.outcomes.push_back(store ? StoreChunk(key, slot, result.bytes)
                                    : LoadChunk(key, slot, result.bytes));
  }
  return result;
}

// The result first, then the notice: who wakes must find it.
void MemoryTier::Finish(JobResult result) {
  finished_.Push(std::move(result));
  host_.NotifyProgress();
}

void MemoryTier::Cancel(const TransferJob& job) {
  Finish({job.id, std::vector<CopyOutcome>(job.keys.size(), CopyOutcome::kFailed), 0});
}

CopyOutcome MemoryTier::StoreChunk(const ChunkKey& key, SlotId slot, std::uint64_t& bytes_moved) {
  if (Find(key) != nullptr) return CopyOutcome::kOk;
  const auto source = host_.Slot(slot);
  auto chunk = std::make_shared<Chunk>();
  chunk->checksum = checksum_(source);
  chunk->bytes.assign(source.begin(), source.end());
  Insert(key, std::move(chunk));
  stored_chunks_.fetch_add(1, std::memory_order_relaxed);
  bytes_moved += source.size();
  return CopyOutcome::kOk;
}

// The slot is verified rather than the copy: that also covers the copying.
CopyOutcome MemoryTier::LoadChunk(const ChunkKey& key, SlotId slot, std::uint64_t& bytes_moved) {
  const auto chunk = Find(key);
  if (chunk == nullptr) {
    missing_chunks_.fetch_add(1, std::memory_order_relaxed);
    return CopyOutcome::kFailed;
  }
  const auto target = host_.Slot(slot);
  std::memcpy(target.data(), chunk->bytes.data(), target.size());
  if (checksum_(target) != chunk->checksum) {
    Erase(key);
    corrupt_chunks_.fetch_add(1, std::memory_order_relaxed);
    TERRACE_LOG_WARN("memory tier: dropped chunk {}: its bytes changed in memory", key.ToHex());
    return CopyOutcome::kFailed;
  }
  loaded_chunks_.fetch_add(1, std::memory_order_relaxed);
  bytes_moved += target.size();
  return CopyOutcome::kOk;
}

std::shared_ptr<const MemoryTier::Chunk> MemoryTier::Find(const ChunkKey& key) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return nullptr;
  recency_.splice(recency_.end(), recency_, entry->second.recency);
  return entry->second.chunk;
}

void MemoryTier::Insert(const ChunkKey& key, std::shared_ptr<const Chunk> chunk) {
  MutexLock lock(mutex_);
  while (entries_.size() >= chunks_max_) {
    EraseLocked(entries_.find(recency_.front()));
    evicted_chunks_.fetch_add(1, std::memory_order_relaxed);
  }
  const auto recency = recency_.insert(recency_.end(), key);
  entries_.emplace(key, Entry{std::move(chunk), recency});
}

void MemoryTier::Erase(const ChunkKey& key) {
  MutexLock lock(mutex_);
  EraseLocked(entries_.find(key));
}

void MemoryTier::EraseLocked(std::unordered_map<ChunkKey, Entry>::iterator entry) {
  recency_.erase(entry->second.recency);
  entries_.erase(entry);
}

std::vector<CounterValue> MemoryTier::Counters() const {
  auto value = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {{"terrace_memory_stored_chunks_total", value(stored_chunks_)},
          {"terrace_memory_loaded_chunks_total", value(loaded_chunks_)},
          {"terrace_memory_evicted_chunks_total", value(evicted_chunks_)},
          {"terrace_memory_missing_chunks_total", value(missing_chunks_)},
          {"terrace_memory_corrupt_chunks_total", value(corrupt_chunks_)}};
}

bool MemoryTier::Drain(std::chrono::milliseconds timeout) {
  const auto deadline = DeadlineIn(timeout);
  MutexLock lock(mutex_);
  while (running_ || !queue_.empty()) {
    if (!became_idle_.WaitUntil(mutex_, deadline)) return !running_ && queue_.empty();
  }
  return true;
}

bool MemoryTier::Shutdown(std::chrono::milliseconds timeout) {
  const auto deadline = DeadlineIn(timeout);
  std::deque<Work> cancelled;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    cancelled.swap(queue_);
    work_arrived_.NotifyAll();
  }
  for (const Work& work : cancelled) Cancel(work.job);
  return thread_.JoinUntil(deadline);
}

}  // namespace terrace
