#include "manager/tiering_manager.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/ticks.h"
#include "manager/control_thread.h"

namespace terrace {
namespace {

constexpr std::size_t kTiersMax = 32;  // Bits of RequestState's sets.

#ifndef NDEBUG
constexpr std::uint32_t kCheckedSlotsMax = 4096;  // Debug builds count all pins after every step.
#endif

constexpr std::uint32_t Bit(std::size_t tier) { return std::uint32_t{1} << tier; }

PinHolder Holder(const Request& request) { return {PinHolder::Kind::kRequest, request.id.value}; }

}  // namespace

TieringManager::TieringManager(std::unique_ptr<HostTier> host,
                               std::vector<std::unique_ptr<SecondaryTier>> tiers,
                               TieringOptions options)
    : options_(std::move(options)), host_(std::move(host)) {
  TERRACE_CHECK(tiers.size() <= kTiersMax, "at most 32 tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const GuardedTierOptions guards =
        i < options_.tiers.size() ? options_.tiers[i] : GuardedTierOptions{};
    tiers_.push_back(std::make_unique<Tier>(GuardedTier(std::move(tiers[i]), guards)));
  }
}

TieringManager::~TieringManager() { Shutdown(); }

TieringManager::RequestState& TieringManager::MustFind(RequestId id) {
  const auto found = requests_.find(id);
  TERRACE_CHECK(found != requests_.end(), "a call for a request that OnNewRequest() never saw");
  return found->second;
}

// The tier that serves the request for a peer is not one of them.
template <typename Visit>
void TieringManager::ForEachTierOf(const RequestState& state, const Visit& visit) {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (state.served_by != i) visit(i);
  }
}

StoreInterest TieringManager::OnNewRequest(const Request& request) {
  TERRACE_CHECK(request.id < kExternalRequests, "an engine's request has an id of peers' requests");
  const RequestState& state = AddRequest(request, std::nullopt);
  return state.whole_request_tiers != 0 ? StoreInterest::kWholeRequest : StoreInterest::kNewChunks;
}

TieringManager::RequestState& TieringManager::AddRequest(const Request& request,
                                                         std::optional<std::size_t> served_by) {
  EndLingering(request.id);
  const auto [found, inserted] = requests_.try_emplace(request.id, request);
  TERRACE_CHECK(inserted, "two live requests with one id");
  RequestState& state = found->second;
  state.served_by = served_by;
  ForEachTierOf(state, [&](std::size_t i) {
    const StoreInterest interest = tiers_[i]->guard.OnNewRequest(request);
    if (interest == StoreInterest::kWholeRequest) state.whole_request_tiers |= Bit(i);
    if (interest == StoreInterest::kNothing) state.unwanted_by |= Bit(i);
  });
  return state;
}

// Within a step answers do not change, unless by the caller's own doing.
LookupResult TieringManager::Lookup(const ChunkKey& key, const Request& request) {
  if (!std::exchange(collected_this_step_, true)) CollectFinished();
  if (host_->Use(key, hold_number()) == HostTier::State::kReady) return LookupResult::kHit;
  return LookUp(key, MustFind(request.id));
}

LookupResult TieringManager::LookUp(const ChunkKey& key, RequestState& state) {
  const std::uint64_t began = tiers_.empty() ? 0 : TicksNow();
  switch (host_->Use(key, hold_number())) {
    case HostTier::State::kReady:
      return LookupResult::kHit;
    case HostTier::State::kWriting:
      return WaitOrGiveUp(LookUpWriting(key), state);
    case HostTier::State::kAbsent:
      break;
  }
  if (state.gave_up || tiers_.empty() || tiers_are_shut_) return LookupResult::kMiss;
  const LookupResult answer = AskTiers(key, state, TicksNow() - began);
  const LookupResult result = WaitOrGiveUp(answer, state);
  if (answer == LookupResult::kRetry && result == LookupResult::kMiss) NoteSilentTiers(key, state);
  return result;
}

// Those that have said nothing of the chunk for all of the time that its request waited.
void TieringManager::NoteSilentTiers(const ChunkKey& key, const RequestState& state) {
  const TimePoint now = options_.now();
  const Asked& asked = state.asked.at(key);
  if (!asked.unknown_since || now - asked.silent_since < options_.lookup_timeout) return;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if ((asked.unknown_to & Bit(i)) != 0) tiers_[i]->guard.OnLookupOverdue(now);
  }
}

