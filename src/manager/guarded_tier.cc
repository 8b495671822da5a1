#include "manager/guarded_tier.h"

#include <exception>
#include <utility>

#include "base/log.h"

namespace terrace {

using Work = CircuitBreaker::Work;

template <typename Call>
bool GuardedTier::Guard(const char* call, const Call& body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& e) {
    last_fault_ = std::string(call) + " threw: " + e.what();
  } catch (...) {
    last_fault_ = std::string(call) + " threw something that is no std::exception";
  }
  ++stats_.faults;
  return false;
}

GuardedTier::GuardedTier(std::unique_ptr<SecondaryTier> impl, const GuardedTierOptions& options)
    : owned_(std::move(impl)),
      impl_(owned_.get()),
      breaker_(options.breaker),
      backpressure_(Backpressure::Create(options.backpressure).value()) {
  Guard("asking what it is", [&] {
    stats_.type = std::string(impl_->type());
    stats_.source = impl_->load_source();
    serves_ = impl_->serves_external_requests();
    serves_between_steps_ = impl_->serves_between_steps();
    failed_jobs_are_faults_ = impl_->failed_jobs_are_faults();
    event_descriptor_ = impl_->event_descriptor();
  });
}

// Says when the breaker opens, and why: its back-off bounds how often that is.
void GuardedTier::Count(const Permit& permit, bool ok, TimePoint now) {
  if (ok) {
    breaker_.OnSuccess(permit, now);
    return;
  }
  const std::uint64_t before = breaker_.counters().opened_total;
  breaker_.OnFailure(permit, now);
  if (breaker_.counters().opened_total == before) return;
  TERRACE_LOG_WARN("tier {} is left alone for a while after failures in a row; the last: {}",
                   stats_.type, last_fault_);
}

TierLookup GuardedTier::Lookup(const ChunkKey& key, const Request& request, TimePoint now) {
  auto permit = breaker_.Claim(Work::kLookup, now);
  if (!permit && lookup_probe_ && lookup_probe_->key == key &&
      breaker_.IsProbe(lookup_probe_->permit, now)) {
    permit = lookup_probe_->permit;
  }
  if (!permit) return TierLookup::kMiss;
  TierLookup found = TierLookup::kMiss;
  const bool ok = Guard("Lookup", [&] { found = impl_->Lookup(key, request); });
  if (ok && found == TierLookup::kRetry) {
    if (breaker_.IsProbe(*permit, now)) lookup_probe_ = {*permit, key};
    return found;
  }
  Count(*permit, ok, now);
  return found;
}

// While it is not closed, this is about a look-up of before.
void GuardedTier::OnLookupOverdue(TimePoint now) {
  ++stats_.faults;
  last_fault_ = "a look-up had no answer in time";
  if (breaker_.state(now) != CircuitBreaker::State::kClosed) return;
  if (const auto permit = breaker_.Claim(Work::kLookup, now)) Count(*permit, false, now);
}

std::optional<GuardedTier::Permit> GuardedTier::ClaimJob(TimePoint now) {
  return breaker_.Claim(Work::kJob, now);
}

bool GuardedTier::Submit(Direction direction, TransferJob job) {
  if (direction == Direction::kStore) {
    return Guard("SubmitStore", [&] { impl_->SubmitStore(std::move(job)); });
  }
  return Guard("SubmitLoad", [&] { impl_->SubmitLoad(std::move(job)); });
}

void GuardedTier::OnJobEnded(const Permit& permit, JobEnd end, TimePoint now) {
  if (end == JobEnd::kFailed && last_fault_.empty()) last_fault_ = "a job failed whole";
  Count(permit, end == JobEnd::kOk, now);
}

bool GuardedTier::AdmitsStore(std::uint64_t chunks, TimePoint now) {
  return backpressure_.Admit(chunks, now);
}

void GuardedTier::OnStored(std::chrono::nanoseconds duration, std::uint64_t bytes, TimePoint now) {
  backpressure_.OnStored(duration, bytes, now);
}
void GuardedTier::OnStoreFailed(TimePoint now) { backpressure_.OnStoreFailed(now); }
void GuardedTier::ResetBackpressure() { backpressure_.Reset(); }

