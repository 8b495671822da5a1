#include "device/cuda_copier.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/mutex.h"
#include "device/host_registration.h"

namespace terrace {
namespace {

// What one call page-locks: some 25 ms.
constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
// CUDA can wait for an event, but not with a deadline: WaitFor() looks again and again. A copy
// takes some 100 us to some 10 ms.
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

class CudaCopier final : public BlockCopier {
 public:
  CudaCopier(BlockLayout layout, std::unique_ptr<CudaDriver> driver)
      : layout_(std::move(layout)), driver_(std::move(driver)) {}

  // The memory is the caller's again afterwards, so this waits for as long as it takes.
  ~CudaCopier() override {
    MutexLock lock(mutex_);
    for (Lane& lane : lanes_) {
      if (!lane.stream) continue;
      if (auto ended = driver_->Synchronize(*lane.stream); !ended.ok()) {
        TERRACE_LOG_WARN("end device copies: {}", ended.error().message);
      }
    }
    constexpr std::string_view kWhy = "the driver may have ended with the process";
    for (Lane& lane : lanes_) {
      for (const Running& job : lane.jobs) {
        IgnoreError(driver_->DestroyEvent(job.begin), kWhy);
        IgnoreError(driver_->DestroyEvent(job.end), kWhy);
      }
      if (lane.stream) IgnoreError(driver_->DestroyStream(*lane.stream), kWhy);
    }
    for (const CudaEvent event : spare_events_) IgnoreError(driver_->DestroyEvent(event), kWhy);
  }

  Result<void> Start() {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < kCudaPriorityCount; ++i) {
      auto stream = driver_->MakeStream(static_cast<CudaPriority>(i));
      if (!stream.ok()) return std::move(stream).error();
      lanes_[i].stream = stream.value();
    }
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    auto started = HostRegistration::Start(*driver_, PiecesOf(layout_.slots(), page, kPieceBytes));
    if (!started.ok()) return std::move(started).error();
    registration_ = std::move(started).value();
    return {};
  }

  Result<void> Submit(BlockJob job) override {
    if (auto checked = layout_.Check(job); !checked.ok()) return checked;
    const std::vector<BlockPage> pages = layout_.PagesOf(job, PageMerging::kInSlot);

    MutexLock lock(mutex_);
    if (IsUnderWay(job.id)) return JobFault(job.id, "a job of that number is under way");
    if (pages.empty()) {
      finished_.push_back({.id = job.id, .error = {}});
      return {};
    }
    Put(LaneOf(job), job, pages);
    return {};
  }

  std::vector<BlockResult> TakeFinished() override {
    MutexLock lock(mutex_);
    LookForEnds();
    return std::exchange(finished_, {});
  }