// A store ends with the engine's own step. A promotion ends when a disk or a network pleases, so
// the wait for it has a bound.
LookupResult TieringManager::LookUpWriting(const ChunkKey& key) {
  const auto promotion = promotions_.find(*host_->SlotOf(key));
  if (promotion == promotions_.end() || options_.now() < promotion->second.deadline) {
    return LookupResult::kHitPending;
  }
  MarkPromotionOverdue(promotion->second);
  return LookupResult::kMiss;
}

LookupResult TieringManager::AskTiers(const ChunkKey& key, RequestState& state,
                                      std::uint64_t ticks_in_host) {
  const TimePoint now = options_.now();
  Asked& asked = state.asked[key];
  if (!std::exchange(asked.counted, true)) {
    stats_.miss_time.Add(TicksToNanoseconds(ticks_in_host));
  }
  bool unknown = false;
  std::optional<std::size_t> has_it;
  ForEachTierOf(state, [&](std::size_t i) {
    Tier& tier = *tiers_[i];
    if (has_it || !state.request.load_from.Has(tier.guard.load_source())) return;
    if ((asked.failed_by & Bit(i)) != 0) return;
    if (state.served_by) tier.asked_by_peer = true;
    const bool first_time = (asked.by_tiers & Bit(i)) == 0;
    const std::uint64_t began = TicksNow();
    const TierLookup answer = tier.guard.Lookup(key, state.request, now);
    asked.by_tiers |= Bit(i);
    if (first_time) ++tier.guard.stats().queried_chunks;
    if (answer == TierLookup::kRetry) {
      unknown = true;  // A later tier's hit still wins.
      asked.unknown_to |= Bit(i);
      if (!asked.unknown_since) asked.unknown_since = asked.silent_since = now;
      // A process that was stopped, or an engine that asks rarely, says nothing about its tier.
      if (now - asked.unknown_last > options_.lookup_timeout / 2) asked.silent_since = now;
      asked.unknown_last = now;
      return;
    }
    const bool was_unknown = (asked.unknown_to & Bit(i)) != 0;
    if (first_time || was_unknown) {
      tier.guard.stats().lookup_time.Add(TicksToNanoseconds(TicksNow() - began));
    }
    if (was_unknown) {
      tier.guard.stats().lookup_delay.Add(now - *asked.unknown_since);
      asked.unknown_to &= ~Bit(i);
    }
    if (answer == TierLookup::kHit) has_it = i;
  });
  if (has_it || !unknown) {
    asked.unknown_since.reset();
    asked.unknown_to = 0;
    return has_it ? Promote(key, *has_it, state) : LookupResult::kMiss;
  }
  state.unknown_in_hold = hold_number();
  return LookupResult::kRetry;
}

std::uint64_t TieringManager::SlotsOf(std::uint32_t percent) const {
  return std::max<std::uint64_t>(1, std::uint64_t{host_->slot_count()} * percent / 100);
}

// Without room this is a miss, not a retry: the request goes on and computes.
LookupResult TieringManager::Promote(const ChunkKey& key, std::size_t tier, RequestState& state) {
  // Behind a chunk that may turn out to be missing it would be of no use.
  if (state.unknown_in_hold == hold_number()) return LookupResult::kRetry;
  if (slots_promoting_ >= SlotsOf(options_.promoting_slots_percent)) {
    ++stats_.promotions_postponed;
    return LookupResult::kRetry;
  }
  // What this hold was told to be a hit must stay one.
  StorePlan plan;
  if (!host_->Reserve({&key, 1},
                      {state.request.id, hold_number(), HostTier::Purpose::kPromotion,
                       state.request.is_sequence},
                      plan)) {
    ++stats_.promotion_refusals;
    return LookupResult::kMiss;
  }
  auto unsent = std::find_if(unsent_.rbegin(), unsent_.rend(), [&](const UnsentPromotion& u) {
    return u.tier == tier && u.request == state.request.id;
  });
  if (unsent == unsent_.rend()) {
    unsent_.push_back({tier, state.request.id, {}});
    unsent = unsent_.rbegin();
    ++state.promotions_unsent;
  }
  unsent->plan.keys.push_back(key);
  unsent->plan.slots.push_back(plan.slots.front());
  promotions_.emplace(plan.slots.front(), Promotion{options_.now() + options_.promotion_timeout});
  ++slots_promoting_;
  Asked& asked = state.asked[key];
  if ((asked.hit_in & Bit(tier)) == 0) ++tiers_[tier]->guard.stats().hit_chunks;
  asked.hit_in |= Bit(tier);
  asked.promoted_from = tier;
  return LookupResult::kHitPending;
}

