// What the manager says and does, against a naive copy of its rules.
#include <algorithm>

#include "tests/model/manager_world.h"
#include "tests/support/keys.h"

namespace terrace::model {

using testing_support::Key;
using HostState = HostTier::State;

LookupResult ManagerWorld::CheckedLookup(const ChunkKey& key, const Request& request,
                                         const std::function<LookupResult()>& call) {
  lives_[request.id.value].touched.insert(NumberOf(key));
  const LookupResult result = call();
  const HostState state = host_->Find(key);
  EXPECT_EQ(result == LookupResult::kHit, state == HostState::kReady);
  if (result == LookupResult::kHitPending) EXPECT_EQ(state, HostState::kWriting);
  if (result == LookupResult::kRetry) EXPECT_EQ(state, HostState::kAbsent);

  // A promotion reserves its slot at once.
  const std::uint64_t unsent = host_->writing_count() - slots_.Count().written;
  EXPECT_TRUE(unsent == unsent_ || unsent == unsent_ + 1);
  const bool promoted = unsent > unsent_;
  unsent_ = unsent;
  if (promoted) {
    EXPECT_EQ(state, HostState::kWriting);
    promoted_at_[NumberOf(key)] = now_;
  }
  if (result == LookupResult::kHitPending &&
      slots_.writer(*host_->SlotOf(key)) != Slots::Writer::kEngine) {
    EXPECT_LT(now_ - promoted_at_[NumberOf(key)], options_.promotion_timeout);
  }
  if (result == LookupResult::kHitPending || result == LookupResult::kRetry) {
    auto& since = lives_[request.id.value].waits_since;
    if (!since) since = now_;
    EXPECT_LT(now_ - *since, options_.lookup_timeout) << "told to ask again for too long";
  }
  return result;
}

// Whole or not at all, and only if all are there.
bool ManagerWorld::CheckedLoad(const std::vector<ChunkKey>& keys, const Request& request) {
  manager_->AssertHeld();
  const bool all_ready = std::all_of(keys.begin(), keys.end(), [&](const ChunkKey& key) {
    return host_->Find(key) == HostState::kReady;
  });
  std::vector<SlotId> slots(keys.size());
  const bool loaded = manager_->PrepareLoad(keys, request, slots);
  EXPECT_EQ(loaded, all_ready);
  if (!loaded) return false;
  Life& life = lives_[request.id.value];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    slots_.BeginRead(slots[i], keys[i]);
    life.own.insert({NumberOf(keys[i]), birth_[NumberOf(keys[i])]});
    life.touched.insert(NumberOf(keys[i]));
  }
  life.waits_since.reset();
  loads_.push_back({request, keys, slots});
  return true;
}

void ManagerWorld::CheckPlan(const std::vector<ChunkKey>& offer,
                             const std::vector<ChunkKey>& ready_before, const StorePlan& plan) {
  ASSERT_EQ(plan.keys.size(), plan.slots.size());
  auto planned = plan.keys.begin();
  for (const ChunkKey& key : offer) {
    const bool skipped =
        weights_.host.store_threshold >= 2 && host_->Find(key) == HostState::kAbsent;
    EXPECT_TRUE(skipped || host_->Find(key) != HostState::kAbsent) << "offered and without a slot";
    if (planned != plan.keys.end() && *planned == key) ++planned;
  }
  EXPECT_EQ(planned, plan.keys.end()) << "not a part of the offer in its order";
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    EXPECT_EQ(host_->SlotOf(plan.keys[i]), plan.slots[i]);
    EXPECT_EQ(host_->Find(plan.keys[i]), HostState::kWriting);
  }
  for (const ChunkKey& key : ready_before) {
    EXPECT_EQ(host_->Find(key), HostState::kReady) << "evicted a chunk of its own offer";
  }
}

