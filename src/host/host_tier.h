// Which chunks are in host memory, in which slot, and who holds them.
//
// Bookkeeping only: no bytes are touched, nothing blocks, and no lock is taken (the manager that
// owns this is the lock). A chunk is absent, being written, or ready with some number of pins; only
// a ready chunk without pins is evicted.
//
// Memory: 80 bytes a slot for the index and the slots' records, and the policy's (LRU: 9), taken
// once. Beyond that, what live requests used (32 bytes a chunk of each) and their pins. Once these
// have been as many as they get, only TakeEvents() allocates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host/access_log.h"
#include "host/event_log.h"
#include "host/flat_map.h"
#include "host/offer_tracker.h"
#include "host/slot_checksums.h"
#include "host/slot_table.h"
#include "terrace/chunk_key.h"
#include "terrace/eviction_policy.h"
#include "terrace/offloading_manager.h"
#include "terrace/types.h"

namespace terrace {

// Whether events are kept until somebody takes them.
enum class EventRecording : std::uint8_t { kOff, kOn };

struct HostTierOptions {
  // A chunk is stored from its n-th offer on; 0 and 1 mean the first.
  std::uint32_t store_threshold = 0;
  // How many chunks' offers are counted. Unused unless store_threshold >= 2.
  std::uint32_t max_tracker_size = 64'000;
  // Net changes that are kept until somebody takes them; if there are more, all are lost, and the
  // next taker is told so.
  std::uint32_t max_events = 1 << 17;
  // Where the checksums of chunks are kept; told which slots get another chunk. Outlives the tier.
  // Null: nowhere.
  SlotChecksums* checksums = nullptr;
};

// Who holds pins: one load of the engine's (by request), or one job of a tier.
struct PinHolder {
  enum class Kind : std::uint8_t { kRequest, kJob };
  Kind kind;
  std::uint64_t id;
  friend bool operator==(const PinHolder&, const PinHolder&) = default;
};

// Thread-compatible. What a contract says must be so is checked: a pin that is not there, a slot
// that is not being written, abort.
class HostTier {
 public:
  enum class State : std::uint8_t { kAbsent, kWriting, kReady };

  HostTier(std::uint32_t slot_count, std::unique_ptr<EvictionPolicy> policy,
           EventRecording recording, const HostTierOptions& options = {});

  // Cost: O(1), no allocation.
  State Find(const ChunkKey& key) const;
  // The same; if it is ready, Reserve() in this hold of the lock does not evict it.
  State Use(const ChunkKey& key, std::uint64_t hold);
  // Begins to bring what Use() of these keys will read into the cache. For keys that are looked up
  // soon, some 16 at a time.
  void Prefetch(std::span<const ChunkKey> keys) const;

  // Where the chunk is or will be; nullopt if it is absent.
  std::optional<SlotId> SlotOf(const ChunkKey& key) const { return table_.Find(key); }
  const ChunkKey& KeyOf(SlotId slot) const { return table_[slot].key; }
  // Whether the slot's chunk was forgotten while it was copied.
  bool IsOrphan(SlotId slot) const {
    const SlotTable::State state = table_[slot].state;
    return state == SlotTable::State::kOrphanWriting || state == SlotTable::State::kOrphanPinned;
  }
  // Whether the slot holds a chunk that can be found and read.
  bool IsReady(SlotId slot) const { return table_[slot].state == SlotTable::State::kReady; }
  // Calls visit(key) for every ready chunk: what there is to know after CacheEvent::Kind::kLost.
  // Cost: O(slots).
  template <typename Visitor>
  void ForEachChunk(Visitor visit) const {
    for (std::uint32_t i = 0; i < slot_count(); ++i) {
      if (IsReady(SlotId(i))) visit(KeyOf(SlotId(i)));
    }
  }

  // Pins each key once and says where they are. False, and nothing changed, if one is not ready.
  // Pre: slots.size() == keys.size().
  [[nodiscard]] bool Pin(std::span<const ChunkKey> keys, PinHolder holder, std::span<SlotId> slots);
  // Pre: all IsReady().
  void PinSlots(std::span<const SlotId> slots, PinHolder holder);
  // Pre: pinned by this holder.
  void Unpin(std::span<const SlotId> slots, PinHolder holder);

