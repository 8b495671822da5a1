// Where KV chunks live in host memory, and for how long.
//
// The manager moves no bytes. It hands out slots, pins them while somebody copies, and records how
// the copy ended. The caller copies between engine memory and host slots; secondary tiers copy
// between host slots and storage.
//
// Locking. The manager is itself a lock and no method takes it: the caller does, and may hold it
// across as many calls as must agree with one another. clang's thread-safety analysis proves it at
// compile time; debug builds also check the holder when they run.
//
//   ManagerRegion region(manager);
//   if (manager.Lookup(key, request) == LookupResult::kHit)
//     manager.PrepareLoad({&key, 1}, request, {&slot, 1});   // still a hit: true
//
// Hold it for one scheduler step at most, never across a model step, and never while waiting for
// I/O.
//
// Life of a chunk in host memory:
//
//   absent, then writing       by PrepareStore(), or by a Lookup() that hits in a tier (promotion)
//   writing, then ready        by CompleteStore(kOk), or by the tier's result
//   writing, then absent       by CompleteStore(kFailed), or by the tier's failure
//   ready, pinned, ready       by PrepareLoad() and CompleteLoad()
//   ready, then absent         by eviction, if nothing pins it
//
// ResetCache() makes all of them absent at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/export.h"
#include "terrace/lock_stats.h"
#include "terrace/manager_stats.h"
#include "terrace/request.h"
#include "terrace/secondary_tier.h"
#include "terrace/thread_annotations.h"
#include "terrace/types.h"

namespace terrace {

// What PrepareStore() wants stored: a subset of the offer, in its order. `keys` and `slots` are
// co-indexed.
struct StorePlan {
  std::vector<ChunkKey> keys;
  std::vector<SlotId> slots;
  std::vector<ChunkKey> evicted = {};  // What made room for them.
  std::uint64_t wanted = 0;  // How many slots they take, or would have taken if there is no room.
};

// Where each of some chunks stands in its request: the token at which it ends, for engines that
// name chunks of several KV-cache groups, or not from front to back. Empty: they are in prefix
// order, behind those named before.
using ChunkEnds = std::span<const std::uint32_t>;

enum class StoreOutcome : std::uint8_t {
  kPlanned,  // Nothing to store is an empty plan.
  kNoRoom,   // Too much is pinned or in flight. Back-pressure, not an error: offer again next step.
};

// Host memory gained or lost a chunk, or did not get one that it was to get.
struct CacheEvent {
  enum class Kind : std::uint8_t {
    kStored,
    kRemoved,
    kFailed,  // Was to come, by a store or a promotion, and is absent. Not said of a reset's.
    kLost,    // More happened than was kept: what is there now is the truth. It has no key.
  };
  Kind kind;
  ChunkKey key;
};

struct ResetReport {
  std::uint64_t removed_chunks = 0;  // No look-up finds them any more.
  std::uint64_t busy_slots = 0;  // Of them: still being copied from or into, and free afterwards.
};

class LaneLock;
class LogLimiter;

// Thread-compatible under its own lock: every call but Lock(), Unlock() and Shutdown() needs it
// held.
class TERRACE_API TERRACE_CAPABILITY("OffloadingManager") OffloadingManager {
 public:
  OffloadingManager();
  virtual ~OffloadingManager();
  OffloadingManager(const OffloadingManager&) = delete;
  OffloadingManager& operator=(const OffloadingManager&) = delete;

  // A hold longer than this is counted and logged with its holder's name, a line a minute at most.
  static constexpr std::chrono::milliseconds kLongHold{10};

  // Blocks until the lock is free; in the control lane, also until nobody waits in the engine's.
  // `holder` says who, in logs; it must live for ever (a literal). Not recursive: a second Lock()
  // by the same thread aborts in debug builds. Prefer ManagerRegion.
  void Lock(Lane lane = Lane::kEngine, const char* holder = "engine") TERRACE_ACQUIRE();
  // The same with a bound: false if the lock could not be had in time.
  [[nodiscard]] bool TryLockFor(std::chrono::nanoseconds timeout, Lane lane, const char* holder)
      TERRACE_TRY_ACQUIRE(true);
  void Unlock() TERRACE_RELEASE();
  // Tells the analysis that the lock is held where it cannot see it; aborts in debug builds if this
  // thread does not hold it.
  void AssertHeld() const TERRACE_ASSERT_CAPABILITY(this);
  // True while somebody waits in the engine's lane: who holds the lock in the control lane finishes
  // its unit of work and gives it up.
  bool EngineWaits() const TERRACE_REQUIRES(this);
  // How long the lock was waited for and held, since the manager was made.
  const LockStats& lock_stats() const TERRACE_REQUIRES(this);

  // First contact with a request. Once for each request, before anything else about it. Says
  // whether some tier wants all its chunks offered, also those that need not be stored anew.
  // Pre: its id is below kExternalRequests.
  virtual StoreInterest OnNewRequest(const Request& request) TERRACE_REQUIRES(this) = 0;

  // Where `key` is. A hit in a secondary tier reserves a slot and begins a promotion, which makes
  // it kHitPending at once; the copy is submitted at OnScheduleEnd(). Idempotent within a step.
  // A request that is told to ask again for longer than the lookup timeout is told kMiss from then
  // on for what is not ready: it computes.
  // Cost: O(1) and no allocation if host memory has the chunk; else O(tiers).
  virtual LookupResult Lookup(const ChunkKey& key, const Request& request)
      TERRACE_REQUIRES(this) = 0;

  // Cost: O(1). Where the bytes of a chunk that this request will load were before: host memory, or the tier it
  // was promoted from on this request's behalf. For accounting.
  virtual LoadSource GetLoadSource(const ChunkKey& key, const Request& request) const
      TERRACE_REQUIRES(this) = 0;

