// What of a request is there, what to load of it, and what to store.
#include <algorithm>
#include <utility>

#include "connector/connector_impl.h"

namespace terrace {

MatchedTokens Connector::Impl::Match(const EngineRequest& state, std::uint32_t first,
                                     std::uint32_t last) {
  std::uint32_t found = 0;
  bool later = false;
  for (std::uint32_t i = first; i < last; ++i) {
    const LookupResult result = manager.Lookup(state.keys[i], state.request);
    if (result == LookupResult::kMiss) break;
    // Looking on behind an unknown chunk lets a tier learn of all it must find out at once.
    later = later || result != LookupResult::kHit;
    ++found;
  }
  if (later) return {MatchedTokens::Status::kLater, 0};
  return {MatchedTokens::Status::kKnown, found * options.tokens_per_chunk};
}

void Connector::Impl::CountMatch(EngineRequest& state, const MatchedTokens& match,
                                 std::uint32_t first, std::uint32_t last) {
  const bool waited = state.waits_since.has_value();
  if (match.status == MatchedTokens::Status::kLater) {
    if (!waited) state.waits_since = std::chrono::steady_clock::now();
    return;
  }
  if (waited) stats.lookup_async.Add(std::chrono::steady_clock::now() - *state.waits_since);
  state.waits_since.reset();
  if (first >= last || std::exchange(state.counted, true)) return;
  ++stats.matched_requests;
  stats.asked_chunks += last - first;
  stats.matched_tokens += match.tokens;
  const std::uint32_t found = match.tokens / options.tokens_per_chunk;
  // What came from a tier on its behalf, it waited for.
  if (!waited) stats.matched_chunks[static_cast<std::size_t>(LoadSource::kHost)] += found;
  for (std::uint32_t i = first; waited && i < first + found; ++i) {
    const LoadSource source = manager.GetLoadSource(state.keys[i], state.request);
    ++stats.matched_chunks[static_cast<std::size_t>(source)];
  }
}

void Connector::Impl::PlanLoad(EngineRequest& state, std::uint32_t first, std::uint32_t last) {
  const std::span<const ChunkKey> keys(state.keys.data() + first, last - first);
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t i = first; i < last; ++i) {
    const LoadSource source = manager.GetLoadSource(state.keys[i], state.request);
    state.loaded.by_source[static_cast<std::size_t>(source)] += options.tokens_per_chunk;
    chunks.push_back(i);
  }
  std::vector<SlotId> slots(keys.size());
  const bool there = manager.PrepareLoad(keys, state.request, slots);
  TERRACE_CHECK(there, "a load of more than a match of the same step found");
  planned_loads.push_back(AddJob(CopyKind::kLoad, state, slots, chunks));
}

EngineJob Connector::Impl::AddJob(CopyKind kind, EngineRequest& state,
                                  std::span<const SlotId> slots,
                                  std::span<const std::uint32_t> chunks) {
  EngineJob engine_job{JobId(next_job++), state.request.id, {}};
  EngineCopy job{kind, state.request.id, {slots.begin(), slots.end()}, {}};
  engine_job.chunks.reserve(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto begin = state.blocks.begin() + std::size_t{chunks[i]} * options.blocks_per_chunk;
    engine_job.chunks.push_back({slots[i], {begin, begin + options.blocks_per_chunk}});
    if (kind == CopyKind::kLoad) continue;
    job.blocks.insert(job.blocks.end(), begin, begin + options.blocks_per_chunk);
  }
  for (BlockId block : job.blocks) read_by[block] = engine_job.id;
  ++state.jobs;
  CountStart(job);
  jobs.emplace(engine_job.id, std::move(job));
  return engine_job;
}

// A block that is given away while a store still reads it: that store must end first.
void Connector::Impl::FlushReused(std::span<const BlockId> given, std::vector<JobId>& flush) const {
  if (read_by.empty()) return;
  for (BlockId block : given) {
    const auto found = read_by.find(block);
    if (found == read_by.end()) continue;
    if (std::find(flush.begin(), flush.end(), found->second) == flush.end()) {
      flush.push_back(found->second);
    }
  }
}

// From now on its blocks may be given away.
void Connector::Impl::LetGo(JobId id, const EngineCopy& job) {
  for (BlockId block : job.blocks) {
    const auto found = read_by.find(block);
    // A later store may read what was given away and flushed.
    if (found != read_by.end() && found->second == id) read_by.erase(found);
  }
}

std::size_t Connector::Impl::PlanStores(EngineRequest& state, std::uint32_t storable_tokens,
                                        std::vector<EngineJob>& stores) {
  if (options.offload_prompt_only) {
    storable_tokens = std::min(storable_tokens, state.options.prompt_tokens);
  }
  storable_tokens = std::min(storable_tokens, state.options.max_offload_tokens);
  const std::size_t last =
      std::min({std::size_t{storable_tokens / options.tokens_per_chunk}, state.keys.size(),
                state.blocks.size() / options.blocks_per_chunk});
  if (state.next_store >= last) return 0;
  const std::span<const ChunkKey> backlog(state.keys.data() + state.next_store,
                                          last - state.next_store);
  // All or nothing is the manager's answer to one offer. A backlog that does not fit whole is
  // offered in part, front first, or it would only grow and never fit; what is left is offered
  // again next step.
  std::span<const ChunkKey> offered = backlog;
  StoreOutcome outcome = manager.PrepareStore(offered, state.request, plan);
  if (outcome == StoreOutcome::kNoRoom) ++stats.store_refusals;
  while (outcome == StoreOutcome::kNoRoom && offered.size() > 1) {
    offered = offered.first(offered.size() / 2);
    outcome = manager.PrepareStore(offered, state.request, plan);
  }
  if (outcome == StoreOutcome::kNoRoom) return backlog.size();
  if (!plan.keys.empty()) {
    std::vector<std::uint32_t> chunks;  // The plan is a subsequence of the offer.
    for (std::uint32_t i = state.next_store; chunks.size() < plan.keys.size(); ++i) {
      if (state.keys[i] == plan.keys[chunks.size()]) chunks.push_back(i);
    }
    stores.push_back(AddJob(CopyKind::kStore, state, plan.slots, chunks));
  }
  state.next_store += static_cast<std::uint32_t>(offered.size());
  return backlog.size() - offered.size();
}

// Last chances for the chunks of finished requests; then the manager hears of the end.
void Connector::Impl::PlanFinished(std::vector<EngineJob>& stores) {
  for (RequestId id : std::exchange(just_finished, {})) {
    EngineRequest& state = MustFind(id);
    const std::size_t left = PlanStores(state, state.final_tokens, stores);
    if (left > 0 && state.store_retries < options.finished_store_retries) {
      ++state.store_retries;
      just_finished.push_back(id);
      continue;
    }
    stats.unstored_chunks += left;
    if (state.gave_up_after) stats.lookup_async.Add(*state.gave_up_after);
    manager.OnRequestFinished(state.request);
    state.signalled = true;
    ForgetIfDone(id);
  }
}

}  // namespace terrace
