#include "terrace/block_copier.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "device/block_layout.h"
#include "device/cuda_copier.h"
#include "device/cuda_driver.h"

namespace terrace {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

// What a thread takes at a time: enough to be worth the hand-over, little enough that a long job is
// shared among the threads.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

class PooledCopier final : public BlockCopier {
 public:
  explicit PooledCopier(BlockLayout layout) : layout_(std::move(layout)) {}

  ~PooledCopier() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      work_arrived_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  Result<void> Start() {
    for (std::uint32_t i = 0; i < layout_.options().threads; ++i) {
      auto thread = StartThread("terrace-copy-", std::to_string(i), [this] { Run(); });
      if (!thread.ok()) return std::move(thread).error();
      threads_.push_back(std::move(thread).value());
    }
    return {};
  }

  Result<void> Submit(BlockJob submitted) override {
    if (auto checked = layout_.Check(submitted); !checked.ok()) return checked;
    if (submitted.after_event != 0) {
      return JobFault(submitted.id, "an event of a device, but the tensors are the CPU's");
    }
    auto job = std::make_shared<Job>();
    job->store = submitted.direction == BlockJob::Direction::kStore;
    job->pages = layout_.PagesOf(submitted, PageMerging::kNone);
    for (const BlockPage& page : job->pages) job->bytes += page.bytes;
    std::deque<Piece> pieces = Cut(job);
    job->left = pieces.size();

    MutexLock lock(mutex_);
    if (!jobs_.emplace(submitted.id, job).second) {
      return JobFault(submitted.id, "a job of that number is under way");
    }
    job->id = submitted.id;
    if (pieces.empty()) {
      End(*job);
      return {};
    }
    std::deque<Piece>& queue = submitted.urgent ? urgent_ : job->store ? stores_ : loads_;
    queue.insert(queue.end(), pieces.begin(), pieces.end());
    if (pieces.size() == 1) {
      work_arrived_.NotifyOne();
    } else {
      work_arrived_.NotifyAll();
    }
    return {};
  }

  std::vector<BlockResult> TakeFinished() override {
    MutexLock lock(mutex_);
    return std::exchange(finished_, {});
  }

  bool WaitFor(std::span<const JobId> jobs, std::chrono::nanoseconds timeout) override {
    const auto deadline = DeadlineIn(timeout);
    MutexLock lock(mutex_);
    for (const JobId id : jobs) {
      while (jobs_.contains(id)) {
        if (!job_ended_.WaitUntil(mutex_, deadline)) return !AnyRuns(jobs);
      }
    }
    return true;
  }

 private:
  struct Job {
    JobId id;
    bool store = false;
    std::vector<BlockPage> pages;
    std::uint64_t bytes = 0;
    // Under the copier's lock.
    std::size_t left = 0;  // Pieces.
    TimePoint began{};
  };
  struct Piece {
    std::shared_ptr<Job> job;
    std::size_t begin = 0;  // Of its pages.
    std::size_t end = 0;
  };

  static std::deque<Piece> Cut(const std::shared_ptr<Job>& job) {
    std::deque<Piece> pieces;
    std::size_t begin = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < job->pages.size(); ++i) {
      bytes += job->pages[i].bytes;
      if (bytes < kPieceBytes && i + 1 < job->pages.size()) continue;
      pieces.push_back({job, begin, i + 1});
      begin = i + 1;
      bytes = 0;
    }
    return pieces;
  }

  bool AnyRuns(std::span<const JobId> jobs) const TERRACE_REQUIRES(mutex_) {
    return std::any_of(jobs.begin(), jobs.end(),
                       [&](JobId id) TERRACE_REQUIRES(mutex_) { return jobs_.contains(id); });
  }

  std::deque<Piece>* NextQueue() TERRACE_REQUIRES(mutex_) {
    for (std::deque<Piece>* queue : {&urgent_, &loads_, &stores_}) {
      if (!queue->empty()) return queue;
    }
    return nullptr;
  }

  void Run() {
    for (;;) {
      Piece piece;
      {
        MutexLock lock(mutex_);
        std::deque<Piece>* queue = NextQueue();
        while (queue == nullptr && !stopping_) {
          work_arrived_.Wait(mutex_);
          queue = NextQueue();
        }
        if (stopping_) return;
        piece = std::move(queue->front());
        queue->pop_front();
        if (piece.job->began == TimePoint{}) piece.job->began = std::chrono::steady_clock::now();
      }
      for (std::size_t i = piece.begin; i < piece.end; ++i) {
        const BlockPage& page = piece.job->pages[i];
        if (piece.job->store) {
          std::memcpy(page.host, page.engine, page.bytes);
        } else {
          std::memcpy(page.engine, page.host, page.bytes);
        }
      }
      MutexLock lock(mutex_);
      if (--piece.job->left == 0) End(*piece.job);
    }
  }

  void End(Job& job) TERRACE_REQUIRES(mutex_) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds =
        job.began == TimePoint{} ? 0 : std::chrono::duration<double>(now - job.began).count();
    finished_.push_back({.id = job.id, .bytes = job.bytes, .seconds = seconds, .error = {}});
    job.pages = {};
    jobs_.erase(job.id);  // Whoever runs its last piece still holds it.
    job_ended_.NotifyAll();
  }

  const BlockLayout layout_;
  std::vector<std::thread> threads_;  // Constant after Start().

  Mutex mutex_;
  CondVar work_arrived_;
  CondVar job_ended_;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::deque<Piece> urgent_ TERRACE_GUARDED_BY(mutex_);
  std::deque<Piece> loads_ TERRACE_GUARDED_BY(mutex_);
  std::deque<Piece> stores_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_map<JobId, std::shared_ptr<Job>> jobs_ TERRACE_GUARDED_BY(mutex_);
  std::vector<BlockResult> finished_ TERRACE_GUARDED_BY(mutex_);
};

Result<std::unique_ptr<BlockCopier>> MakeDeviceCopier(BlockLayout layout, int device) {
  const auto fault = [&](const Error& error) {
    return Error{error.code,
                 fmt::format("make a block copier for CUDA device {}: {}", device, error.message)};
  };
  auto symbols = LoadCudaSymbols();
  if (!symbols.ok()) return fault(symbols.error());
  auto driver = OpenCudaDriver(symbols.value(), device);
  if (!driver.ok()) return fault(driver.error());
  auto copier = MakeCudaCopier(std::move(layout), std::move(driver).value());
  if (!copier.ok()) return fault(copier.error());
  return copier;
}

}  // namespace

bool BlockCopier::HasCuda() { return LoadCudaSymbols().ok(); }

Result<std::unique_ptr<BlockCopier>> BlockCopier::Create(HostSlots slots,
                                                         BlockCopierOptions options) {
  const int device = options.device;
  if (device < 0 && options.threads == 0) {
    return Error{ErrorCode::kInvalidArgument, "make a block copier: threads is 0"};
  }
  auto layout = BlockLayout::Create(slots, std::move(options));
  if (!layout.ok()) return std::move(layout).error();
  if (device >= 0) return MakeDeviceCopier(std::move(layout).value(), device);
  auto copier = std::make_unique<PooledCopier>(std::move(layout).value());
  if (auto started = copier->Start(); !started.ok()) return std::move(started).error();
  return std::unique_ptr<BlockCopier>(std::move(copier));
}

}  // namespace terrace
