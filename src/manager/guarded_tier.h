// A secondary tier behind a fence: whatever it does, the manager and the other tiers go on.
//
// Every call to a tier goes through here, from the engine's path and from the control thread's
// alike. What it throws is caught and counted, what breaks its contract too; a tier that goes on
// failing is left alone by its circuit breaker.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "manager/backpressure.h"
#include "manager/circuit_breaker.h"
#include "terrace/manager_stats.h"
#include "terrace/secondary_tier.h"

namespace terrace {

struct GuardedTierOptions {
  CircuitBreaker::Options breaker;
  BackpressureOptions backpressure = BackpressureOptions::Off();  // Of its cascades; valid.
};

// Thread-compatible, as what the manager owns is, but for Drain() and Shutdown().
class GuardedTier {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Permit = CircuitBreaker::Permit;

  GuardedTier(std::unique_ptr<SecondaryTier> impl, const GuardedTierOptions& options);

  LoadSource load_source() const { return stats_.source; }
  bool serves_external_requests() const { return serves_; }
  bool serves_between_steps() const { return serves_ && serves_between_steps_; }
  bool failed_jobs_are_faults() const { return failed_jobs_are_faults_; }
  int event_descriptor() const { return event_descriptor_; }

  // kMiss also while it is down. "Not known yet" is no success and no failure.
  TierLookup Lookup(const ChunkKey& key, const Request& request, TimePoint now);
  // It has said nothing else of a chunk for as long as a request waits.
  void OnLookupOverdue(TimePoint now);

  // Leave to give it a job, to be handed back by the job's end. nullopt while it is down.
  std::optional<Permit> ClaimJob(TimePoint now);
  enum class Direction : std::uint8_t { kStore, kLoad };
  // False if it threw: then it has not taken the job.
  [[nodiscard]] bool Submit(Direction direction, TransferJob job);
  enum class JobEnd : std::uint8_t { kOk, kFailed };
  void OnJobEnded(const Permit& permit, JobEnd end, TimePoint now);

  // Whether back-pressure lets a store of this many chunks through now.
  [[nodiscard]] bool AdmitsStore(std::uint64_t chunks, TimePoint now);
  // What the tier's own time stamps say of a store that succeeded.
  void OnStored(std::chrono::nanoseconds duration, std::uint64_t bytes, TimePoint now);
  void OnStoreFailed(TimePoint now);
  void ResetBackpressure();

  // Polling and the hooks of a step or a round count as one piece of work, which succeeds as a
  // whole: EndPoll() ends it.
  void EndPoll(TimePoint now);
  // Appends what it finished since the last call.
  void TakeFinished(std::vector<JobResult>& results, TimePoint now);
  // It broke its contract.
  void OnContractFault(const std::string& what);

  StoreInterest OnNewRequest(const Request& request);
  void OnRequestFinished(const Request& request);
  void OnScheduleEnd(TimePoint now);
  bool HasPendingWork(TimePoint now);
  // False if it is down or threw.
  bool Serve(TierServer& server, TimePoint now);

  // Without the manager's lock, while others hold it: what it threw is for the caller to count.
  enum class DrainEnd : std::uint8_t { kDrained, kTimedOut, kThrew };
  DrainEnd Drain(std::chrono::milliseconds timeout);
  // Without the manager's lock, when nobody else is left. False also if it threw.
  bool Shutdown(std::chrono::milliseconds timeout);
  // Never destroys the tier: something of it still runs.
  void Leak();

  TierStats& stats() { return stats_; }
  const TierStats& stats() const { return stats_; }
  // Complete, with what the tier and the guards count.
  TierStats Snapshot(TimePoint now) const;

 private:
  template <typename Call>
  bool Guard(const char* call, const Call& body) noexcept;
  void Count(const Permit& permit, bool ok, TimePoint now);
  template <typename Call>
  bool Poll(const char* call, TimePoint now, const Call& body);
  template <typename Call>
  void Hook(const char* call, const Call& body);

  std::unique_ptr<SecondaryTier> owned_;  // Empty once leaked.
  SecondaryTier* impl_;
  CircuitBreaker breaker_;
  Backpressure backpressure_;
  bool serves_ = false;
  bool serves_between_steps_ = true;
  bool failed_jobs_are_faults_ = true;
  int event_descriptor_ = -1;
  struct LookupProbe {
    Permit permit;
    ChunkKey key;
  };
  std::optional<LookupProbe> lookup_probe_;  // The last one whose answer was not known yet.
  std::optional<Permit> poll_;               // Since the last EndPoll().
  bool poll_ok_ = true;
  std::string last_fault_;
  TierStats stats_;
};

}  // namespace terrace
