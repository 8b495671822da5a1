#include "tier/file/io_pool.h"

#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/thread.h"
#include "base/thread_priority.h"

namespace terrace {
namespace {

std::size_t Index(IoPool::Kind kind) { return static_cast<std::size_t>(kind); }

}  // namespace

Result<std::unique_ptr<IoPool>> IoPool::Create(const Options& options) {
  std::unique_ptr<IoPool> pool(new IoPool(options.at_end));
  auto readers = pool->StartThreads(options, Kind::kLoad, options.n_read_threads);
  if (!readers) return std::move(readers).error();
  auto writers = pool->StartThreads(options, Kind::kStore, options.n_write_threads);
  if (!writers) return std::move(writers).error();
  return pool;
}

IoPool::~IoPool() {
  TERRACE_CHECK(Shutdown(DeadlineIn(kDestructorPatience)), "a thread of the file tier hangs");
}

Result<void> IoPool::StartThreads(const Options& options, Kind first, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string suffix = (first == Kind::kLoad ? "r" : "w") + std::to_string(i);
    MutexLock lock(mutex_);  // It does not end before it is counted.
    auto thread = StartThread(options.thread_name, suffix, [this, first] { Work(first); });
    if (!thread) return std::move(thread).error();
    threads_.push_back(std::move(thread).value());
    ++live_threads_;
  }
  return {};
}

void IoPool::Submit(Kind kind, std::size_t piece_count, Task task) {
  if (piece_count == 0) return;
  auto shared = std::make_shared<const Task>(std::move(task));
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    stopping = stopping_;
    if (!stopping) queues_[Index(kind)].push_back({shared, 0, piece_count});
  }
  if (stopping) {
    for (std::size_t i = 0; i < piece_count; ++i) (*shared)(i, Fate::kCancelled);
    return;
  }
  // Without the mutex, or the thread wakes only to wait for it.
  shared.reset();
  work_arrived_.NotifyOne();
}

bool IoPool::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (running_ > 0 || !NothingQueuedLocked()) {
    if (!became_idle_.WaitUntil(mutex_, deadline)) return running_ == 0 && NothingQueuedLocked();
  }
  return true;
}

bool IoPool::Shutdown(std::chrono::steady_clock::time_point deadline) {
  CancelQueued();
  std::vector<std::thread> ended;
  {
    MutexLock lock(mutex_);
    while (live_threads_ > 0) {
      if (!threads_ended_.WaitUntil(mutex_, deadline) && live_threads_ > 0) return false;
    }
    ended.swap(threads_);
  }
  for (std::thread& thread : ended) thread.join();
  return true;
}

void IoPool::CancelQueued() {
  std::array<std::deque<Job>, 2> cancelled;
  std::size_t pieces = 0;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    cancelled.swap(queues_);
    for (const auto& queue : cancelled) {
      for (const Job& job : queue) pieces += job.piece_count - job.next_piece;
    }
    running_ += pieces;
    work_arrived_.NotifyAll();
  }
  for (auto& queue : cancelled) {
    for (const Job& job : queue) {
      for (std::size_t i = job.next_piece; i < job.piece_count; ++i) {
        (*job.task)(i, Fate::kCancelled);
      }
    }
    queue.clear();
  }
  MutexLock lock(mutex_);
  EndedLocked(pieces);
}

void IoPool::Work(Kind first) {
  LetOthersRunOn();
  for (;;) {
    Piece piece;
    bool more = false;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && NothingQueuedLocked()) work_arrived_.Wait(mutex_);
      if (stopping_) break;
      piece = TakeLocked(first);
      ++running_;
      more = !NothingQueuedLocked();
    }
    if (more) work_arrived_.NotifyOne();
    (*piece.task)(piece.number, Fate::kRun);
    piece.task.reset();  // What it holds is gone before anybody sees the pool idle.
    MutexLock lock(mutex_);
    EndedLocked(1);
  }
  EndThread();
}

void IoPool::EndThread() {
  {
    MutexLock lock(mutex_);
    if (live_threads_ > 1) {
      --live_threads_;
      return;
    }
  }
  if (at_end_) at_end_();
  MutexLock lock(mutex_);
  live_threads_ = 0;
  threads_ended_.NotifyAll();
}

IoPool::Piece IoPool::TakeLocked(Kind first) {
  const Kind second = first == Kind::kLoad ? Kind::kStore : Kind::kLoad;
  auto& queue = queues_[Index(queues_[Index(first)].empty() ? second : first)];
  Job& job = queue.front();
  const std::size_t number = job.next_piece++;
  if (job.next_piece < job.piece_count) return {job.task, number};
  Piece last{std::move(job.task), number};
  queue.pop_front();
  return last;
}

bool IoPool::NothingQueuedLocked() const { return queues_[0].empty() && queues_[1].empty(); }

void IoPool::EndedLocked(std::size_t count) {
  running_ -= count;
  if (running_ == 0 && NothingQueuedLocked()) became_idle_.NotifyAll();
}

}  // namespace terrace
