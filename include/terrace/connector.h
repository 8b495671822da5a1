// What an inference engine's scheduler talks to: what of a request can be loaded, what to load into
// which blocks, what to store.
//
// The connector turns scheduling into calls of the manager, in the right order and under one hold
// of its lock a step. It knows chunks, blocks and requests; it copies nothing (see worker.h) and
// knows no engine.
//
// One engine step, in this order:
//   OnNewRequest()            when a request is added (any time between steps)
//   GetMatchedTokens()        for each waiting request; may answer "ask again next step"
//   UpdateAfterAlloc()        after the engine gave that request blocks
//   BuildStep()               once, at the end of scheduling; ends the region
//   ... worker.RunLoads(), the model, worker.RunStores() ...
//   OnTransfersDone()         with what the worker finished
//   OnRequestFinished()       when a request ends
// The first of GetMatchedTokens(), UpdateAfterAlloc() and BuildStep() takes the manager's lock and
// BuildStep() gives it back. A step that fails in between calls AbandonStep(); if it does not,
// nobody else gets the lock until the next hook outside a step, which gives the step up and logs an
// error.
//
// Confined to the engine's scheduler thread. Nothing blocks, but for the manager's lock where it is
// taken: by the step's first call, and for the length of the call by OnNewRequest(),
// OnTransfersDone(), TakeEvents(), ResetCache() and HasPendingWork(). Cost: O(chunks named by the
// call) unless said otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/connector_stats.h"
#include "terrace/export.h"
#include "terrace/offloading_manager.h"
#include "terrace/peer_route.h"
#include "terrace/result.h"
#include "terrace/types.h"
#include "terrace/worker.h"

namespace terrace {

struct ConnectorOptions {
  std::uint32_t tokens_per_chunk = 0;  // >= 1
  std::uint32_t blocks_per_chunk = 1;  // >= 1, divides tokens_per_chunk
  bool offload_prompt_only = true;     // False: chunks of generated tokens are stored too.
  // How many further steps a finished request that found no room for its last chunks offers them
  // again. Its blocks stay taken meanwhile.
  std::uint32_t finished_store_retries = 8;
};

// What a request allows, beside the options of the connector.
struct RequestOptions {
  std::uint32_t prompt_tokens = 0;  // Bounds what is stored if offload_prompt_only.
  // Secondary tiers to load from; host memory always.
  LoadSourceSet load_from = LoadSourceSet::All();
  // At most so many tokens are loaded, rounded down to chunks, and its first so many stored.
  std::uint32_t max_load_tokens = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t max_offload_tokens = std::numeric_limits<std::uint32_t>::max();
  // The nodes it concerns, for the peer tier; null: none in particular.
  std::shared_ptr<const PeerRoute> route = nullptr;
};

struct MatchedTokens {
  enum class Status : std::uint8_t {
    kKnown,  // `tokens` is the answer.
    kLater,  // Something is on its way to host memory, or not known yet: ask again next step.
  };
  Status status = Status::kKnown;
  std::uint32_t tokens = 0;  // Beyond those computed already; a multiple of tokens_per_chunk.
};

// A request that takes part in a step.
struct ScheduledRequest {
  RequestId id;
  std::span<const BlockId> new_blocks;  // Given to it in this step, in order, behind those it has.
  std::uint32_t computed_tokens =
      0;  // In the engine's KV memory before this step, loaded ones included.
  std::uint32_t scheduled_tokens = 0;  // Computed by this step.
};

struct StepInput {
  std::span<const ScheduledRequest> scheduled;
  // Their blocks were taken away; they start over with GetMatchedTokens().
  std::span<const RequestId> preempted;
};

struct StepPlan {
  std::vector<EngineJob> loads;      // To copy before the model needs them.
  std::vector<EngineJob> stores;     // To copy after the model computed them.
  std::vector<JobId> jobs_to_flush;  // Stores that must end before this step's model runs, since
                                     // their blocks were given away.
};

// Tokens of a request that were loaded, by where they came from.
struct LoadedTokens {
  std::array<std::uint32_t, kLoadSourceCount> by_source{};
  std::uint32_t total() const {
    std::uint32_t sum = 0;
    for (std::uint32_t n : by_source) sum += n;
    return sum;
  }
};

class TERRACE_API Connector {
 public:
  // `manager` outlives the connector. kInvalidArgument names what is wrong with the options.
  static Result<std::unique_ptr<Connector>> Create(OffloadingManager& manager,
                                                   const ConnectorOptions& options);
  ~Connector();

  // Pre: no live request has this id, and it is below kExternalRequests.
  void OnNewRequest(RequestId id, const RequestOptions& options);
  // Adds names for further whole chunks of the request's tokens, prompt and generated alike.
  void AppendKeys(RequestId id, std::span<const ChunkKey> keys);

  // How many tokens behind `computed_tokens` can be loaded, at most up to token `limit` (for an
  // engine that must compute the last token itself: its number of tokens - 1). Repeatable. Pre:
  // computed_tokens is a multiple of tokens_per_chunk; the request is not running.
  MatchedTokens GetMatchedTokens(RequestId id, std::uint32_t computed_tokens, std::uint32_t limit);

  // The engine has accepted `external_tokens` of a match in this same step and gave the request
  // `blocks`, which hold its tokens from the first on (those computed already included). Plans the
  // load.
  // Pre: external_tokens is a multiple of tokens_per_chunk and at most what
  // GetMatchedTokens() said in this step, under the same hold of the lock.
  void UpdateAfterAlloc(RequestId id, std::span<const BlockId> blocks,
                        std::uint32_t computed_tokens, std::uint32_t external_tokens);

  // Ends the scheduling part of a step. Jobs in the plan must be given to the worker, and each
  // reported exactly once.
  StepPlan BuildStep(const StepInput& input);

  // Gives up the step's hold of the lock without a plan. Does nothing if no step is open.
  void AbandonStep();

  void OnTransfersDone(std::span<const TransferResult> results);

  // `total_tokens` are in KV memory and final. Chunks not stored yet are offered in the next
  // BuildStep(), so the blocks must stay until HasTransfers(id) is false after it. Aborted requests
  // pass what they have.
  void OnRequestFinished(RequestId id, std::uint32_t total_tokens);

  // OffloadingManager::TakeEvents() in a short region.
  std::vector<CacheEvent> TakeEvents();

  // Forgets what is in host memory, at once (OffloadingManager::ResetCache()). Copies under way go
  // on and are reported as ever; what they bring is dropped. Running requests store anew from their
  // first chunk on. Takes a short region; between steps only.
  ResetReport ResetCache();

  // True while jobs of the request are under way, or will be planned by the next BuildStep().
  bool HasTransfers(RequestId id) const;

  // True while an idle engine must keep stepping. Takes a short region.
  bool HasPendingWork() const;

  // Of the load that UpdateAfterAlloc() planned last for the request; zeros if none.
  LoadedTokens GetLoadedTokens(RequestId id) const;

  // Any thread. Pre: the caller holds the manager's lock, under which everything is counted, so
  // that these numbers agree with the manager's of the same hold. The reference dies with the hold.
  const ConnectorStats& Stats() const;

 private:
  struct Impl;
  explicit Connector(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
