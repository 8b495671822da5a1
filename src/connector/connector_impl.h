// What the connector knows of requests and of the engine's copies, and how it plans a step.
#pragma once

#include <chrono>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "terrace/connector.h"

namespace terrace {

// A request, from OnNewRequest() until nothing of it is under way.
struct EngineRequest {
  Request request;
  RequestOptions options;
  StoreInterest interest = StoreInterest::kNewChunks;
  std::vector<ChunkKey> keys;
  std::vector<BlockId> blocks;
  std::uint32_t next_store = 0;  // Chunks before it are stored, were loaded, or were found stored.
  std::uint32_t jobs = 0;        // Engine jobs under way.
  bool finished = false;  // OnRequestFinished() came; the last stores are planned at the next step.
  bool signalled = false;           // The manager knows that it finished.
  std::uint32_t final_tokens = 0;   // If finished.
  std::uint32_t store_retries = 0;  // Steps after it finished that found no room.
  LoadedTokens loaded;
  bool counted = false;                                              // In the numbers of matches.
  std::optional<std::chrono::steady_clock::time_point> waits_since;  // Told to ask again.
  std::optional<std::chrono::nanoseconds> gave_up_after;             // It ended while it waited.
};

enum class CopyKind : std::uint8_t { kLoad, kStore };

// An engine job that was planned and not reported yet.
struct EngineCopy {
  CopyKind kind;
  RequestId request;
  std::vector<SlotId> slots;
  std::vector<BlockId> blocks;  // Of a store: not to be reused before it ended.
};

// Confined to the engine's scheduler thread, but for `stats`.
struct Connector::Impl {
  Impl(OffloadingManager& m, const ConnectorOptions& o) : manager(m), options(o) {}

  EngineRequest& MustFind(RequestId id) {
    const auto found = requests.find(id);
    TERRACE_CHECK(found != requests.end(), "a call for a request that the connector does not know");
    return found->second;
  }

  // The step's hold spans several of the engine's calls, which the analysis cannot follow; it is
  // told by AssertHeld().
  void OpenStep() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    if (step_open) return;
    manager.Lock(Lane::kEngine, "the engine's step");
    step_open = true;
  }
  void CloseStep() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    if (!step_open) return;
    step_open = false;
    manager.Unlock();
  }

  // Hooks outside a step take a region of their own. A step that is still open then was left by a
  // caller that failed in its middle: without this, the region would wait for itself.
  void RecoverStep();
  void Abandon();
  MatchedTokens Match(const EngineRequest& state, std::uint32_t first, std::uint32_t last)
      TERRACE_REQUIRES(manager);
  void CountMatch(EngineRequest& state, const MatchedTokens& match, std::uint32_t first,
                  std::uint32_t last) TERRACE_REQUIRES(manager);
  EngineTransferStats& StatsOf(const EngineCopy& job) TERRACE_REQUIRES(manager) {
    return job.kind == CopyKind::kLoad ? stats.load : stats.store;
  }
  void CountStart(const EngineCopy& job) TERRACE_REQUIRES(manager) {
    ++StatsOf(job).jobs_in_flight;
    StatsOf(job).chunks_in_flight += job.slots.size();
  }
  void CountLeave(const EngineCopy& job) TERRACE_REQUIRES(manager) {
    --StatsOf(job).jobs_in_flight;
    StatsOf(job).chunks_in_flight -= job.slots.size();
  }
  void CountEnd(const EngineCopy& job, const TransferResult& result) TERRACE_REQUIRES(manager);
  void PlanLoad(EngineRequest& state, std::uint32_t first, std::uint32_t last)
      TERRACE_REQUIRES(manager);
  // Returns how many chunks found no room.
  std::size_t PlanStores(EngineRequest& state, std::uint32_t storable_tokens,
                         std::vector<EngineJob>& stores) TERRACE_REQUIRES(manager);
  void PlanFinished(std::vector<EngineJob>& stores) TERRACE_REQUIRES(manager);
  void DropPlannedLoads() TERRACE_REQUIRES(manager);
  void LetGo(JobId id, const EngineCopy& job);
  void FlushReused(std::span<const BlockId> given, std::vector<JobId>& flush) const;
  EngineJob AddJob(CopyKind kind, EngineRequest& state, std::span<const SlotId> slots,
                   std::span<const std::uint32_t> chunks) TERRACE_REQUIRES(manager);
  void ForgetIfDone(RequestId id);

  OffloadingManager& manager;
  const ConnectorOptions options;
  std::unordered_map<RequestId, EngineRequest> requests;
  std::unordered_map<JobId, EngineCopy> jobs;
  std::unordered_map<BlockId, JobId> read_by;  // Blocks that a store under way reads.
  std::vector<RequestId> just_finished;        // Since the last BuildStep().
  std::vector<EngineJob> planned_loads;        // Of the step under way.
  StorePlan plan;                              // Reused by PlanStores().
  std::uint64_t next_job = 1;
  bool step_open = false;
  ConnectorStats stats TERRACE_GUARDED_BY(manager);  // Others read it.
};

}  // namespace terrace
