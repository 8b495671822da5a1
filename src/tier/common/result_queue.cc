#include "tier/common/result_queue.h"

#include <iterator>
#include <utility>

namespace terrace {

void ResultQueue::Push(JobResult result) {
  if (result.ended_at == std::chrono::steady_clock::time_point{}) {
    result.ended_at = std::chrono::steady_clock::now();
  }
  MutexLock lock(mutex_);
  results_.push_back(std::move(result));
  count_.store(results_.size(), std::memory_order_release);
}

void ResultQueue::Take(std::vector<JobResult>& out) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  MutexLock lock(mutex_);
  out.insert(out.end(), std::make_move_iterator(results_.begin()),
             std::make_move_iterator(results_.end()));
  results_.clear();
  count_.store(0, std::memory_order_release);
}

}  // namespace terrace
