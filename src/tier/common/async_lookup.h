// Look-ups for a tier that cannot answer from memory: a stat on a shared directory, a HEAD request
// to an object store, a question to a peer. A tool for tier authors; a tier that keeps an index of
// its own needs none of it.
//
// Lookup() says kRetry for a key it does not know and notes it. Flush(), at the end of the step,
// hands all noted keys to one thread, which asks the tier's check function. What comes back is seen
// by the first Lookup() after a Flush(), by Flush() itself and by Drain(); between two of these a
// verdict does not change, so that look-ups of one step agree.
//
//   TierLookup Lookup(key, request)   { return lookups_->Lookup(key, request); }
//   void OnScheduleEnd()              { lookups_->Flush(); }
//   void OnRequestFinished(request)   { lookups_->OnRequestFinished(request); }
//   ... a load found nothing:           lookups_->MarkMiss({&key, 1});
//   ... a store ended well:             lookups_->MarkStored({&key, 1});
//
//   unknown --Lookup--> pending --Flush--> in flight --answer, or the deadline--> hit | miss
//   hit | miss --the last request that asked is finished--> unknown
//   hit --older than verdict_age_max--> pending; miss: the same, but only for a request that has
//   not been told yet
//
// No key waits for ever. A check that hangs costs its keys, and those behind it, one check_timeout;
// from then until the check returns every unknown key is a miss at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/request.h"
#include "terrace/result.h"
#include "terrace/secondary_tier.h"

namespace terrace {

// Thread-compatible: the tier's methods call it under the manager's lock. Only a small queue with a
// mutex of its own crosses to the thread.
class AsyncLookup {
 public:
  // Whether each of the keys is there, in their order; may block. One call at a time, without any
  // lock. Missing answers are misses, surplus ones are ignored, an exception is a miss for all.
  // It must own all that it uses: a call that hangs outlives the tier (Shutdown()).
  using Check = std::function<std::vector<bool>(std::span<const ChunkKey>)>;

  struct Options {
    std::string thread_name = "terrace-lookup";
    std::uint32_t keys_per_check_max = 256;  // >= 1
    // Keys noted or handed over and not answered. Beyond it unknown keys are misses. >= 1
    std::uint32_t keys_waiting_max = 65'536;
    // From Flush() to the answer; then the keys are misses. Above 0, at most a day.
    std::chrono::milliseconds check_timeout{5'000};
    // How long a verdict is believed. Above 0, at most a day.
    std::chrono::milliseconds verdict_age_max{10'000};
    // Called by the thread, without any lock, when there are answers to see; and never again once
    // Shutdown() has returned. To wake who looks up (TierHost::NotifyProgress()).
    std::function<void()> on_answers;
    // A seam for tests.
    std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  };

  // kResourceExhausted if the system has no thread left.
  // Pre: the options are in their ranges.
  static Result<std::unique_ptr<AsyncLookup>> Create(Check check, Options options);
  // Shutdown() with check_timeout, unless that was called before.
  ~AsyncLookup();
  AsyncLookup(const AsyncLookup&) = delete;
  AsyncLookup& operator=(const AsyncLookup&) = delete;

  // Cost: O(1), from memory; O(answers) for the first one after a Flush().
  TierLookup Lookup(const ChunkKey& key, const Request& request);

  // Sees what came back and hands over what was noted. Cost: O(keys of both).
  void Flush();
  // Sees what came back and what is overdue. Cost when there is nothing: a clock
  // reading.
  void Drain();

  // They were to be there and are not: misses from now on. A key that is being asked about is left
  // alone; that answer is newer.
  void MarkMiss(std::span<const ChunkKey> keys);
  // They are there now: hits for whoever asked, also if a check under way still says otherwise.
  void MarkStored(std::span<const ChunkKey> keys);

  void OnRequestFinished(const Request& request);

  // Stops the thread and forgets all; later look-ups are misses. True if it is joined; false if it
  // is inside a check that did not return in `timeout`: then it is left to end by itself. Without
  // the manager's lock, while nobody else is inside. Idempotent.
  bool Shutdown(std::chrono::milliseconds timeout);

  // For SecondaryTier::Counters(), in a fixed order.
  std::vector<CounterValue> Counters() const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Phase : std::uint8_t { kPending, kInFlight, kHit, kMiss };

  struct Entry {
    Phase phase = Phase::kPending;
    std::uint64_t batch = 0;  // While in flight: the one whose answer counts.
    TimePoint resolved_at;
    std::vector<RequestId> requests;  // Who asked and is not finished.
  };
  using Entries = std::unordered_map<ChunkKey, Entry>;

  struct Batch {
    std::uint64_t id;
    std::vector<ChunkKey> keys;
  };
  struct Answer;
  class Exchange;  // What crosses to the thread.
  struct Posted {
    std::shared_ptr<const Batch> batch;
    TimePoint deadline;
  };

  AsyncLookup(std::shared_ptr<Exchange> exchange, Options options);

  bool Refuses();
  bool IsTooOld(const Entry& entry, bool asked_before) const;
  void Note(const ChunkKey& key, Entry& entry);
  void Resolve(Entry& entry, Phase verdict);
  void EraseIfUnwanted(Entries::iterator entry);
  void ResolveBatch(const Batch& batch, const std::vector<bool>& present);
  void TakeAnswer(const Answer& answer);
  void ExpireOverdue();
  void PostPending();

  const Options options_;
  const std::shared_ptr<Exchange> exchange_;
  std::thread thread_;
  bool shut_down_ = false;
  bool joined_ = false;  // By Shutdown().

  Entries entries_;
  std::unordered_map<RequestId, std::vector<ChunkKey>> keys_of_;  // Keys a request asked for.
  std::vector<ChunkKey> pending_;  // Noted since the last Flush(); some may be so no more.
  std::size_t pending_count_ = 0;  // Entries in that phase.
  std::deque<Posted> posted_;      // Neither answered nor overdue, oldest first.
  std::size_t posted_keys_ = 0;
  std::uint64_t next_batch_ = 1;
  std::uint64_t stuck_batch_ = 0;  // The overdue one that the thread is still busy with; 0 if none.
  bool seen_since_flush_ = false;
  TimePoint now_;  // When answers were last looked at; one for all look-ups of a step.

  struct {
    std::uint64_t checks, keys_checked, answers_missing, answers_surplus, checks_failed,
        keys_overdue, answers_late, keys_refused;
  } counters_{};
};

}  // namespace terrace