  bool WaitFor(std::span<const JobId> jobs, std::chrono::nanoseconds timeout) override {
    const auto deadline = DeadlineIn(timeout);
    for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
      {
        MutexLock lock(mutex_);
        LookForEnds();
        if (std::none_of(jobs.begin(), jobs.end(),
                         [&](JobId id) TERRACE_REQUIRES(mutex_) { return IsUnderWay(id); })) {
          return true;
        }
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  struct Running {
    JobId id;
    std::uint64_t bytes = 0;
    CudaEvent begin{};
    CudaEvent end{};
    std::string error;  // What of it failed already.
  };
  struct Lane {
    std::optional<CudaStream> stream;  // Constant after Start().
    std::deque<Running> jobs;          // In the order in which they end.
  };

  Lane& LaneOf(const BlockJob& job) TERRACE_REQUIRES(mutex_) {
    const CudaPriority priority = job.urgent ? CudaPriority::kUrgent
                                  : job.direction == BlockJob::Direction::kLoad
                                      ? CudaPriority::kLoad
                                      : CudaPriority::kStore;
    return lanes_[static_cast<std::size_t>(priority)];
  }

  bool IsUnderWay(JobId id) const TERRACE_REQUIRES(mutex_) {
    for (const Lane& lane : lanes_) {
      for (const Running& job : lane.jobs) {
        if (job.id == id) return true;
      }
    }
    return false;
  }

  void Put(Lane& lane, const BlockJob& job, const std::vector<BlockPage>& pages)
      TERRACE_REQUIRES(mutex_) {
    Running running;
    running.id = job.id;
    for (const BlockPage& page : pages) running.bytes += page.bytes;
    if (auto events = TakeEvents(running); !events.ok()) {
      return Fail(job.id, std::move(events.error().message));
    }
    if (auto begun = Begin(lane, running, job.after_event); !begun.ok()) {
      GiveBack(running);
      return Fail(job.id, std::move(begun).error().message);
    }
    if (auto copied = driver_->Copy(*lane.stream, pages, job.direction); !copied.ok()) {
      running.error = std::move(copied).error().message;
    }
    // Also behind copies that failed: some of them may have been taken.
    if (auto recorded = driver_->Record(running.end, *lane.stream); !recorded.ok()) {
      EndWithoutEvent(lane, running, std::move(recorded).error().message);
      return;
    }
    lane.jobs.push_back(std::move(running));
  }

  Result<void> TakeEvents(Running& running) TERRACE_REQUIRES(mutex_) {
    while (spare_events_.size() < 2) {
      auto made = driver_->MakeEvent();
      if (!made.ok()) return std::move(made).error();
      spare_events_.push_back(made.value());
    }
    for (CudaEvent* event : {&running.begin, &running.end}) {
      *event = spare_events_.back();
      spare_events_.pop_back();
    }
    return {};
  }

  // All that comes before the first copy.
  Result<void> Begin(Lane& lane, const Running& running, std::uintptr_t after_event)
      TERRACE_REQUIRES(mutex_) {
    if (after_event != 0) {
      auto waits = driver_->Await(*lane.stream, static_cast<CudaEvent>(after_event));
      if (!waits.ok()) return waits;
    }
    return driver_->Record(running.begin, *lane.stream);
  }

  // No event tells the end of what the stream has taken.
  void EndWithoutEvent(Lane& lane, const Running& running, std::string why)
      TERRACE_REQUIRES(mutex_) {
    if (auto ended = driver_->Synchronize(*lane.stream); !ended.ok()) {
      // As in LookForEnds(): nothing is under way any more.
      why += "; " + ended.error().message;
    }
    GiveBack(running);
    Fail(running.id, running.error.empty() ? std::move(why) : running.error);
  }

  void GiveBack(const Running& running) TERRACE_REQUIRES(mutex_) {
    spare_events_.push_back(running.begin);
    spare_events_.push_back(running.end);
  }

  void Fail(JobId id, std::string why) TERRACE_REQUIRES(mutex_) {
    finished_.push_back({.id = id, .outcome = CopyOutcome::kFailed, .error = std::move(why)});
  }

  void LookForEnds() TERRACE_REQUIRES(mutex_) {
    for (Lane& lane : lanes_) {
      while (!lane.jobs.empty()) {
        Running& job = lane.jobs.front();
        auto happened = driver_->HasHappened(job.end);
        if (happened.ok() && !happened.value()) break;
        // CUDA ends all of a context's work when an error stays, as those of an event do.
        if (!happened.ok() && job.error.empty()) job.error = std::move(happened).error().message;
        End(job);
        lane.jobs.pop_front();
      }
    }
  }

  void End(Running& job) TERRACE_REQUIRES(mutex_) {
    if (!job.error.empty()) {
      Fail(job.id, std::move(job.error));
    } else {
      auto seconds = driver_->SecondsBetween(job.begin, job.end);
      finished_.push_back({.id = job.id,
                           .bytes = job.bytes,
                           .seconds = seconds.ok() ? seconds.value() : 0,
                           .error = {}});
    }
    GiveBack(job);
  }

  const BlockLayout layout_;
  const std::unique_ptr<CudaDriver> driver_;
  // Constant after Start(). It ends after the streams, and before the driver.
  std::unique_ptr<HostRegistration> registration_;

  // Also around calls of the driver, since the order in a lane is the order in its stream. The
  // driver calls nobody back.
  Mutex mutex_;
  std::array<Lane, kCudaPriorityCount> lanes_ TERRACE_GUARDED_BY(mutex_);
  std::vector<CudaEvent> spare_events_ TERRACE_GUARDED_BY(mutex_);
  std::vector<BlockResult> finished_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<BlockCopier>> MakeCudaCopier(BlockLayout layout,
                                                    std::unique_ptr<CudaDriver> driver) {
  auto copier = std::make_unique<CudaCopier>(std::move(layout), std::move(driver));
  if (auto started = copier->Start(); !started.ok()) return std::move(started).error();
  return std::unique_ptr<BlockCopier>(std::move(copier));
}

}  // namespace terrace
