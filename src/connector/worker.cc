#include "terrace/worker.h"

#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void Worker::Submit(std::vector<EngineJob> jobs, std::deque<Running>& queue) {
  for (EngineJob& job : jobs) {
    Running running;
    running.result.id = job.id;
    running.result.request = job.request;
    running.job = std::move(job);
    queue.push_back(std::move(running));
  }
}

void Worker::SubmitLoads(std::vector<EngineJob> jobs) { Submit(std::move(jobs), loads_); }
void Worker::SubmitStores(std::vector<EngineJob> jobs) { Submit(std::move(jobs), stores_); }

void Worker::CopyNext(Running& running, Direction direction) {
  const ChunkCopy& copy = running.job.chunks[running.done];
  TERRACE_CHECK(copy.slot.value < slots_.slot_count, "a job names a slot outside host memory");
  const auto start = Clock::now();
  const Result<void> copied = direction == Direction::kLoad
                                  ? memory_.WriteChunk(slots_.Slot(copy.slot), copy.blocks)
                                  : memory_.ReadChunk(copy.blocks, slots_.Slot(copy.slot));
  running.result.seconds += SecondsSince(start);
  if (!copied.ok()) {
    running.result.outcome = CopyOutcome::kFailed;
    running.result.error = copied.error().message;
    return;
  }
  if (direction == Direction::kStore && slots_.checksums != nullptr) {
    slots_.checksums[copy.slot.value].store(Xxh3(slots_.Slot(copy.slot)),
                                            std::memory_order_relaxed);
  }
  running.result.bytes += slots_.chunk_bytes;
  ++running.done;
}

// One queue, oldest job first; a job ends when all its chunks are copied or one failed.
void Worker::Run(std::deque<Running>& queue, Direction direction, std::uint64_t byte_budget) {
  std::uint64_t copied = 0;
  while (!queue.empty()) {
    Running& running = queue.front();
    while (running.done < running.job.chunks.size() && running.result.outcome == CopyOutcome::kOk) {
      if (copied >= byte_budget) return;
      CopyNext(running, direction);
      copied += slots_.chunk_bytes;
    }
    finished_.push_back(std::move(running.result));
    queue.pop_front();
  }
}

void Worker::RunLoads(std::uint64_t byte_budget) {
  Run(loads_, Direction::kLoad, byte_budget == 0 ? 1 : byte_budget);
}

void Worker::RunStores() { Run(stores_, Direction::kStore, UINT64_MAX); }

void Worker::FailStores(std::string_view why) {
  for (Running& running : std::exchange(stores_, {})) Fail(running, why);
}

void Worker::CancelLoads(RequestId request) {
  for (auto it = loads_.begin(); it != loads_.end();) {
    if (it->job.request != request) {
      ++it;
      continue;
    }
    Fail(*it, "the request gave up its blocks");
    it = loads_.erase(it);
  }
}

void Worker::Fail(Running& running, std::string_view why) {
  running.result.outcome = CopyOutcome::kFailed;
  running.result.error = why;
  finished_.push_back(std::move(running.result));
}

std::vector<TransferResult> Worker::TakeFinished() { return std::exchange(finished_, {}); }

}  // namespace terrace