  enum class Purpose : std::uint8_t {
    kStore,      // An offer of the engine: it counts, and its keys are a piece of a prefix.
    kPromotion,  // From a tier.
  };
  // For whom room is made.
  struct Reservation {
    RequestId request;   // What it stored or used is not evicted for it.
    std::uint64_t hold;  // Nor is what Use() found in this hold.
    Purpose purpose = Purpose::kStore;
    // As Request::is_sequence: else what it stored or used is evicted like anything.
    bool is_sequence = true;
    ChunkEnds ends = {};  // Of the keys, in a store.
  };
  // Reserves slots for the absent ones of `keys`, in order, in state writing; in a store, not for
  // those that were not offered often enough. All or nothing: false, an empty plan and no change if
  // room cannot be made. Never evicts a key of `keys`. In a store, the request is known to have
  // used the ready ones of `keys`, whatever comes of it. OnRequestFinished() must follow some time.
  // Cost: O(keys + chunks that eviction passes over). A refusal because everything is pinned or
  // being written is O(keys).
  [[nodiscard]] bool Reserve(std::span<const ChunkKey> keys, const Reservation& reservation,
                             StorePlan& plan);
  // Ends the writing of each slot: ready, or free again. An orphan is free again either way.
  // Pre: all being written.
  void Publish(std::span<const SlotId> slots, CopyOutcome outcome);

  // The request used these chunks, in prefix order. A chunk counts as used once per request; one
  // that the request itself stored or had promoted does not count.
  void RecordAccess(RequestId request, std::span<const SlotId> slots, ChunkEnds ends = {});
  // Those of `keys` that are there are as recent as now, whoever stored them and however often it
  // was said before; else the same.
  void Touch(RequestId request, std::span<const ChunkKey> keys);
  // What the request used is as recent as now, its early chunks more than its late ones. Nothing if
  // it used nothing.
  void OnRequestFinished(RequestId request);

  // Forgets every chunk. Slots that are pinned or being written become orphans: they are free once
  // unpinned or published. Offer counts stay.
  ResetReport Reset();

  // Net changes since the last call, in order; see EventLog.
  std::vector<CacheEvent> TakeEvents() { return events_.Take(); }

  // Aborts unless pins by holder, pins by slot and the counts agree.
  // Cost: O(slots).
  void CheckConservation() const;

  std::uint32_t slot_count() const { return table_.slot_count(); }
  std::uint32_t ready_count() const { return ready_count_; }
  std::uint32_t pinned_count() const { return pinned_count_; }
  std::uint32_t writing_count() const { return writing_count_; }
  std::uint32_t orphan_count() const { return orphan_count_; }
  std::uint64_t evicted_total() const { return evicted_total_; }
  // Chunks that were not stored because they were not offered often enough.
  std::uint64_t skipped_total() const { return skipped_total_; }
  using AllocationSizes = decltype(ManagerStats::allocation_sizes);
  // How many chunks each reservation needed room for: see ManagerStats::allocation_sizes. Empty
  // ones do not count.
  const AllocationSizes& allocation_sizes() const { return allocation_sizes_; }
  std::uint64_t allocation_chunks() const { return allocation_chunks_; }
  // Of the tables, the policy's included.
  std::size_t memory_bytes() const { return table_.memory_bytes() + policy_->memory_bytes(); }

 private:
  struct HashHolder {
    std::size_t operator()(const PinHolder& holder) const noexcept {
      return FoldedProduct(holder.id ^ 0x9e3779b97f4a7c15,
                           0xd1b54a32d192ed03 + 2 * static_cast<std::uint64_t>(holder.kind));
    }
  };
  struct HashRequest {
    std::size_t operator()(RequestId id) const noexcept {
      return FoldedProduct(id.value ^ 0x9e3779b97f4a7c15, 0xd1b54a32d192ed03);
    }
  };
  // One key of an offer.
  struct Offered {
    Fingerprint fingerprint;
    SlotRef found;    // Where it is, if it is there.
    bool wanted;      // Absent, and to be stored.
    bool was_placed;  // The request offered or used it before.
  };
  class Evictable;

