#include "terrace/connector.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/ticks.h"
#include "connector/connector_impl.h"

namespace terrace {
Result<std::unique_ptr<Connector>> Connector::Create(OffloadingManager& manager,
                                                     const ConnectorOptions& options) {
  if (options.tokens_per_chunk == 0 || options.blocks_per_chunk == 0 ||
      options.tokens_per_chunk % options.blocks_per_chunk != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "make a connector: blocks_per_chunk (" + std::to_string(options.blocks_per_chunk) +
                     ") must divide tokens_per_chunk (" + std::to_string(options.tokens_per_chunk) +
                     "), both at least 1"};
  }
  return std::unique_ptr<Connector>(new Connector(std::make_unique<Impl>(manager, options)));
}

Connector::Connector(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Connector::~Connector() { AbandonStep(); }

void Connector::OnNewRequest(RequestId id, const RequestOptions& options) {
  const auto [found, inserted] = impl_->requests.try_emplace(id);
  TERRACE_CHECK(inserted, "two live requests with one id");
  EngineRequest& state = found->second;
  state.request = {id, options.load_from, options.route};
  state.options = options;
  impl_->RecoverStep();
  ManagerRegion region(impl_->manager, Lane::kEngine, "a new request");
  state.interest = impl_->manager.OnNewRequest(state.request);
}

void Connector::AppendKeys(RequestId id, std::span<const ChunkKey> keys) {
  std::vector<ChunkKey>& known = impl_->MustFind(id).keys;
  known.insert(known.end(), keys.begin(), keys.end());
}

MatchedTokens Connector::GetMatchedTokens(RequestId id, std::uint32_t computed_tokens,
                                          std::uint32_t limit) {
  EngineRequest& state = impl_->MustFind(id);
  const std::uint32_t per_chunk = impl_->options.tokens_per_chunk;
  TERRACE_CHECK(computed_tokens % per_chunk == 0, "a match starts inside a chunk");
  // It starts over, with or without what it had. What is stored already is not stored again.
  state.blocks.clear();
  state.loaded = {};
  state.next_store = 0;
  if (state.jobs > 0) return {MatchedTokens::Status::kLater, 0};
  const std::uint32_t first = computed_tokens / per_chunk;
  const std::uint64_t end = std::min<std::uint64_t>(
      limit, std::uint64_t{computed_tokens} + state.options.max_load_tokens);
  const auto last =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(end / per_chunk, state.keys.size()));
  if (first >= last && !state.waits_since) return {};
  const std::uint64_t began = TicksNow();
  impl_->OpenStep();
  impl_->manager.AssertHeld();
  const MatchedTokens match = impl_->Match(state, first, last);
  impl_->CountMatch(state, match, first, last);
  impl_->stats.lookup_sync.Add(TicksToNanoseconds(TicksNow() - began));
  return match;
}

void Connector::UpdateAfterAlloc(RequestId id, std::span<const BlockId> blocks,
                                 std::uint32_t computed_tokens, std::uint32_t external_tokens) {
  EngineRequest& state = impl_->MustFind(id);
  const std::uint32_t per_chunk = impl_->options.tokens_per_chunk;
  TERRACE_CHECK(external_tokens % per_chunk == 0, "part of a chunk cannot be loaded");
  state.blocks.assign(blocks.begin(), blocks.end());
  const std::uint32_t first = computed_tokens / per_chunk;
  const std::uint32_t last = (computed_tokens + external_tokens) / per_chunk;
  if (external_tokens == 0) return;
  // What was loaded need not be stored, unless some tier wants all of the request.
  if (state.interest == StoreInterest::kNewChunks) state.next_store = last;
  TERRACE_CHECK(state.jobs == 0, "a load for a request with transfers under way");
  TERRACE_CHECK(impl_->step_open, "a load without a match in the same step");
  TERRACE_CHECK(last <= state.keys.size() &&
                    std::size_t{last} * impl_->options.blocks_per_chunk <= blocks.size(),
                "a load of more than the request has keys or blocks for");
  impl_->manager.AssertHeld();
  impl_->PlanLoad(state, first, last);
}

StepPlan Connector::BuildStep(const StepInput& input) {
  Impl& impl = *impl_;
  impl.OpenStep();
  struct Closer {
    Impl& impl;
    ~Closer() { impl.CloseStep(); }
  } closer{impl};
  impl.manager.AssertHeld();

  StepPlan plan;
  for (RequestId id : input.preempted) {
    impl.MustFind(id).blocks.clear();
    for (const auto& [job_id, job] : impl.jobs) {
      if (job.request == id && job.kind == CopyKind::kStore) plan.jobs_to_flush.push_back(job_id);
    }
  }
  for (const ScheduledRequest& scheduled : input.scheduled) {
    EngineRequest& state = impl.MustFind(scheduled.id);
    impl.FlushReused(scheduled.new_blocks, plan.jobs_to_flush);
    state.blocks.insert(state.blocks.end(), scheduled.new_blocks.begin(),
                        scheduled.new_blocks.end());
  }
  for (const ScheduledRequest& scheduled : input.scheduled) {
    EngineRequest& state = impl.MustFind(scheduled.id);
    impl.PlanStores(state, scheduled.computed_tokens + scheduled.scheduled_tokens, plan.stores);
  }
  impl.PlanFinished(plan.stores);
  plan.loads = std::exchange(impl.planned_loads, {});
  impl.manager.OnScheduleEnd();
  return plan;
}

