// The threads of the file tier, and the order in which they take work.
//
// Read threads take loads first, then stores; write threads the reverse. So neither class starves,
// and a disk that has only one kind to do does it with all threads. Within a class: first in, first
// out.
//
// Who submits is an engine's thread: it wakes one thread, which wakes the next if there is more to
// do than it takes. So a job costs the engine one call of the system however many chunks it has,
// and no more threads wake than the disk keeps busy. Nor does one that wakes take the core from the
// engine (LetOthersRunOn()): I/O may wait some milliseconds, a step may not.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "terrace/result.h"

namespace terrace {

// Thread-safe.
class IoPool {
 public:
  enum class Kind : std::uint8_t { kLoad, kStore };
  enum class Fate : std::uint8_t { kRun, kCancelled };
  // Called exactly once for each piece of a job, by any threads in any order, without any lock.
  using Task = std::function<void(std::size_t piece, Fate fate)>;

  struct Options {
    std::uint32_t n_read_threads = 1;
    std::uint32_t n_write_threads = 1;
    std::string thread_name;  // "r0", "w0" and so on is added.
    // What the last thread to end does, after all tasks: it may block, as they may.
    std::function<void()> at_end;
  };

  // kResourceExhausted if the system has no threads left.
  static Result<std::unique_ptr<IoPool>> Create(const Options& options);
  // Waits for what runs for kDestructorPatience, then aborts.
  ~IoPool();

  // Queues a job of pieces 0 to `piece_count` - 1, in this order. After Shutdown() they are
  // cancelled at once, by the caller.
  // Cost: O(1), and waking one thread.
  void Submit(Kind kind, std::size_t piece_count, Task task);

  // Blocks until no piece is queued or running, or `deadline` has passed; true if none is.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // Cancels what is queued, waits for what runs, joins the threads. False if some thread has not
  // ended by `deadline`: the pool, and what its tasks use, must then stay until a later call says
  // true, or for ever. Idempotent.
  [[nodiscard]] bool Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  // What is queued of a job. The task is gone when its last piece has ended.
  struct Job {
    std::shared_ptr<const Task> task;
    std::size_t next_piece;
    std::size_t piece_count;
  };
  struct Piece {
    std::shared_ptr<const Task> task;
    std::size_t number;
  };

  explicit IoPool(std::function<void()> at_end) : at_end_(std::move(at_end)) {}

  Result<void> StartThreads(const Options& options, Kind first, std::uint32_t count);
  void CancelQueued();
  void Work(Kind first);
  void EndThread();
  Piece TakeLocked(Kind first) TERRACE_REQUIRES(mutex_);
  bool NothingQueuedLocked() const TERRACE_REQUIRES(mutex_);
  void EndedLocked(std::size_t count) TERRACE_REQUIRES(mutex_);

  const std::function<void()> at_end_;

  Mutex mutex_;
  CondVar work_arrived_;
  CondVar became_idle_;
  CondVar threads_ended_;
  // By Kind; of jobs with pieces left.
  std::array<std::deque<Job>, 2> queues_ TERRACE_GUARDED_BY(mutex_);
  std::size_t running_ TERRACE_GUARDED_BY(mutex_) = 0;  // Pieces that left a queue and did not end.
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  // Have not ended; the last one counts as long as it is at at_end_.
  std::size_t live_threads_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ TERRACE_GUARDED_BY(mutex_);  // To be joined.
};

}  // namespace terrace