// False if it is down or threw.
template <typename Call>
bool GuardedTier::Poll(const char* call, TimePoint now, const Call& body) {
  if (!poll_) poll_ = breaker_.Claim(Work::kPoll, now);
  if (!poll_) return false;
  const bool ok = Guard(call, body);
  poll_ok_ = poll_ok_ && ok;
  return ok;
}

// Made whether the tier is up or not: it must hear of it. What it throws counts against the poll
// that is under way or comes next.
template <typename Call>
void GuardedTier::Hook(const char* call, const Call& body) {
  if (!Guard(call, body)) poll_ok_ = false;
}

void GuardedTier::EndPoll(TimePoint now) {
  if (const auto permit = std::exchange(poll_, std::nullopt)) Count(*permit, poll_ok_, now);
  poll_ok_ = true;
}

void GuardedTier::TakeFinished(std::vector<JobResult>& results, TimePoint now) {
  Poll("TakeFinished", now, [&] { impl_->TakeFinished(results); });
}

void GuardedTier::OnContractFault(const std::string& what) {
  ++stats_.faults;
  last_fault_ = what;
  poll_ok_ = false;
}

StoreInterest GuardedTier::OnNewRequest(const Request& request) {
  StoreInterest interest = StoreInterest::kNewChunks;
  Hook("OnNewRequest", [&] { interest = impl_->OnNewRequest(request); });
  return interest;
}

void GuardedTier::OnRequestFinished(const Request& request) {
  Hook("OnRequestFinished", [&] { impl_->OnRequestFinished(request); });
}

void GuardedTier::OnScheduleEnd(TimePoint now) {
  Poll("OnScheduleEnd", now, [&] { impl_->OnScheduleEnd(); });
}

bool GuardedTier::HasPendingWork(TimePoint now) {
  // What a tier that is down says must not keep an idle engine stepping.
  if (breaker_.state(now) != CircuitBreaker::State::kClosed) return false;
  bool pending = false;
  Hook("HasPendingWork", [&] { pending = impl_->HasPendingWork(); });
  return pending;
}

bool GuardedTier::Serve(TierServer& server, TimePoint now) {
  return Poll("ServeExternalRequests", now, [&] { impl_->ServeExternalRequests(server); });
}

GuardedTier::DrainEnd GuardedTier::Drain(std::chrono::milliseconds timeout) {
  try {
    return impl_->Drain(timeout) ? DrainEnd::kDrained : DrainEnd::kTimedOut;
  } catch (...) {
    return DrainEnd::kThrew;
  }
}

bool GuardedTier::Shutdown(std::chrono::milliseconds timeout) {
  bool ended = false;
  const bool ok = Guard("Shutdown", [&] { ended = impl_->Shutdown(timeout); });
  if (ok && ended) return true;
  TERRACE_LOG_ERROR("tier {}: {}: it and the host memory are kept until the process ends",
                    stats_.type, ok ? "did not shut down in time" : last_fault_);
  return false;
}

void GuardedTier::Leak() { (void)owned_.release(); }

TierStats GuardedTier::Snapshot(TimePoint now) const {
  TierStats stats = stats_;
  stats.seconds_per_mib = backpressure_.ema_s_per_mib();
  stats.dropped_by_backpressure_chunks = backpressure_.counters().chunks_dropped;
  switch (breaker_.state(now)) {
    case CircuitBreaker::State::kClosed:
      stats.health = TierHealth::kUp;
      break;
    case CircuitBreaker::State::kOpen:
      stats.health = TierHealth::kDown;
      break;
    case CircuitBreaker::State::kHalfOpen:
      stats.health = TierHealth::kProbing;
      break;
  }
  stats.downs = breaker_.counters().opened_total;
  try {
    stats.counters = impl_->Counters();
  } catch (...) {
    // Numbers for people; the tier's faults are counted where it works.
  }
  return stats;
}

}  // namespace terrace
