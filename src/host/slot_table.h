// What every slot holds, and which slot holds a key.
//
// All memory is taken once, for the capacity: nothing here allocates, rehashes or moves afterwards,
// so no call is ever long. Per slot: its record (64 bytes, one cache line) and two buckets of the
// index (16 bytes), whatever the capacity.
//
// The index is open addressing with linear probing and backward-shift deletion (Knuth, TAOCP vol.
// 3, 6.4 algorithm R): no tombstones, hence no periodic clean-up. A bucket keeps 32 bits of the
// hash beside the slot, so that a probe touches a slot's record only for the key it looks for (or
// once in 2^32 others).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "host/huge_array.h"
#include "host/key_hash.h"
#include "terrace/chunk_key.h"
#include "terrace/types.h"

namespace terrace {

// Thread-compatible.
class SlotTable {
 public:
  // Of a slot. An orphan's chunk was forgotten while somebody copied: no key leads to it.
  enum class State : std::uint8_t { kFree, kWriting, kReady, kOrphanWriting, kOrphanPinned };

  // All zeroes is a free slot.
  struct alignas(64) Slot {
    ChunkKey key;                // Meaningful unless kFree.
    std::uint64_t used_in_hold;  // The last hold of the lock in which it was told to be a hit.
    std::uint32_t generation;    // Grows with each chunk the slot is given to, so that old
                                 // references are told apart.
    std::uint32_t spared_in;     // The last offer for which room was made that named its key.
    std::uint32_t next;          // The slot of a chunk that continued it lately: a guess, like the
                                 // slot itself if there is none.
    std::uint32_t pins : 24;     // Only if kReady or kOrphanPinned.
    State state : 8;
  };
  static constexpr std::uint32_t kMaxPins = (1 << 24) - 1;
  static_assert(sizeof(Slot) == 64);

  explicit SlotTable(std::uint32_t slot_count);

  std::uint32_t slot_count() const { return slot_count_; }
  Slot& operator[](SlotId id) { return slots_[id.value]; }
  const Slot& operator[](SlotId id) const { return slots_[id.value]; }

  // Pre: hash == KeyHash(key), here and below.
  // Cost: about two cache misses in a large table; none of the first if it was prefetched.
  std::optional<SlotId> Find(std::uint64_t hash, const ChunkKey& key) const;
  std::optional<SlotId> Find(const ChunkKey& key) const { return Find(KeyHash(key), key); }
  // Whether a look-up of `key` finds that slot. For guesses of any value: no hash, no index.
  bool Holds(SlotId id, const ChunkKey& key) const {
    if (id.value >= slot_count_) return false;
    const Slot& slot = slots_[id.value];
    return (slot.state == State::kReady || slot.state == State::kWriting) && slot.key == key;
  }
  // Begins to bring where Find() will look into the cache.
  void Prefetch(std::uint64_t hash) const { __builtin_prefetch(&buckets_[Home(Tag(hash))]); }
  // The second half of it: the record. Worth it once the first has arrived.
  void PrefetchSlot(std::uint64_t hash) const;
  void PrefetchSlot(SlotId id) const { __builtin_prefetch(&slots_[id.value], 1); }

  std::uint32_t free_count() const { return slot_count_ - fresh_ + freed_; }
  // Takes a free slot for `key`, in state kWriting: fresh slots first, in order, then those freed
  // last. Aborts if the key is there already.
  // Pre: free_count() > 0.
  SlotId Take(std::uint64_t hash, const ChunkKey& key);
  SlotId Take(const ChunkKey& key) { return Take(KeyHash(key), key); }
  // Pre: not free.
  void Free(std::uint64_t hash, SlotId id);
  void Free(SlotId id) { Free(KeyHash(slots_[id.value].key), id); }

  // Forgets all keys at once. Slots that are being written, or ready and pinned, become orphans;
  // the others are free, and fresh again if there are no orphans.
  // Cost: O(slots that were ever taken).
  void OrphanOrFreeAll();

  std::size_t memory_bytes() const { return slots_.memory_bytes() + buckets_.memory_bytes(); }

 private:
  struct Bucket {
    std::uint32_t slot_plus_1;  // 0 if the bucket is empty.
    std::uint32_t tag;
  };
  static constexpr std::uint32_t kNone = 0xffffffff;

  static std::uint32_t Tag(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
  std::size_t Home(std::uint32_t tag) const { return ReduceToRange(tag, buckets_.size()); }
  std::size_t Next(std::size_t i) const { return i + 1 == buckets_.size() ? 0 : i + 1; }
  // Buckets from `from` on to `to`, cyclically.
  std::size_t Distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + buckets_.size() - from;
  }
  void Unindex(std::uint64_t hash, SlotId id);
  void PushFreed(std::uint32_t slot);

  const std::uint32_t slot_count_;
  HugeArray<Slot> slots_;
  HugeArray<Bucket> buckets_;
  std::uint32_t fresh_ = 0;  // Slots below were handed out at least once.
  // Freed slots are a stack through the records: `next` is the one below.
  std::uint32_t freed_ = 0;
  std::uint32_t freed_top_ = kNone;
};

}  // namespace terrace
