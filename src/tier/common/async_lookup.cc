#include "tier/common/async_lookup.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kSpanMax = std::chrono::hours(24);

}  // namespace

struct AsyncLookup::Answer {
  std::shared_ptr<const Batch> batch;
  std::vector<bool> present;
  bool failed = false;  // The check threw.
};

// The two queues between the look-ups and their thread. The thread holds a share of it, so that one
// that hangs in a check may outlive the rest. Thread-safe.
class AsyncLookup::Exchange {
 public:
  Exchange(Check check, std::function<void()> on_answers)
      : check_(std::move(check)), on_answers_(std::move(on_answers)) {}

  void Post(std::shared_ptr<const Batch> batch) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(batch));
    changed_.NotifyAll();
  }

  // Takes a batch back; false if the thread has taken it.
  bool Withdraw(const std::shared_ptr<const Batch>& batch) {
    MutexLock lock(mutex_);
    const auto found = std::find(queue_.begin(), queue_.end(), batch);
    if (found == queue_.end()) return false;
    queue_.erase(found);
    return true;
  }

  // Cost when there are none: one atomic load.
  std::vector<Answer> TakeAnswers() {
    if (!has_answers_.load(std::memory_order_relaxed)) return {};
    MutexLock lock(mutex_);
    has_answers_.store(false, std::memory_order_relaxed);
    return std::exchange(answers_, {});
  }

  // True once the thread will do nothing more. After this, true or false, it neither takes a batch
  // nor calls on_answers_.
  bool Stop(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    bool in_time = true;
    while (!ended_ && (in_time || notifying_)) {
      if (in_time) {
        in_time = changed_.WaitUntil(mutex_, deadline);
      } else {
        changed_.Wait(mutex_);
      }
    }
    return ended_;
  }

  void Run() {
    while (auto batch = Take()) Give(Ask(std::move(batch)));
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

 private:
  std::shared_ptr<const Batch> Take() {
    MutexLock lock(mutex_);
    while (!stopping_ && queue_.empty()) changed_.Wait(mutex_);
    if (stopping_) return nullptr;
    auto batch = std::move(queue_.front());
    queue_.pop_front();
    return batch;
  }

  Answer Ask(std::shared_ptr<const Batch> batch) const {
    Answer answer{std::move(batch), {}};
    try {
      answer.present = check_(answer.batch->keys);
    } catch (...) {  // We throw nothing, but the author of a tier might.
      answer.failed = true;
    }
    return answer;
  }

  void Give(Answer answer) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      answers_.push_back(std::move(answer));
      has_answers_.store(true, std::memory_order_relaxed);
      // Who takes one takes all: for the second there is no need to wake anybody.
      if (answers_.size() > 1 || !on_answers_) return;
      notifying_ = true;
    }
    on_answers_();
    MutexLock lock(mutex_);
    notifying_ = false;
    changed_.NotifyAll();
  }

  const Check check_;
  const std::function<void()> on_answers_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<const Batch>> queue_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ TERRACE_GUARDED_BY(mutex_);
  bool notifying_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  bool ended_ TERRACE_GUARDED_BY(mutex_) = false;
  // !answers_.empty(). Relaxed: only a hint to take the mutex.
  std::atomic<bool> has_answers_{false};
};

Result<std::unique_ptr<AsyncLookup>> AsyncLookup::Create(Check check, Options options) {
  TERRACE_CHECK(check != nullptr, "look-ups need something to ask");
  TERRACE_CHECK(options.keys_per_check_max >= 1 && options.keys_waiting_max >= 1,
                "look-ups without keys");
  for (const std::chrono::milliseconds span : {options.check_timeout, options.verdict_age_max}) {
    TERRACE_CHECK(span.count() > 0 && span <= kSpanMax, "look-ups without time, or without end");
  }
  auto exchange = std::make_shared<Exchange>(std::move(check), options.on_answers);
  auto thread = StartThread(options.thread_name, "", [exchange] { exchange->Run(); });
  if (!thread) return std::move(thread).error();
  std::unique_ptr<AsyncLookup> lookup(new AsyncLookup(std::move(exchange), std::move(options)));
  lookup->thread_ = std::move(thread).value();
  return lookup;
}