  void AddPin(SlotId slot);
  AccessLog& LogOf(RequestId request);
  // Find(), for keys that come in prefix order.
  std::optional<SlotId> FindNext(const ChunkKey& key);
  // Whether a look-up finds that very chunk.
  bool IsThere(const SlotRef& chunk) const;
  std::optional<SlotId> Parent(const SlotRef& chunk) const;
  SlotRef RefTo(SlotId slot) const { return {slot, table_[slot].generation}; }
  // Notes that the request uses a chunk that is there. What the policy must hear of it goes to
  // accesses_.
  void NoteAccess(AccessLog& log, Fingerprint fingerprint, SlotId slot,
                  std::optional<std::uint32_t> end = {});
  void ApplyAccesses(std::optional<SlotId> parent);  // accesses_, one after the other.
  void ApplyAccesses(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent);
  void ApplyAccessesByEnd(AccessLog& log);
  // The nearest chunk before this one in the order of the request that is there.
  std::optional<SlotId> ParentInOrder(const AccessLog& log, const AccessLog::Entry& entry) const;
  // Fills by_end_ with the places of `ends` from low to high; false, and nothing, if they are so
  // anyway.
  bool SortByEnd(ChunkEnds ends);
  void Refresh(AccessLog& log);
  void RefreshIfAged(AccessLog& log);

  // Fills offer_.
  void LookUpOffer(std::span<const ChunkKey> keys);
  // Fills plan.keys and misses_, and notes the accesses of a store.
  void ChooseWanted(std::span<const ChunkKey> keys, const Reservation& reservation, AccessLog& log,
                    StorePlan& plan);
  void NoteOffered(Offered& offered, const Reservation& reservation,
                   std::optional<std::uint32_t> end, AccessLog& log);
  void CountAllocation(std::uint64_t chunks);
  void TakeSlots(std::span<const ChunkKey> keys, const Reservation& reservation,
                 const SlotRef& before, AccessLog& log, StorePlan& plan);
  bool MakeRoom(std::uint32_t count, const Reservation& reservation, AccessLog& own,
                StorePlan& plan);
  void Record(CacheEvent::Kind kind, const ChunkKey& key) {
    if (recording_ == EventRecording::kOn) events_.Add(kind, key);
  }

  const EventRecording recording_;
  const std::uint32_t store_threshold_;
  const std::unique_ptr<EvictionPolicy> policy_;
  const std::uint32_t refresh_interval_;
  SlotChecksums* const checksums_;
  SlotTable table_;
  // Requests look up prefixes from the front. Each record remembers which chunk continued its own,
  // so that the next look-up need not ask the index, and its record is on the way before it is
  // asked for.
  SlotId last_used_;  // A guess too: what Use() found last.
  std::uint32_t offer_number_ = 0;
  std::uint32_t ready_count_ = 0;  // Includes pinned.
  std::uint32_t pinned_count_ = 0;
  std::uint32_t writing_count_ = 0;
  std::uint32_t orphan_count_ = 0;
  FlatMap<PinHolder, std::uint64_t, HashHolder> pins_;  // Never 0.
  std::uint64_t evicted_total_ = 0;
  std::uint64_t skipped_total_ = 0;
  AllocationSizes allocation_sizes_{};
  std::uint64_t allocation_chunks_ = 0;
  std::optional<OfferTracker> tracker_;
  EventLog events_;

  // Logs of live requests are places in logs_; the others are for the next.
  FlatMap<RequestId, std::uint32_t, HashRequest> requests_;
  std::vector<std::unique_ptr<AccessLog>> logs_;
  std::vector<std::uint32_t> unused_logs_;
  std::uint64_t clock_ = 0;  // Insertions and reuses so far: how fast chunks age.

  // Reused by every call.
  std::vector<Offered> offer_;
  std::vector<Fingerprint> fingerprints_;
  std::vector<std::uint32_t> offer_counts_;
  std::vector<Fingerprint> misses_;
  std::vector<ChunkAccess> accesses_;
  std::vector<std::uint32_t> by_end_;
  std::vector<SlotId> victims_;
};

}  // namespace terrace
