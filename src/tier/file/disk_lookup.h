// Asks a directory that others write to which chunks it has, on a thread of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "terrace/request.h"
#include "terrace/result.h"
#include "terrace/secondary_tier.h"
#include "tier/common/async_lookup.h"
#include "tier/file/chunk_index.h"
#include "tier/file/hung_operations.h"
#include "tier/file/vllm_directory.h"

namespace terrace {

// AsyncLookup for threads that hold no common lock. A leaf: the mutex is held across calls that
// only touch memory, and by Shutdown(). Thread-safe.
class DiskLookup {
 public:
  // What a neighbour stored is found by a request that comes this much after one that missed it.
  static constexpr std::chrono::seconds kVerdictAgeMax{1};

  // `on_answers`: see AsyncLookup. The directory and `hung` live as long as a look at the disk
  // takes, which is longer than this if it hangs.
  static Result<std::unique_ptr<DiskLookup>> Create(std::shared_ptr<const VllmDirectory> directory,
                                                    std::shared_ptr<HungOperations> hung,
                                                    std::function<void()> on_answers,
                                                    SteadyNow now);

  // These are AsyncLookup's.
  TierLookup Lookup(const ChunkKey& key, const Request& request) {
    MutexLock lock(mutex_);
    return lookup_->Lookup(key, request);
  }
  void Flush() {
    MutexLock lock(mutex_);
    lookup_->Flush();
  }
  void MarkMiss(const ChunkKey& key) {
    MutexLock lock(mutex_);
    lookup_->MarkMiss({&key, 1});
  }
  void OnRequestFinished(const Request& request) {
    MutexLock lock(mutex_);
    lookup_->OnRequestFinished(request);
  }
  std::vector<CounterValue> Counters() const {
    MutexLock lock(mutex_);
    return lookup_->Counters();
  }
  // Later look-ups are misses. A look at the disk that hangs is left to end by itself.
  void Shutdown(std::chrono::milliseconds timeout) {
    MutexLock lock(mutex_);
    lookup_->Shutdown(timeout);
  }

 private:
  explicit DiskLookup(std::unique_ptr<AsyncLookup> lookup) : lookup_(std::move(lookup)) {}

  mutable Mutex mutex_;
  std::unique_ptr<AsyncLookup> lookup_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