// A tier that says that it has a chunk and cannot bring it is not tried again by this request,
// which would go on for ever.
void TieringManager::NotBrought(const ChunkKey& key, std::size_t tier, RequestState& state) {
  const auto asked = state.asked.find(key);
  if (asked == state.asked.end()) return;  // A reset forgot it.
  asked->second.failed_by |= Bit(tier);
  asked->second.promoted_from.reset();
}

// Whatever a request waits for, it does not wait for ever.
LookupResult TieringManager::WaitOrGiveUp(LookupResult result, RequestState& state) {
  if (result != LookupResult::kRetry && result != LookupResult::kHitPending) return result;
  if (state.gave_up) return LookupResult::kMiss;
  const TimePoint now = options_.now();
  if (!state.waits_since) state.waits_since = now;
  if (now - *state.waits_since < options_.lookup_timeout) return result;
  state.gave_up = true;
  ++stats_.lookups_overdue;
  TERRACE_LOG_WARN("request {} computes what it waited for more than {} ms", state.request.id.value,
                   options_.lookup_timeout.count());
  return LookupResult::kMiss;
}

void TieringManager::WentOn(RequestState& state) {
  state.waits_since.reset();
  state.gave_up = false;
}

LoadSource TieringManager::GetLoadSource(const ChunkKey& key, const Request& request) const {
  const auto state = requests_.find(request.id);
  if (state == requests_.end()) return LoadSource::kHost;
  const auto asked = state->second.asked.find(key);
  if (asked == state->second.asked.end() || !asked->second.promoted_from) return LoadSource::kHost;
  return tiers_[*asked->second.promoted_from]->guard.load_source();
}

bool TieringManager::PrepareLoad(std::span<const ChunkKey> keys, const Request& request,
                                 std::span<SlotId> slots, ChunkEnds ends) {
  if (!host_->Pin(keys, Holder(request), slots)) return false;
  host_->RecordAccess(request.id, slots, ends);
  WentOn(MustFind(request.id));
  return true;
}

void TieringManager::CompleteLoad(std::span<const SlotId> slots, const Request& request) {
  host_->Unpin(slots, Holder(request));
  stats_.loaded_chunks += slots.size();
}

StoreOutcome TieringManager::PrepareStore(std::span<const ChunkKey> keys, const Request& request,
                                          StorePlan& plan, ChunkEnds ends) {
  CollectFinished();  // Slots that tiers let go of since are room.
  RequestState& state = MustFind(request.id);
  const bool room = host_->Reserve(keys,
                                   {.request = request.id,
                                    .hold = hold_number(),
                                    .is_sequence = request.is_sequence,
                                    .ends = ends},
                                   plan);
  if (state.whole_request_tiers != 0) OfferWholeRequest(keys, plan, state);
  if (!room) {
    ++stats_.store_refusals;
    return StoreOutcome::kNoRoom;
  }
  WentOn(state);
  state.stores_in_flight += plan.slots.size();
  return StoreOutcome::kPlanned;
}

void TieringManager::CompleteStore(std::span<const SlotId> slots, const Request& request,
                                   CopyOutcome outcome) {
  const bool forgotten = !slots.empty() && host_->IsOrphan(slots.front());
  host_->Publish(slots, outcome);
  if (forgotten) {  // So are all of them, and the reset has counted them off.
    if (outcome != CopyOutcome::kOk) stats_.failed_store_chunks += slots.size();
    return;
  }
  RequestState& state = MustFind(request.id);
  TERRACE_CHECK(state.stores_in_flight >= slots.size(), "completed a store that was not prepared");
  state.stores_in_flight -= slots.size();
  if (outcome == CopyOutcome::kOk) {
    stats_.stored_chunks += slots.size();
    Cascade(slots, state);
  } else {
    stats_.failed_store_chunks += slots.size();
  }
  ForgetIfDone(request.id);
}