AsyncLookup::AsyncLookup(std::shared_ptr<Exchange> exchange, Options options)
    : options_(std::move(options)), exchange_(std::move(exchange)), now_(options_.now()) {}

AsyncLookup::~AsyncLookup() { Shutdown(options_.check_timeout); }

TierLookup AsyncLookup::Lookup(const ChunkKey& key, const Request& request) {
  if (!seen_since_flush_) Drain();
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (Refuses()) return TierLookup::kMiss;
    found = entries_.try_emplace(key).first;
    Note(key, found->second);
  }
  Entry& entry = found->second;
  const bool asked_before =
      std::find(entry.requests.begin(), entry.requests.end(), request.id) != entry.requests.end();
  if (!asked_before) {
    entry.requests.push_back(request.id);
    keys_of_[request.id].push_back(key);
  }
  if (IsTooOld(entry, asked_before)) {
    if (Refuses()) return TierLookup::kMiss;
    Note(key, entry);
  }
  switch (entry.phase) {
    case Phase::kHit:
      return TierLookup::kHit;
    case Phase::kMiss:
      return TierLookup::kMiss;
    case Phase::kPending:
    case Phase::kInFlight:
      break;
  }
  return TierLookup::kRetry;
}

void AsyncLookup::Flush() {
  Drain();
  PostPending();
  seen_since_flush_ = false;
}

void AsyncLookup::Drain() {
  now_ = options_.now();
  for (const Answer& answer : exchange_->TakeAnswers()) TakeAnswer(answer);
  ExpireOverdue();
  seen_since_flush_ = true;
}

void AsyncLookup::MarkMiss(std::span<const ChunkKey> keys) {
  for (const ChunkKey& key : keys) {
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second.phase == Phase::kHit) {
      Resolve(found->second, Phase::kMiss);
    }
  }
}

void AsyncLookup::MarkStored(std::span<const ChunkKey> keys) {
  for (const ChunkKey& key : keys) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    Resolve(found->second, Phase::kHit);
    EraseIfUnwanted(found);
  }
}

void AsyncLookup::OnRequestFinished(const Request& request) {
  const auto asked = keys_of_.extract(request.id);
  if (asked.empty()) return;
  for (const ChunkKey& key : asked.mapped()) {
    const auto found = entries_.find(key);
    TERRACE_DCHECK(found != entries_.end(), "an entry outlives the requests that asked");
    std::erase(found->second.requests, request.id);
    EraseIfUnwanted(found);
  }
}

bool AsyncLookup::Shutdown(std::chrono::milliseconds timeout) {
  if (shut_down_) return joined_;
  shut_down_ = true;
  joined_ = exchange_->Stop(DeadlineIn(timeout));
  joined_ ? thread_.join() : thread_.detach();
  entries_.clear();
  keys_of_.clear();
  pending_.clear();
  posted_.clear();
  return joined_;
}

std::vector<CounterValue> AsyncLookup::Counters() const {
  return {{"terrace_lookup_checks_total", counters_.checks},
          {"terrace_lookup_checks_failed_total", counters_.checks_failed},
          {"terrace_lookup_keys_checked_total", counters_.keys_checked},
          {"terrace_lookup_keys_overdue_total", counters_.keys_overdue},
          {"terrace_lookup_keys_refused_total", counters_.keys_refused},
          {"terrace_lookup_answers_missing_total", counters_.answers_missing},
          {"terrace_lookup_answers_surplus_total", counters_.answers_surplus},
          {"terrace_lookup_answers_late_total", counters_.answers_late}};
}

// Whether a key cannot be asked about now, which makes it a miss; counts it then.
bool AsyncLookup::Refuses() {
  if (!shut_down_ && stuck_batch_ == 0 && pending_count_ + posted_keys_ < options_.keys_waiting_max)
    return false;
  ++counters_.keys_refused;
  return true;
}