// A refusal is right only if the room that could be made is too little.
void ManagerWorld::CheckRefusal(const std::vector<ChunkKey>& offer, const Request& request) {
  const Life& life = lives_[request.id.value];
  std::uint64_t wanted = 0;
  if (weights_.host.store_threshold >= 2) return;  // Who knows how many are wanted.
  for (const ChunkKey& key : offer) wanted += host_->Find(key) == HostState::kAbsent ? 1 : 0;
  std::set<std::uint64_t> spared;
  for (const ChunkKey& key : offer) spared.insert(NumberOf(key));
  for (const ChunkKey& key : hits_) spared.insert(NumberOf(key));
  std::uint64_t room = FreeSlots();
  std::set<std::uint64_t> pinned;
  for (const Copy& load : loads_) {
    for (const ChunkKey& key : load.keys) pinned.insert(NumberOf(key));
  }
  for (const ModelTier* tier : tiers_) {
    for (const ChunkKey& key : tier->KeysRead()) pinned.insert(NumberOf(key));
  }
  for (std::uint64_t n = 0; n < birth_.size(); ++n) {
    const bool kept = spared.contains(n) || pinned.contains(n) || life.touched.contains(n);
    if (birth_[n] != 0 && !kept) ++room;
  }
  EXPECT_LT(room, wanted) << "refused though there was room";
}

// A tier that wants the whole request is due what the request offers and host memory has.
void ManagerWorld::CountOffer(const std::vector<ChunkKey>& offer, const StorePlan& plan, Life& life,
                              const Request& request) {
  const std::set<ChunkKey> planned(plan.keys.begin(), plan.keys.end());
  std::uint64_t added = 0;
  for (const ChunkKey& key : offer) {
    if (planned.contains(key) || host_->Find(key) == HostState::kAbsent) continue;
    added += life.given.insert(NumberOf(key)).second ? 1 : 0;
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (tiers_[i]->WantsWhole(request.id.value)) due_[i] += added;
  }
}

void ManagerWorld::Check(const Request* actor) {
  manager_->AssertHeld();
  TakeEvents(actor);
  const Slots::Counts counts = slots_.Count();
  EXPECT_EQ(host_->pinned_count(), counts.read);
  EXPECT_EQ(host_->writing_count(), counts.written + unsent_);
  EXPECT_EQ(host_->orphan_count(), counts.orphans);
  EXPECT_EQ(host_->ready_count(), ready_) << "counts and events disagree";
  host_->CheckConservation();
  for (const ChunkKey& key : hits_) {
    EXPECT_EQ(host_->Find(key), HostState::kReady) << "a hit of this hold was lost";
  }
  if (operations_ % 16 == 0) CheckStats();
}

void ManagerWorld::TakeEvents(const Request* actor) {
  manager_->AssertHeld();
  for (const CacheEvent& event : manager_->TakeEvents()) {
    std::uint64_t& birth = birth_.at(NumberOf(event.key));
    if (event.kind == CacheEvent::Kind::kStored) {
      EXPECT_EQ(birth, 0u) << "stored twice";
      birth = ++births_;
      ++ready_;
      continue;
    }
    if (event.kind == CacheEvent::Kind::kFailed) {
      EXPECT_EQ(birth, 0u) << "failed to come and is there";
      continue;
    }
    EXPECT_NE(birth, 0u) << "removed what was not there";
    if (actor != nullptr) {
      EXPECT_FALSE(lives_[actor->id.value].own.contains({NumberOf(event.key), birth}))
          << "a request evicted its own earlier chunk";
    }
    birth = 0;
    --ready_;
  }
}

