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

namespace terrace {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

// What a thread takes at a time: enough to be worth the hand-over, little enough that a long job is
// shared among the threads.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

class PooledCopier final : public BlockCopier {
 public:
  PooledCopier(HostSlots slots, BlockCopierOptions options)
      : slots_(slots), options_(std::move(options)) {
    std::size_t at = 0;
    for (const PagedTensor& tensor : options_.tensors) {
      offsets_.push_back(at);
      at += tensor.page_bytes * options_.blocks_per_chunk;
    }
  }

  ~PooledCopier() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      work_arrived_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  Result<void> Start() {
    for (std::uint32_t i = 0; i < options_.threads; ++i) {
      auto thread = StartThread("terrace-copy-", std::to_string(i), [this] { Run(); });
      if (!thread.ok()) return std::move(thread).error();
      threads_.push_back(std::move(thread).value());
    }
    return {};
  }

  Result<void> Submit(BlockJob submitted) override {
    if (auto checked = Check(submitted); !checked.ok()) return checked;
    auto job = std::make_shared<Job>();
    job->store = submitted.direction == BlockJob::Direction::kStore;
    job->pages = PagesOf(submitted);
    for (const Page& page : job->pages) job->bytes += page.bytes;
    std::deque<Piece> pieces = Cut(job);
    job->left = pieces.size();

    MutexLock lock(mutex_);
    if (!jobs_.emplace(submitted.id, job).second) {
      return Fault(submitted.id, "a job of that number is under way");
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
  struct Page {
    std::byte* engine;
    std::byte* host;
    std::size_t bytes;
  };
  struct Job {
    JobId id;
    bool store = false;
    std::vector<Page> pages;
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

  static Error Fault(JobId id, const std::string& what) {
    return {ErrorCode::kInvalidArgument, fmt::format("copy job {}: {}", id.value, what)};
  }

  Result<void> Check(const BlockJob& job) const {
    if (job.groups.size() > options_.groups.size()) {
      return Fault(job.id, fmt::format("{} groups, there are {}", job.groups.size(),
                                       options_.groups.size()));
    }
    const std::size_t per_chunk = options_.blocks_per_chunk;
    for (std::size_t g = 0; g < job.groups.size(); ++g) {
      const GroupBlocks& group = job.groups[g];
      if (group.blocks.empty() && group.slots.empty()) continue;
      if (group.first_in_chunk >= per_chunk) {
        return Fault(job.id, fmt::format("group {}: first_in_chunk {}, a chunk has {} blocks", g,
                                         group.first_in_chunk, per_chunk));
      }
      const std::size_t slots =
          (group.first_in_chunk + group.blocks.size() + per_chunk - 1) / per_chunk;
      if (slots != group.slots.size()) {
        return Fault(job.id, fmt::format("group {}: {} blocks from place {} on take {} slots, not "
                                         "{}",
                                         g, group.blocks.size(), group.first_in_chunk, slots,
                                         group.slots.size()));
      }
      for (const SlotId slot : group.slots) {
        if (slot.value >= slots_.slot_count) {
          return Fault(job.id, fmt::format("group {}: slot {}, there are {}", g, slot.value,
                                           slots_.slot_count));
        }
      }
      for (const GroupTensor& part : options_.groups[g]) {
        const std::size_t count = options_.tensors[part.tensor].block_count;
        for (const std::uint32_t block : group.blocks) {
          if (block < count) continue;
          return Fault(job.id, fmt::format("group {}: block {}, tensor {} has {}", g, block,
                                           part.tensor, count));
        }
      }
    }
    return {};
  }

  // Chunk by chunk, so that the pieces of a job write different slots for the most part.
  std::vector<Page> PagesOf(const BlockJob& job) const {
    std::vector<Page> pages;
    for (std::size_t g = 0; g < job.groups.size(); ++g) {
      const GroupBlocks& group = job.groups[g];
      for (std::size_t i = 0; i < group.blocks.size(); ++i) {
        const std::size_t place = group.first_in_chunk + i;
        std::byte* const row = slots_.Slot(group.slots[place / options_.blocks_per_chunk]).data();
        for (const GroupTensor& part : options_.groups[g]) {
          const PagedTensor& tensor = options_.tensors[part.tensor];
          pages.push_back(
              {tensor.base + group.blocks[i] * tensor.block_stride_bytes,
               row + offsets_[part.tensor] + place % options_.blocks_per_chunk * tensor.page_bytes,
               part.bytes});
        }
      }
    }
    return pages;
  }

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
        const Page& page = piece.job->pages[i];
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
    finished_.push_back({job.id, job.bytes, seconds});
    job.pages = {};
    jobs_.erase(job.id);  // Whoever runs its last piece still holds it.
    job_ended_.NotifyAll();
  }

  const HostSlots slots_;
  const BlockCopierOptions options_;
  std::vector<std::size_t> offsets_;  // Of each tensor in a slot.
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

}  // namespace

Result<std::unique_ptr<BlockCopier>> BlockCopier::Create(HostSlots slots,
                                                         BlockCopierOptions options) {
  const auto fault = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "make a block copier: " + what};
  };
  if (options.blocks_per_chunk == 0) return fault("blocks_per_chunk is 0");
  if (options.threads == 0) return fault("threads is 0");
  std::size_t bytes = 0;
  for (std::size_t t = 0; t < options.tensors.size(); ++t) {
    const PagedTensor& tensor = options.tensors[t];
    if (tensor.block_stride_bytes < tensor.page_bytes) {
      return fault(fmt::format("tensor {}: pages of {} bytes, {} bytes apart", t, tensor.page_bytes,
                               tensor.block_stride_bytes));
    }
    bytes += tensor.page_bytes * options.blocks_per_chunk;
  }
  if (bytes > slots.chunk_bytes) {
    return fault(fmt::format("{} tensors have {} bytes a chunk, a slot has {}",
                             options.tensors.size(), bytes, slots.chunk_bytes));
  }
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    for (const GroupTensor& part : options.groups[g]) {
      if (part.tensor >= options.tensors.size()) {
        return fault(fmt::format("group {}: tensor {}, there are {}", g, part.tensor,
                                 options.tensors.size()));
      }
      if (part.bytes > options.tensors[part.tensor].page_bytes) {
        return fault(fmt::format("group {}: {} bytes of tensor {}, whose pages have {}", g,
                                 part.bytes, part.tensor, options.tensors[part.tensor].page_bytes));
      }
    }
  }
  auto copier = std::make_unique<PooledCopier>(slots, std::move(options));
  if (auto started = copier->Start(); !started.ok()) return std::move(started).error();
  return std::unique_ptr<BlockCopier>(std::move(copier));
}

}  // namespace terrace
