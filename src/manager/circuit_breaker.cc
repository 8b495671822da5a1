#include "manager/circuit_breaker.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

std::size_t Index(CircuitBreaker::Work work) { return static_cast<std::size_t>(work); }

}  // namespace

CircuitBreaker::CircuitBreaker(const Options& options) : options_(options) {
  TERRACE_CHECK(options.failure_threshold >= 1, "a breaker opens after at least one failure");
  TERRACE_CHECK(options.backoff_initial.count() > 0, "a breaker without back-off never opens");
  TERRACE_CHECK(options.backoff_max >= options.backoff_initial, "the back-off only grows");
}

CircuitBreaker::State CircuitBreaker::state(TimePoint now) const {
  if (closed_) return State::kClosed;
  if (ProbeIsOut(now)) return State::kHalfOpen;
  // An overdue probe failed at its deadline, whether or not anybody came by to see it.
  const TimePoint until = probe_deadline_ ? *probe_deadline_ + NextBackoff() : open_until_;
  return now < until ? State::kOpen : State::kHalfOpen;
}

bool CircuitBreaker::Allows(Work work, TimePoint now) const {
  if (closed_) return true;
  if (work == Work::kPoll && culprit_ != Work::kPoll) return true;
  if (state(now) == State::kOpen || ProbeIsOut(now)) return false;
  return work == culprit_ || (work == Work::kLookup && culprit_ == Work::kJob);
}

std::optional<CircuitBreaker::Permit> CircuitBreaker::Claim(Work work, TimePoint now) {
  SettleOverdueProbe(now);
  if (!Allows(work, now)) {
    ++counters_.rejected_total[Index(work)];
    return std::nullopt;
  }
  if (!closed_ && work == culprit_) probe_deadline_ = now + backoff_;
  return Permit{work, epoch_};
}

bool CircuitBreaker::IsProbe(const Permit& permit, TimePoint now) const {
  return !closed_ && permit.epoch == epoch_ && permit.work == culprit_ && ProbeIsOut(now);
}

void CircuitBreaker::OnSuccess(const Permit& permit, TimePoint now) {
  SettleOverdueProbe(now);
  if (permit.epoch != epoch_) return;
  failures_[Index(permit.work)] = 0;
  // Of the culprit's kind there is one permit in an epoch, the probe's.
  if (!closed_ && permit.work == culprit_) Close();
}

void CircuitBreaker::OnFailure(const Permit& permit, TimePoint now) {
  SettleOverdueProbe(now);
  if (permit.epoch != epoch_) return;
  const bool was_probe = !closed_ && permit.work == culprit_;
  const std::uint32_t failures = ++failures_[Index(permit.work)];
  if (was_probe || failures >= options_.failure_threshold) Open(permit.work, now);
}

std::chrono::milliseconds CircuitBreaker::NextBackoff() const {
  return std::min(backoff_ * 2, options_.backoff_max);
}

void CircuitBreaker::SettleOverdueProbe(TimePoint now) {
  if (probe_deadline_ && now >= *probe_deadline_) Open(culprit_, *probe_deadline_);
}

void CircuitBreaker::Open(Work culprit, TimePoint at) {
  backoff_ = closed_ ? options_.backoff_initial : NextBackoff();
  closed_ = false;
  culprit_ = culprit;
  open_until_ = at + backoff_;
  probe_deadline_.reset();
  failures_[Index(culprit)] = 0;
  ++epoch_;
  ++counters_.opened_total;
}

void CircuitBreaker::Close() {
  closed_ = true;
  probe_deadline_.reset();
  ++epoch_;
}

}  // namespace terrace