void Connector::AbandonStep() { impl_->Abandon(); }

void Connector::Impl::Abandon() {
  if (!step_open) return;
  manager.AssertHeld();
  DropPlannedLoads();
  CloseStep();
}

void Connector::Impl::RecoverStep() {
  if (!step_open) return;
  TERRACE_LOG_ERROR(
      "a scheduler step was left open: neither BuildStep() nor AbandonStep() ended it; given up");
  Abandon();
}

void Connector::Impl::DropPlannedLoads() {
  for (const EngineJob& load : std::exchange(planned_loads, {})) {
    EngineRequest& state = MustFind(load.request);
    manager.CompleteLoad(jobs.at(load.id).slots, state.request);
    CountLeave(jobs.at(load.id));
    state.loaded = {};
    --state.jobs;
    jobs.erase(load.id);
  }
}

void Connector::Impl::CountEnd(const EngineCopy& job, const TransferResult& result) {
  EngineTransferStats& ended = StatsOf(job);
  const bool ok = result.outcome == CopyOutcome::kOk;
  ++ended.jobs;
  ended.failed_jobs += ok ? 0 : 1;
  (ok ? ended.chunks : ended.failed_chunks) += job.slots.size();
  ended.bytes += result.bytes;
  const double seconds = result.seconds > 0 ? std::min(result.seconds, 1e6) : 0;  // Also not NaN.
  ended.time += std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  std::size_t bucket = 0;
  for (std::uint64_t bound = EngineTransferStats::kSmallestSize;
       result.bytes > bound && bucket < EngineTransferStats::kSizeBuckets; bound *= 4) {
    ++bucket;
  }
  ++ended.sizes[bucket];
}

void Connector::OnTransfersDone(std::span<const TransferResult> results) {
  if (results.empty()) return;
  impl_->RecoverStep();
  ManagerRegion region(impl_->manager, Lane::kEngine, "the engine's transfers");
  for (const TransferResult& result : results) {
    const auto found = impl_->jobs.find(result.id);
    TERRACE_CHECK(found != impl_->jobs.end(), "an engine job was reported twice, or never planned");
    const EngineCopy job = std::move(found->second);
    impl_->jobs.erase(found);
    impl_->LetGo(result.id, job);
    EngineRequest& state = impl_->MustFind(job.request);
    impl_->CountLeave(job);
    impl_->CountEnd(job, result);
    if (job.kind == CopyKind::kLoad) {
      impl_->manager.CompleteLoad(job.slots, state.request);
      if (result.outcome == CopyOutcome::kFailed) state.loaded = {};
    } else {
      impl_->manager.CompleteStore(job.slots, state.request, result.outcome);
    }
    --state.jobs;
    impl_->ForgetIfDone(job.request);
  }
}

std::vector<CacheEvent> Connector::TakeEvents() {
  impl_->RecoverStep();
  ManagerRegion region(impl_->manager, Lane::kEngine, "events");
  return impl_->manager.TakeEvents();
}

ResetReport Connector::ResetCache() {
  impl_->RecoverStep();
  ManagerRegion region(impl_->manager, Lane::kEngine, "a reset");
  for (auto& [id, state] : impl_->requests) state.next_store = 0;
  return impl_->manager.ResetCache();
}

void Connector::OnRequestFinished(RequestId id, std::uint32_t total_tokens) {
  EngineRequest& state = impl_->MustFind(id);
  TERRACE_CHECK(!state.finished, "a request finished twice");
  state.finished = true;
  state.final_tokens = total_tokens;
  if (state.waits_since) {
    state.gave_up_after = std::chrono::steady_clock::now() - *state.waits_since;
  }
  impl_->just_finished.push_back(id);
}

void Connector::Impl::ForgetIfDone(RequestId id) {
  const auto found = requests.find(id);
  if (found->second.signalled && found->second.jobs == 0) requests.erase(found);
}

bool Connector::HasTransfers(RequestId id) const {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return false;
  return found->second.jobs > 0 || (found->second.finished && !found->second.signalled);
}

bool Connector::HasPendingWork() const {
  impl_->RecoverStep();
  if (!impl_->jobs.empty() || !impl_->just_finished.empty()) return true;
  ManagerRegion region(impl_->manager, Lane::kEngine, "pending work");
  return impl_->manager.HasPendingWork();
}

LoadedTokens Connector::GetLoadedTokens(RequestId id) const { return impl_->MustFind(id).loaded; }

const ConnectorStats& Connector::Stats() const {
  impl_->manager.AssertHeld();
  return impl_->stats;
}

}  // namespace terrace