void TieringManager::OnRequestFinished(const Request& request) { FinishRequest(request.id); }

void TieringManager::FinishRequest(RequestId id) {
  RequestState& state = MustFind(id);
  TERRACE_CHECK(!state.finished, "a request finished twice");
  state.finished = true;
  host_->OnRequestFinished(id);
  ForgetIfDone(id);
}

// A tier hears of the end only after the last submit of the request.
void TieringManager::ForgetIfDone(RequestId id) {
  const auto found = requests_.find(id);
  const RequestState& state = found->second;
  if (!state.finished || state.stores_in_flight > 0 || state.promotions_unsent > 0 ||
      state.cascades_waiting > 0 || !state.parked.empty()) {
    return;
  }
  ForEachTierOf(state, [&](std::size_t i) { tiers_[i]->guard.OnRequestFinished(state.request); });
  requests_.erase(found);
}

// What a request left behind when it finished nobody outside can see, so its id may come again:
// what waits for it then waits no longer. Its engine's copies must have ended.
void TieringManager::EndLingering(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second.finished) return;
  for (UnsentPromotion& unsent : unsent_) {
    if (unsent.request == id) FailSlots(unsent);
  }
  std::erase_if(unsent_, [&](const UnsentPromotion& unsent) { return unsent.request == id; });
  found->second.promotions_unsent = 0;
  DropWaits(found->second);
  ForgetIfDone(id);
}

void TieringManager::OnScheduleEnd() {
  CollectFinished();
  MarkOverdueJobs();
  FinishOverduePeerRequests();
  // Also if a control thread runs: should it fail, peers are served once a step.
  for (std::size_t i = 0; i < tiers_.size(); ++i) ServeTier(i, Lane::kEngine);
  SubmitPromotions();
  FlushParked();
  FlushWaiting();
  for (const auto& tier : tiers_) {
    tier->asked_by_peer = false;
    tier->guard.OnScheduleEnd(options_.now());
    tier->guard.EndPoll(options_.now());
  }
  collected_this_step_ = false;
#ifndef NDEBUG
  if (host_->slot_count() <= kCheckedSlotsMax) host_->CheckConservation();
#endif
}

bool TieringManager::HasPendingWork() const {
  // What is overdue may never end: no reason to keep an engine stepping. What peers wait for is the
  // control thread's, if there is one.
  const bool by_peers = control_ != nullptr;
  const auto waits_for_engine = [&](const UnsentPromotion& unsent) {
    return !by_peers || unsent.request < kExternalRequests;
  };
  if (jobs_.size() > overdue_jobs_ + (by_peers ? peer_jobs_ : 0) || !requests_parked_.empty() ||
      std::any_of(unsent_.begin(), unsent_.end(), waits_for_engine)) {
    return true;
  }
  // A round of the control thread may have ended the job that kept what waits from its turn.
  return std::any_of(tiers_.begin(), tiers_.end(), [&](const auto& tier) {
    return !tier->waiting.empty() || tier->guard.HasPendingWork(options_.now());
  });
}

std::vector<ChunkKey> TieringManager::ReadyChunks() const {
  std::vector<ChunkKey> keys;
  keys.reserve(host_->ready_count());
  host_->ForEachChunk([&](const ChunkKey& key) { keys.push_back(key); });
  return keys;
}

std::vector<CacheEvent> TieringManager::TakeEvents() { return host_->TakeEvents(); }

ResetReport TieringManager::ResetCache() {
  CollectFinished();
  for (UnsentPromotion& unsent : std::exchange(unsent_, {})) FailPromotions(unsent);
  DropWaits();
  const ResetReport report = host_->Reset();
  std::vector<RequestId> ids;
  for (auto& [id, state] : requests_) {
    state.asked.clear();
    state.given.clear();
    state.stores_in_flight = 0;
    ids.push_back(id);
  }
  for (const auto& tier : tiers_) tier->guard.ResetBackpressure();
  for (RequestId id : ids) ForgetIfDone(id);
  ++stats_.resets;
  return report;
}

