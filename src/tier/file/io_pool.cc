#include "tier/file/io_pool.h"

#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/thread.h"

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

void IoPool::Submit(Kind kind, std::vector<Task> tasks) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      auto& queue = queues_[Index(kind)];
      queue.insert(queue.end(), std::make_move_iterator(tasks.begin()),
                   std::make_move_iterator(tasks.end()));
      work_arrived_.NotifyAll();
      return;
    }
  }
  for (Task& task : tasks) task(Fate::kCancelled);
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
  std::vector<Task> cancelled;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (auto& queue : queues_) {
      std::move(queue.begin(), queue.end(), std::back_inserter(cancelled));
      queue.clear();
    }
    running_ += cancelled.size();
    work_arrived_.NotifyAll();
  }
  for (Task& task : cancelled) task(Fate::kCancelled);
  MutexLock lock(mutex_);
  EndedLocked(cancelled.size());
}

void IoPool::Work(Kind first) {
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && NothingQueuedLocked()) work_arrived_.Wait(mutex_);
      if (stopping_) break;
      task = TakeLocked(first);
      ++running_;
    }
    task(Fate::kRun);
    task = nullptr;  // What it holds is gone before anybody sees the pool idle.
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

IoPool::Task IoPool::TakeLocked(Kind first) {
  const Kind second = first == Kind::kLoad ? Kind::kStore : Kind::kLoad;
  auto& queue = queues_[Index(queues_[Index(first)].empty() ? second : first)];
  Task task = std::move(queue.front());
  queue.pop_front();
  return task;
}

bool IoPool::NothingQueuedLocked() const { return queues_[0].empty() && queues_[1].empty(); }

void IoPool::EndedLocked(std::size_t count) {
  running_ -= count;
  if (running_ == 0 && NothingQueuedLocked()) became_idle_.NotifyAll();
}

}  // namespace terrace
