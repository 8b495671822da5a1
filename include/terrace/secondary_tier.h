// A place behind host memory that can keep chunks: memory, disk, an object store, a peer.
//
// To write one, copy src/tier/memory/. A tier moves bytes between host slots and its own place,
// asynchronously, and says how it ended, exactly once a job. It never decides which chunks live in
// host memory.
//
// Threads. Every method except Drain() and Shutdown() is called under the manager's lock, from any
// thread, and must return quickly: no I/O, no waiting. What a tier shares with threads of its own
// it guards itself.
//
// Faults. A tier whose jobs fail one after the other, that throws, or that breaks this contract is
// left alone for a while (circuit breaker): its look-ups are misses and it is given no jobs. It is
// asked again after one second, then after two, up to a minute. What it threw in a Submit*() counts
// as the failure of that job, as does a job that has not ended in time.
//
// Life of a request, as a tier sees it: OnNewRequest, any number of Lookup and Submit*,
// OnRequestFinished. Jobs may still be under way then.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/export.h"
#include "terrace/request.h"
#include "terrace/tier_server.h"
#include "terrace/types.h"

namespace terrace {

// What a tier knows about a key.
enum class TierLookup : std::uint8_t {
  kMiss,   // Not here.
  kHit,    // Here; SubmitLoad() will probably succeed.
  kRetry,  // Not known yet; ask again next step.
};

// One batch of chunks to move. `keys` and `slots` are co-indexed and never empty.
//
// Store: the slots are pinned and hold complete chunks until the job is reported. A tier drops keys
// it has already. Load: the slots are reserved and theirs to write until the job is reported.
struct TransferJob {
  JobId id;
  RequestId request;
  std::vector<ChunkKey> keys;
  std::vector<SlotId> slots;
  std::chrono::steady_clock::time_point submitted_at{};
};

// How a job ended. Each submitted job is reported exactly once, also when nothing had to be done,
// when it failed, and when it was cancelled by Drain() or Shutdown().
struct JobResult {
  JobId id;
  // One for each key of the job, in its order. A chunk of a load counts as kOk only if every byte
  // of it was verified; one of a store, if the tier has it now.
  std::vector<CopyOutcome> outcomes;
  std::uint64_t bytes = 0;  // Moved, without headers.
  // When the tier began and ended to work on it, for back-pressure. Not set: when it was submitted,
  // and when the manager hears of it.
  std::chrono::steady_clock::time_point started_at{};
  std::chrono::steady_clock::time_point ended_at{};
};

// What of a request's chunks a tier wants.
enum class StoreInterest : std::uint8_t {
  kNewChunks,     // Those that the request stores anew.
  kWholeRequest,  // Also those that it offers and that host memory has already.
  kNothing,       // None: it is given no stores of this request.
};

// A number that only grows, named for humans and metrics: `terrace_<part>_<noun>_<unit>_total`.
// Without `_total` it is one of now.
struct CounterValue {
  std::string_view name;
  std::uint64_t value = 0;
};

class TERRACE_API SecondaryTier {
 public:
  virtual ~SecondaryTier() = default;

  // "file", "memory", ...; constant.
  virtual std::string_view type() const = 0;
  // How hit tokens that came from this tier are accounted; constant.
  virtual LoadSource load_source() const = 0;

  // Idempotent within a step.
  // Cost: O(1), from memory.
  virtual TierLookup Lookup(const ChunkKey& key, const Request& request) = 0;

  // Queues the job and returns.
  virtual void SubmitStore(TransferJob job) = 0;
  virtual void SubmitLoad(TransferJob job) = 0;

  // Appends the results of jobs that ended since the last call. After this call the tier touches
  // none of their slots. Cost when there is nothing: one atomic load.
  virtual void TakeFinished(std::vector<JobResult>& results) = 0;

  virtual StoreInterest OnNewRequest(const Request&) { return StoreInterest::kNewChunks; }
  virtual void OnRequestFinished(const Request&) {}
  // Once at the end of each scheduler step.
  virtual void OnScheduleEnd() {}

  // True while it has work that an otherwise idle engine must keep stepping for. Jobs are known to
  // the manager anyway; work that the control thread can do is none.
  virtual bool HasPendingWork() const { return false; }

  // Whether it answers work from outside the engine (peers). If so, the control thread polls and
  // serves it between the engine's steps; without such a thread it is served once a step. Constant.
  virtual bool serves_external_requests() const { return false; }
  // False for one that only the engine's own thread may serve: once a step, never between.
  // Constant.
  virtual bool serves_between_steps() const { return true; }
  // Answers what has arrived, as far as server.ShouldYield() allows; the rest is served next time.
  virtual void ServeExternalRequests(TierServer& /*server*/) {}
  // False for one whose jobs may all fail while it works: it cannot store, or what its look-ups
  // find is a guess. Only what it throws, or does not end in time, counts against it then.
  // Constant.
  virtual bool failed_jobs_are_faults() const { return true; }
  // Readable (poll(2)) while there is something to take or to serve; when it is not, up to 20 ms
  // may pass between two looks. -1 if it has none: it is then looked at at each interval. Constant.
  virtual int event_descriptor() const { return -1; }

  // What it counted since it was made, in a fixed order. For reading by people and metrics.
  virtual std::vector<CounterValue> Counters() const { return {}; }

  // Blocks until every submitted job has ended or `timeout` has passed; true if all ended. Running
  // copies are finished, never torn. Called without the manager's lock, while nobody submits.
  virtual bool Drain(std::chrono::milliseconds timeout) = 0;

  // Cancels queued jobs (reported as failed), waits for running ones, removes what is temporary,
  // joins its threads. Idempotent. Called without the manager's lock. False if something of it
  // still runs at the end of `timeout`: the tier and the host memory are then never destroyed,
  // since that may still use both.
  [[nodiscard]] virtual bool Shutdown(std::chrono::milliseconds timeout) = 0;
};

}  // namespace terrace