ManagerStats TieringManager::Stats() const {
  ManagerStats stats = stats_;
  stats.slot_count = host_->slot_count();
  stats.ready_chunks = host_->ready_count();
  stats.pinned_chunks = host_->pinned_count();
  stats.writing_chunks = host_->writing_count();
  stats.orphaned_slots = host_->orphan_count();
  stats.evicted_chunks = host_->evicted_total();
  stats.skipped_store_chunks = host_->skipped_total();
  stats.allocation_sizes = host_->allocation_sizes();
  stats.allocation_chunks = host_->allocation_chunks();
  if (control_ != nullptr) stats.control.priority = control_->priority();
  stats.lock = lock_stats();
  const TimePoint now = options_.now();
  for (const auto& tier : tiers_) {
    stats.tiers.push_back(tier->guard.Snapshot(now));
    stats.tiers.back().waiting_chunks = tier->waiting.size();
  }
  return stats;
}

// In slices, since what is under way makes room for what waits.
bool TieringManager::Drain(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kSlice{50};
  const auto deadline = DeadlineIn(timeout);
  for (;;) {
    // Who has it may not give it back.
    if (!TryLockFor(deadline - std::chrono::steady_clock::now(), Lane::kEngine, "drain")) {
      return false;
    }
    OnScheduleEnd();
    const bool pending = HasPendingWork();
    Unlock();
    if (!pending) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    for (const auto& tier : tiers_) {
      if (tier->guard.Drain(std::min(left, kSlice)) != GuardedTier::DrainEnd::kThrew) continue;
      if (!TryLockFor(deadline - std::chrono::steady_clock::now(), Lane::kEngine, "drain")) {
        return false;
      }
      tier->guard.OnContractFault("Drain threw");
      Unlock();
    }
    // A tier may have nothing to drain and still something to do.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<void> TieringManager::StartControlThread() {
  if (options_.poll_interval.count() <= 0 || !AnyTierServes()) return {};
  SetControlRunning(true);  // Before it may hold the lock for as long as a tier likes.
  auto control =
      ControlThread::Start(*this, {.interval = options_.poll_interval}, options_.control_priority);
  if (!control) {
    SetControlRunning(false);
    return std::move(control).error();
  }
  control_ = std::move(control).value();
  return {};
}

void TieringManager::SetControlRunning(bool running) {
  ManagerRegion region(*this);
  stats_.control.running = running;
}

void TieringManager::WakeControlThread() {
  if (control_ != nullptr) control_->Wake();
}

void TieringManager::Shutdown() {
  if (tiers_were_shut_down_) return;
  // Before any tier: it may be inside one.
  tiers_still_run_ = control_ != nullptr && !control_->Stop(options_.shutdown_timeout);
  if (tiers_still_run_) return;  // A later call may find it stopped.
  if (!TryLockFor(options_.shutdown_timeout, Lane::kEngine, "shutdown")) return LeaveRunning();
  tiers_are_shut_ = true;
  Unlock();
  tiers_were_shut_down_ = true;
  for (auto tier = tiers_.rbegin(); tier != tiers_.rend(); ++tier) {
    if ((*tier)->guard.Shutdown(options_.shutdown_timeout)) continue;
    (*tier)->guard.Leak();
    tiers_still_run_ = true;
  }
  if (!TryLockFor(options_.shutdown_timeout, Lane::kEngine, "shutdown")) return LeaveRunning();
  CollectFinished();  // Cancelled jobs are reported as failed; their slots are free again.
  for (UnsentPromotion& unsent : std::exchange(unsent_, {})) FailPromotions(unsent);
  DropWaits();
  stats_.control.running = false;
  Unlock();
}

// Whoever has the lock is inside, or has died there.
void TieringManager::LeaveRunning() {
  tiers_still_run_ = true;
  TERRACE_LOG_ERROR(
      "shutdown: another thread holds the manager's lock, and did not give it back within {} ms: "
      "what it works on is left as it is, and host memory stays mapped",
      options_.shutdown_timeout.count());
}

}  // namespace terrace
