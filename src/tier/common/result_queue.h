// The results a tier holds ready for TakeFinished().
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "terrace/secondary_tier.h"

namespace terrace {

// Thread-safe. FIFO.
class ResultQueue {
 public:
  // Stamps the result with the time, unless it has one.
  void Push(JobResult result);

  // Appends all results to `out`. Cost when there are none: one atomic load.
  void Take(std::vector<JobResult>& out);

 private:
  Mutex mutex_;
  std::vector<JobResult> results_ TERRACE_GUARDED_BY(mutex_);
  // results_.size(). Release and acquire: who sees the count also sees what the job wrote to its
  // slots.
  std::atomic<std::size_t> count_{0};
};

}  // namespace terrace
