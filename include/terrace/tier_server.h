// What a tier may ask of the node while it serves a peer: chunks out of host memory and of the
// other tiers.
//
// Valid only during the ServeExternalRequests() call that it is passed to. For each piece of work:
//   BeginRequest(), Lookup() of its keys, CreateStoreJob() of those that are hits, FinishRequest()
// FinishRequest() is due also when nothing was served; a request may stay open over several calls,
// as long as its look-ups are not decided, and at most for a minute: then the manager finishes it,
// and its look-ups are misses. The tier that serves is never asked for its own peers'
// chunks, so that a question does not bounce back to the network.
//
// A round of serving has a budget of keys and bytes, and ends when the engine waits for the lock:
// between two messages, and at least every 256 keys, ask ShouldYield() and return when it says so.
// Beyond the budget Lookup() answers kRetry and CreateStoreJob() makes none. All jobs for peers
// together pin at most half of the slots.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "terrace/chunk_key.h"
#include "terrace/request.h"
#include "terrace/types.h"

namespace terrace {

struct TransferJob;

// Confined to the call that it is passed to.
class TierServer {
 public:
  // A request of a peer: its id is unique in the life of the manager and no engine's. The other
  // tiers hear of it as of an engine's.
  // Cost: O(tiers).
  virtual Request BeginRequest() = 0;

  // As OffloadingManager::Lookup(): a chunk that another tier has is promoted, which ends as a hit
  // in some later call.
  // Cost: O(1), or O(tiers) if host memory does not have it.
  // Pre: `request` is from BeginRequest() of this tier and not finished.
  virtual LookupResult Lookup(const ChunkKey& key, const Request& request) = 0;

  // Pins the chunks for reading and names their slots. The tier reports the job once, by
  // TakeFinished(), when nothing reads the slots any more. nullopt, and nothing changed, if one of
  // the keys is not ready in host memory, the budget is used up, or peers read too much already.
  // Pre: as Lookup(); `keys` are distinct, 1 to 256 of them.
  // Cost: O(keys).
  virtual std::optional<TransferJob> CreateStoreJob(std::span<const ChunkKey> keys,
                                                    const Request& request) = 0;

  // Nothing follows for this request; jobs may still be under way.
  // Cost: O(tiers).
  virtual void FinishRequest(const Request& request) = 0;

  // How many slots all jobs for peers together may pin. Constant, at least one. Whoever serves
  // several peers lets none of them have all of it.
  virtual std::size_t SlotsForPeers() const = 0;

  // True if the round should end now: the budget is used up, or the engine waits.
  virtual bool ShouldYield() const = 0;

 protected:
  ~TierServer() = default;
};

}  // namespace terrace
