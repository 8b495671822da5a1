// Touches host memory in the background, so that no copy of the engine pays for a page's first use
// and memory that can't be had is known early.
//
// A page lands on the NUMA node of the thread that touches it first, so each rank touches its own
// slices: in every row the pages that its slice lies on. Rows are touched in order, as slots are
// handed out in order. Bytes are never changed: a page on the border of two ranks is touched by
// both, and slots may be in use already.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "host/memory_ops.h"
#include "host/region_memory.h"
#include "terrace/result.h"

namespace terrace {

// What to touch: in each of `row_count` rows the bytes [begin, end).
struct PrefaultPlan {
  std::byte* base = nullptr;  // Page-aligned.
  std::uint64_t stride_bytes = 0;
  std::uint64_t row_count = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // > begin, <= stride_bytes
  // Explicit huge pages are reserved: what the machine has available otherwise is not looked at.
  HugePages pages = HugePages::kOff;
};

struct PrefaultProgress {
  enum class State : std::uint8_t { kOff, kRunning, kDone, kFailed };
  State state = State::kOff;
  std::uint64_t touched_bytes = 0;  // In whole pages.
  std::uint64_t total_bytes = 0;
  std::string error;  // Why kFailed. The rest is touched by whoever uses it first.
};

// Thread-safe.
class Prefault {
 public:
  // Starts `thread_count` (>= 1) threads. Memory and `ops` must outlive this.
  // kResourceExhausted if the system has no thread left.
  static Result<std::unique_ptr<Prefault>> Start(MemoryOps& ops, const PrefaultPlan& plan,
                                                 std::uint32_t thread_count);
  // Stops within a batch of kBatchBytes on each thread.
  ~Prefault();
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  PrefaultProgress progress() const;

  // Small, as a thread that is running must not hold up an mmap() of the engine for long.
  static constexpr std::uint64_t kBatchBytes = 2ULL << 20;

 private:
  Prefault(MemoryOps& ops, const PrefaultPlan& plan);
  void Run();
  // False at the end.
  bool TouchNext();
  // 0 or an errno.
  int Touch(std::byte* begin, std::uint64_t bytes);
  bool StillHasMemory();
  void Fail(const std::string& why);
  void LogProgress();
  void Finish();

  MemoryOps& ops_;
  const PrefaultPlan plan_;  // Whole pages; one row if all of every row is wanted.
  const std::uint64_t batches_per_row_;
  const std::uint64_t total_bytes_;
  const std::int64_t start_ns_;

  mutable Mutex mutex_;
  std::string error_ TERRACE_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;  // Of Start() and the destructor.

  // Counters that order nothing: relaxed.
  std::atomic<std::uint64_t> next_batch_{0};
  std::atomic<std::uint64_t> touched_bytes_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> populate_works_{true};
  std::atomic<std::int64_t> logged_ns_;
  std::atomic<std::uint64_t> checked_bytes_{0};
};

}  // namespace terrace