// Totals only grow, and what is "now" is what the tiers have.
void ManagerWorld::CheckStats() {
  manager_->AssertHeld();
  const ManagerStats stats = manager_->Stats();
  std::vector<std::uint64_t> totals{
      stats.stored_chunks,   stats.failed_store_chunks,  stats.loaded_chunks,
      stats.evicted_chunks,  stats.store_refusals,       stats.promotion_refusals,
      stats.resets,          stats.promotions_postponed, stats.promotions_overdue,
      stats.lookups_overdue, stats.parked_chunks_overdue};
  EXPECT_EQ(stats.slot_count, weights_.slots);
  EXPECT_LE(stats.pinned_chunks, stats.ready_chunks);
  std::uint64_t promoting = unsent_;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const TierStats& tier = stats.tiers[i];
    EXPECT_LE(tier.hit_chunks, tier.queried_chunks);
    EXPECT_EQ(tier.unknown_reports, tiers_[i]->unknown_reports);
    EXPECT_LE(tier.waiting_chunks, stats.slot_count);
    EXPECT_TRUE(tier.waiting_chunks == 0 || manager_->HasPendingWork()) << "an idle engine stops";
    using Kind = ModelTier::Kind;
    for (const auto& [kind, transfer] : {std::pair(Kind::kStore, &tier.cascade),
                                         {Kind::kLoad, &tier.promotion},
                                         {Kind::kServe, &tier.serve}}) {
      const ModelTier::Load load = tiers_[i]->UnderWay(kind, now_);
      EXPECT_EQ(transfer->jobs_in_flight, load.jobs);
      EXPECT_EQ(transfer->slots_in_flight, load.slots);
      if (kind == Kind::kLoad) promoting += load.slots;
      totals.insert(totals.end(), {transfer->jobs, transfer->failed_jobs, transfer->chunks,
                                   transfer->failed_chunks, transfer->overdue_jobs_total});
    }
    const std::uint64_t bound = weights_.slots * options_.cascading_slots_percent / 100;
    EXPECT_LE(tier.cascade.slots_in_flight, std::max<std::uint64_t>(bound, 64));
    totals.insert(totals.end(),
                  {tier.queried_chunks, tier.hit_chunks, tier.faults, tier.downs,
                   tier.dropped_by_backpressure_chunks, tier.dropped_while_down_chunks,
                   tier.dropped_while_waiting_chunks});
  }
  const std::uint64_t bound = weights_.slots * options_.promoting_slots_percent / 100;
  EXPECT_LE(promoting, std::max<std::uint64_t>(bound, 1) + stats.stuck_slots);
  last_totals_.resize(totals.size());
  for (std::size_t i = 0; i < totals.size(); ++i) EXPECT_GE(totals[i], last_totals_[i]) << i;
  last_totals_ = std::move(totals);
}

// After a step or a round: whatever is past its deadline counts as overdue, and nothing else.
void ManagerWorld::CheckJobsInTime() {
  if (!chance_.Percent(20)) return;
  manager_->AssertHeld();
  const ManagerStats stats = manager_->Stats();
  std::uint64_t stuck = 0;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    using Kind = ModelTier::Kind;
    const TierStats& tier = stats.tiers[i];
    const auto loads = tiers_[i]->UnderWay(Kind::kLoad, now_ - options_.promotion_timeout);
    const auto before = now_ - options_.cascade_timeout;
    stuck += loads.slots;
    EXPECT_EQ(tier.promotion.overdue_jobs, loads.jobs);
    EXPECT_EQ(tier.cascade.overdue_jobs, tiers_[i]->UnderWay(Kind::kStore, before).jobs);
    EXPECT_EQ(tier.serve.overdue_jobs, tiers_[i]->UnderWay(Kind::kServe, before).jobs);
  }
  EXPECT_GE(stats.stuck_slots, stuck);
}

void ManagerWorld::CheckQuiet() {
  manager_->AssertHeld();
  EXPECT_EQ(host_->pinned_count(), 0u);
  EXPECT_EQ(host_->writing_count(), 0u);
  EXPECT_EQ(host_->orphan_count(), 0u);
  const ManagerStats stats = manager_->Stats();
  EXPECT_EQ(stats.stuck_slots, 0u);
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const TierStats& tier = stats.tiers[i];
    for (const TransferStats* transfer : {&tier.cascade, &tier.promotion, &tier.serve}) {
      EXPECT_EQ(transfer->jobs_in_flight, 0u);
      EXPECT_EQ(transfer->slots_in_flight, 0u);
      EXPECT_EQ(transfer->overdue_jobs, 0u);
    }
    // Every chunk that was due has arrived, or is counted as one that has not.
    EXPECT_EQ(due_[i], tiers_[i]->received_chunks + tier.dropped_by_backpressure_chunks +
                           tier.dropped_while_down_chunks + tier.dropped_while_waiting_chunks);
    EXPECT_EQ(tier.waiting_chunks, 0u);
  }
}

}  // namespace terrace::model