// A request that was told of a miss computes the chunk; to ask again would only delay it.
bool AsyncLookup::IsTooOld(const Entry& entry, bool asked_before) const {
  const bool counts = entry.phase == Phase::kHit || (entry.phase == Phase::kMiss && !asked_before);
  return counts && now_ - entry.resolved_at >= options_.verdict_age_max;
}

void AsyncLookup::Note(const ChunkKey& key, Entry& entry) {
  entry.phase = Phase::kPending;
  ++pending_count_;
  pending_.push_back(key);
}

void AsyncLookup::Resolve(Entry& entry, Phase verdict) {
  if (entry.phase == Phase::kPending) --pending_count_;
  entry.phase = verdict;
  entry.resolved_at = now_;
}

// One in flight stays until its answer, so that who asks next shares it.
void AsyncLookup::EraseIfUnwanted(Entries::iterator entry) {
  if (!entry->second.requests.empty() || entry->second.phase == Phase::kInFlight) return;
  if (entry->second.phase == Phase::kPending) --pending_count_;
  entries_.erase(entry);
}

// Keys that were resolved or asked about anew in the meantime are left alone.
void AsyncLookup::ResolveBatch(const Batch& batch, const std::vector<bool>& present) {
  for (std::size_t i = 0; i < batch.keys.size(); ++i) {
    const auto found = entries_.find(batch.keys[i]);
    if (found == entries_.end()) continue;
    Entry& entry = found->second;
    if (entry.phase != Phase::kInFlight || entry.batch != batch.id) continue;
    Resolve(entry, i < present.size() && present[i] ? Phase::kHit : Phase::kMiss);
    EraseIfUnwanted(found);
  }
}

void AsyncLookup::TakeAnswer(const Answer& answer) {
  const Batch& batch = *answer.batch;
  const std::size_t keys = batch.keys.size();
  const std::size_t answers = answer.present.size();
  ++counters_.checks;
  counters_.keys_checked += keys;
  if (answer.failed) {
    ++counters_.checks_failed;
  } else if (answers < keys) {
    counters_.answers_missing += keys - answers;
  } else {
    counters_.answers_surplus += answers - keys;
  }
  // One thread answers in order, so an answer is to the oldest batch or to one that was overdue.
  if (posted_.empty() || posted_.front().batch != answer.batch) {
    counters_.answers_late += keys;
    if (stuck_batch_ <= batch.id) stuck_batch_ = 0;
    return;
  }
  ResolveBatch(batch, answer.present);
  posted_keys_ -= keys;
  posted_.pop_front();
}

void AsyncLookup::ExpireOverdue() {
  while (!posted_.empty() && now_ >= posted_.front().deadline) {
    const std::shared_ptr<const Batch> batch = std::move(posted_.front().batch);
    posted_.pop_front();
    posted_keys_ -= batch->keys.size();
    counters_.keys_overdue += batch->keys.size();
    if (!exchange_->Withdraw(batch)) stuck_batch_ = batch->id;
    ResolveBatch(*batch, {});
  }
}

void AsyncLookup::PostPending() {
  std::shared_ptr<Batch> batch;
  const auto post = [&] {
    posted_.push_back({batch, now_ + options_.check_timeout});
    posted_keys_ += batch->keys.size();
    exchange_->Post(std::move(batch));
  };
  for (const ChunkKey& key : pending_) {
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.phase != Phase::kPending) continue;
    Entry& entry = found->second;
    if (stuck_batch_ != 0) {
      Resolve(entry, Phase::kMiss);
      ++counters_.keys_refused;
      continue;
    }
    if (!batch) batch = std::make_shared<Batch>(Batch{next_batch_++, {}});
    batch->keys.push_back(key);
    entry.phase = Phase::kInFlight;
    entry.batch = batch->id;
    --pending_count_;
    if (batch->keys.size() == options_.keys_per_check_max) post();
  }
  if (batch) post();
  pending_.clear();
}

}  // namespace terrace