  // Cost: O(1). The slot of a chunk that is ready or being written; nullopt if it is neither. For
  // engines that name by key what they have pinned or write: it does not move until they say so.
  virtual std::optional<SlotId> SlotOf(const ChunkKey& key) const TERRACE_REQUIRES(this) = 0;

  // Pins `keys` for this request and says where they are, in their order. False, and nothing
  // changed, if one of them is not ready any more. It still is if Lookup() said kHit under this
  // same hold of the lock. Each success is matched by one CompleteLoad() with the same slots, or
  // the chunks are never evicted.
  // Pre:  slots.size() == keys.size(); `ends` is empty or as long.
  // Post: pins(k) is one higher for every k.
  // Cost: O(keys), no allocation once warm. Never blocks.
  [[nodiscard]] virtual bool PrepareLoad(std::span<const ChunkKey> keys, const Request& request,
                                         std::span<SlotId> slots, ChunkEnds ends = {})
      TERRACE_REQUIRES(this) = 0;
  // Unpins.
  // Pre: matches a PrepareLoad(). May come after OnRequestFinished() and ResetCache().
  // Cost: O(slots).
  virtual void CompleteLoad(std::span<const SlotId> slots, const Request& request)
      TERRACE_REQUIRES(this) = 0;

  // The request used these chunks, in prefix order, without loading them from here (an engine's own
  // prefix cache had them), so that they are as recent as now, however often it said so before.
  // Those that are not here are passed over.
  // Cost: O(keys), no allocation once warm.
  virtual void Touch(std::span<const ChunkKey> keys, const Request& request)
      TERRACE_REQUIRES(this) = 0;

  // Reserves slots for those of `keys` that are absent, evicting if it must; never a chunk that is
  // itself in `keys`, that this request stored or loaded before, or that a Lookup() under this same
  // hold said is a hit. All or nothing: kNoRoom, with no state changed and an empty plan, when room
  // cannot be made. Replaces what is in `plan`, whose memory is reused.
  // Pre: `keys` are distinct; `ends` is empty or as long.
  // Cost: O(keys), plus pinned chunks passed over when evicting; no allocation once warm.
  [[nodiscard]] virtual StoreOutcome PrepareStore(std::span<const ChunkKey> keys,
                                                  const Request& request, StorePlan& plan,
                                                  ChunkEnds ends = {}) TERRACE_REQUIRES(this) = 0;
  // kOk: the chunks become ready, and go to the secondary tiers in the background. kFailed: their
  // slots are free again. After a ResetCache() in between they are free either way.
  // Pre: `slots` were planned by one PrepareStore() of this request and not completed since. May
  // come after OnRequestFinished() and ResetCache().
  virtual void CompleteStore(std::span<const SlotId> slots, const Request& request,
                             CopyOutcome outcome) TERRACE_REQUIRES(this) = 0;

  // Nothing but Complete*() follows for this request. Once for each request.
  virtual void OnRequestFinished(const Request& request) TERRACE_REQUIRES(this) = 0;

  // The last call of a scheduler step: collects what tiers finished, serves those that serve
  // others, submits the promotions that lookups began and the cascades that waited.
  // Cost: O(tiers + what ended, began or waited since the last step). Never blocks.
  virtual void OnScheduleEnd() TERRACE_REQUIRES(this) = 0;

  // True while something waits for a step of the engine, so that an otherwise idle engine keeps
  // stepping.
  virtual bool HasPendingWork() const TERRACE_REQUIRES(this) = 0;

  // What is ready in host memory now, in no order: where a reader of events starts, or starts anew
  // after CacheEvent::Kind::kLost.
  // Cost: O(slots).
  virtual std::vector<ChunkKey> ReadyChunks() const TERRACE_REQUIRES(this) = 0;

  // Events since the last call, oldest first; none unless the manager was made to record them.
  virtual std::vector<CacheEvent> TakeEvents() TERRACE_REQUIRES(this) = 0;

  // Forgets what is in host memory, at once and whole: from now on every key is absent there.
  // Copies under way go on in their slots, which nobody finds any more and which are free when the
  // copies end; promotions not yet submitted and cascades that wait are dropped, so that tiers hear
  // at once of the end of requests that have finished. Secondary tiers keep what they have.
  // Cost: O(slots).
  virtual ResetReport ResetCache() TERRACE_REQUIRES(this) = 0;

  virtual ManagerStats Stats() const TERRACE_REQUIRES(this) = 0;

  // Stops the control thread, then the tiers, in reverse order, each in bounded time and whatever
  // the others do. Idempotent. Takes the lock itself where it needs it; nobody else may be inside.
  virtual void Shutdown() TERRACE_EXCLUDES(this) = 0;

 protected:
  // Differs for each hold of the lock. Never 0.
  std::uint64_t hold_number() const TERRACE_REQUIRES(this);

 private:
  const std::unique_ptr<LaneLock> lock_;
  const std::unique_ptr<LogLimiter> long_holds_said_;
};

// A hold of the manager's lock: from construction to the end of scope.
class TERRACE_SCOPED_CAPABILITY ManagerRegion {
 public:
  explicit ManagerRegion(OffloadingManager& manager, Lane lane = Lane::kEngine,
                         const char* holder = "engine") TERRACE_ACQUIRE(manager)
      : manager_(manager) {
    manager_.Lock(lane, holder);
  }
  ~ManagerRegion() TERRACE_RELEASE() { manager_.Unlock(); }
  ManagerRegion(const ManagerRegion&) = delete;
  ManagerRegion& operator=(const ManagerRegion&) = delete;

 private:
  OffloadingManager& manager_;
};

}  // namespace terrace
