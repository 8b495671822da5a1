// Jobs: how they begin, how they end, and what if they do not.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "manager/tiering_manager.h"

namespace terrace {
namespace {

PinHolder Holder(JobId job) { return {PinHolder::Kind::kJob, job.value}; }

}  // namespace

TransferStats& TieringManager::StatsOf(const Job& job) {
  TierStats& stats = tiers_[job.tier]->guard.stats();
  switch (job.kind) {
    case JobKind::kPromotion:
      return stats.promotion;
    case JobKind::kCascade:
      return stats.cascade;
    case JobKind::kServe:
      break;
  }
  return stats.serve;
}

// From here on the job counts, until its result comes.
TransferJob TieringManager::AddJob(Job job) {
  const JobId id(next_job_++);
  const auto timeout =
      job.kind == JobKind::kPromotion ? options_.promotion_timeout : options_.cascade_timeout;
  job.submitted_at = options_.now();
  deadlines_[static_cast<std::size_t>(job.kind)].emplace_back(job.submitted_at + timeout, id);
  TransferStats& stats = StatsOf(job);
  ++stats.jobs_in_flight;
  stats.slots_in_flight += job.slots.size();
  if (job.kind == JobKind::kServe) slots_serving_ += job.slots.size();
  if (IsForPeer(job)) ++peer_jobs_;
  if (job.kind == JobKind::kPromotion && job.request >= kExternalRequests) {
    ++tiers_[job.tier]->jobs_for_peers;
  }
  TransferJob transfer{id, job.request, job.keys, job.slots, job.submitted_at};
  jobs_.emplace(id, std::move(job));
  return transfer;
}

// A job that the tier did not take, since it threw: as if it had failed at once.
void TieringManager::FailJob(const TransferJob& job) {
  Job& known = jobs_.at(job.id);
  if (const auto permit = std::exchange(known.permit, std::nullopt)) {
    tiers_[known.tier]->guard.OnJobEnded(*permit, GuardedTier::JobEnd::kFailed, options_.now());
  }
  JobResult result{
      job.id, std::vector<CopyOutcome>(job.keys.size(), CopyOutcome::kFailed), 0, {}, {}};
  FinishJob(known.tier, result);
}

void TieringManager::SubmitPromotions() {
  for (UnsentPromotion& unsent : std::exchange(unsent_, {})) {
    GuardedTier& tier = tiers_[unsent.tier]->guard;
    const auto permit = tier.ClaimJob(options_.now());
    if (!permit) {
      FailPromotions(unsent);
      continue;
    }
    TransferJob job = AddJob({JobKind::kPromotion,
                              unsent.tier,
                              unsent.request,
                              std::move(unsent.plan.keys),
                              std::move(unsent.plan.slots),
                              {},
                              permit});
    if (!tier.Submit(GuardedTier::Direction::kLoad, job)) FailJob(job);
    --MustFind(unsent.request).promotions_unsent;
    ForgetIfDone(unsent.request);
  }
}

// Of promotions that were not submitted.
void TieringManager::FailPromotions(UnsentPromotion& unsent) {
  FailSlots(unsent);
  --MustFind(unsent.request).promotions_unsent;
  ForgetIfDone(unsent.request);
}

void TieringManager::FailSlots(UnsentPromotion& unsent) {
  RequestState& state = MustFind(unsent.request);
  for (std::size_t i = 0; i < unsent.plan.slots.size(); ++i) {
    EndPromotion(unsent.plan.slots[i], CopyOutcome::kFailed);
    NotBrought(unsent.plan.keys[i], unsent.tier, state);
  }
  tiers_[unsent.tier]->guard.stats().promotion.failed_chunks += unsent.plan.slots.size();
}

void TieringManager::SubmitCascade(std::size_t tier_index, std::span<const SlotId> slots,
                                   RequestId request) {
  GuardedTier& tier = tiers_[tier_index]->guard;
  const auto permit = tier.ClaimJob(options_.now());
  if (!permit) {
    tier.stats().dropped_while_down_chunks += slots.size();
    return;
  }
  Job job{JobKind::kCascade, tier_index, request, {}, {slots.begin(), slots.end()}, {}, permit};
  for (SlotId slot : slots) job.keys.push_back(host_->KeyOf(slot));
  const TransferJob transfer = AddJob(std::move(job));
  host_->PinSlots(slots, Holder(transfer.id));
  if (!tier.Submit(GuardedTier::Direction::kStore, transfer)) FailJob(transfer);
}

void TieringManager::CollectFinished() {
  for (std::size_t i = 0; i < tiers_.size(); ++i) CollectFinished(i);
}

// One by one: what is wrong with one report does not cost the others.
bool TieringManager::CollectFinished(std::size_t tier) {
  results_.clear();
  tiers_[tier]->guard.TakeFinished(results_, options_.now());
  for (JobResult& result : results_) FinishJob(tier, result);
  return !results_.empty();
}

void TieringManager::FinishJob(std::size_t tier_index, JobResult& result) {
  GuardedTier& tier = tiers_[tier_index]->guard;
  const TimePoint now = options_.now();
  const auto found = jobs_.find(result.id);
  if (found == jobs_.end() || found->second.tier != tier_index) {
    ++tier.stats().unknown_reports;
    tier.OnContractFault("it reported job " + std::to_string(result.id.value) +
                         ", which is not its own or was reported before");
    return;
  }
  const Job job = std::move(found->second);
  jobs_.erase(found);
  if (result.outcomes.size() != job.keys.size()) {
    tier.OnContractFault("a job of " + std::to_string(job.keys.size()) +
                         " chunks was reported with " + std::to_string(result.outcomes.size()) +
                         " outcomes");
    // Whose outcomes they are is anybody's guess.
    result.outcomes.assign(job.keys.size(), CopyOutcome::kFailed);
  }
  // A tier's clock is its own affair; its times must lie between these.
  if (result.ended_at < job.submitted_at || result.ended_at > now) result.ended_at = now;
  result.started_at =
      std::clamp(result.started_at, job.submitted_at, std::max(job.submitted_at, result.ended_at));
  EndJob(job, result);
}

void TieringManager::EndJob(const Job& job, const JobResult& result) {
  Tier& tier = *tiers_[job.tier];
  const auto ok = static_cast<std::uint64_t>(
      std::count(result.outcomes.begin(), result.outcomes.end(), CopyOutcome::kOk));
  const bool whole = ok == job.keys.size();
  const auto duration = result.ended_at - job.submitted_at;
  TransferStats& stats = StatsOf(job);
  --stats.jobs_in_flight;
  stats.slots_in_flight -= job.slots.size();
  ++stats.jobs;
  stats.failed_jobs += whole ? 0 : 1;
  stats.chunks += ok;
  stats.failed_chunks += job.keys.size() - ok;
  stats.bytes += result.bytes;
  stats.time += duration;
  if (job.overdue) {
    --stats.overdue_jobs;
    --overdue_jobs_;
  } else {
    if (IsForPeer(job)) --peer_jobs_;
    // Its lateness counted against the tier already.
    if (job.permit) {
      const bool is_fault = ok == 0 && tier.guard.failed_jobs_are_faults();
      tier.guard.OnJobEnded(*job.permit,
                            is_fault ? GuardedTier::JobEnd::kFailed : GuardedTier::JobEnd::kOk,
                            options_.now());
    }
  }
  switch (job.kind) {
    case JobKind::kPromotion:
      (whole ? tier.guard.stats().promotion_latency : tier.guard.stats().failed_promotion_latency)
          .Add(duration);
      if (job.request >= kExternalRequests) --tier.jobs_for_peers;
      EndPromotions(job, result);
      break;
    case JobKind::kCascade:
      if (whole) {
        tier.guard.OnStored(result.ended_at - result.started_at, result.bytes, options_.now());
      } else {
        tier.guard.OnStoreFailed(options_.now());
      }
      host_->Unpin(job.slots, Holder(result.id));
      break;
    case JobKind::kServe:
      slots_serving_ -= job.slots.size();
      host_->Unpin(job.slots, Holder(result.id));
      break;
  }
}

void TieringManager::EndPromotions(const Job& job, const JobResult& result) {
  const auto state = requests_.find(job.request);
  for (std::size_t i = 0; i < job.keys.size(); ++i) {
    EndPromotion(job.slots[i], result.outcomes[i]);
    if (result.outcomes[i] != CopyOutcome::kOk && state != requests_.end()) {
      NotBrought(job.keys[i], job.tier, state->second);
    }
  }
}

void TieringManager::EndPromotion(SlotId slot, CopyOutcome outcome) {
  const auto promotion = promotions_.find(slot);
  if (promotion->second.overdue) {
    --stats_.stuck_slots;
  } else {
    --slots_promoting_;
  }
  promotions_.erase(promotion);
  host_->Publish({&slot, 1}, outcome);
}

void TieringManager::MarkPromotionOverdue(Promotion& promotion) {
  if (std::exchange(promotion.overdue, true)) return;
  ++stats_.promotions_overdue;
  ++stats_.stuck_slots;
  --slots_promoting_;
}

// Jobs of one kind pass their deadlines in the order in which they were submitted.
void TieringManager::MarkOverdueJobs() {
  const TimePoint now = options_.now();
  for (auto& deadlines : deadlines_) {
    for (; !deadlines.empty(); deadlines.pop_front()) {
      const auto [deadline, id] = deadlines.front();
      const auto found = jobs_.find(id);
      if (found == jobs_.end()) continue;
      if (deadline > now) break;
      MarkOverdue(found->second, now);
    }
  }
}

// A tier that forgets a peer must not keep the others' memory of its requests for ever.
void TieringManager::FinishOverduePeerRequests() {
  const TimePoint now = options_.now();
  for (; !peer_deadlines_.empty(); peer_deadlines_.pop_front()) {
    const auto [deadline, id] = peer_deadlines_.front();
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.finished) continue;
    if (deadline > now) break;
    ++stats_.peer_requests_overdue;
    FinishRequest(id);
  }
}

// Nothing is taken from the tier: it may still read or write. But nobody waits any longer.
void TieringManager::MarkOverdue(Job& job, TimePoint now) {
  job.overdue = true;
  ++overdue_jobs_;
  TransferStats& stats = StatsOf(job);
  ++stats.overdue_jobs;
  ++stats.overdue_jobs_total;
  if (IsForPeer(job)) --peer_jobs_;
  if (job.permit)
    tiers_[job.tier]->guard.OnJobEnded(*job.permit, GuardedTier::JobEnd::kFailed, now);
  if (job.kind == JobKind::kPromotion) {
    for (SlotId slot : job.slots) MarkPromotionOverdue(promotions_.at(slot));
  }
  TERRACE_LOG_WARN(
      "tier {} has not ended a job of {} chunks in time: nobody waits for it any longer, its slots "
      "are kept until it reports",
      tiers_[job.tier]->guard.stats().type, job.slots.size());
}

}  // namespace terrace
