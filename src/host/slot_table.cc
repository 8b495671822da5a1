#include "host/slot_table.h"

#include "base/check.h"

namespace terrace {

SlotTable::SlotTable(std::uint32_t slot_count)
    : slot_count_(slot_count), slots_(slot_count), buckets_(2 * std::size_t{slot_count} + 1) {}

std::optional<SlotId> SlotTable::Find(std::uint64_t hash, const ChunkKey& key) const {
  const std::uint32_t tag = Tag(hash);
  for (std::size_t i = Home(tag);; i = Next(i)) {
    const Bucket bucket = buckets_[i];
    if (bucket.slot_plus_1 == 0) return std::nullopt;
    if (bucket.tag == tag && slots_[bucket.slot_plus_1 - 1].key == key) {
      return SlotId(bucket.slot_plus_1 - 1);
    }
  }
}

void SlotTable::PrefetchSlot(std::uint64_t hash) const {
  const std::uint32_t tag = Tag(hash);
  for (std::size_t i = Home(tag); buckets_[i].slot_plus_1 != 0; i = Next(i)) {
    if (buckets_[i].tag == tag) return __builtin_prefetch(&slots_[buckets_[i].slot_plus_1 - 1], 1);
  }
}

SlotId SlotTable::Take(std::uint64_t hash, const ChunkKey& key) {
  TERRACE_CHECK(free_count() > 0, "took a slot from a full table");
  const std::uint32_t tag = Tag(hash);
  std::size_t i = Home(tag);
  for (; buckets_[i].slot_plus_1 != 0; i = Next(i)) {
    TERRACE_CHECK(buckets_[i].tag != tag || !(slots_[buckets_[i].slot_plus_1 - 1].key == key),
                  "a key was offered twice in one store");
  }
  std::uint32_t id = fresh_;
  if (fresh_ < slot_count_) {
    ++fresh_;
  } else {
    id = freed_top_;
    freed_top_ = slots_[id].next;
    --freed_;
  }
  buckets_[i] = {id + 1, tag};
  Slot& slot = slots_[id];
  slot.key = key;
  slot.used_in_hold = 0;
  slot.pins = 0;
  slot.spared_in = 0;
  slot.next = id;
  slot.state = State::kWriting;
  ++slot.generation;
  return SlotId(id);
}

void SlotTable::Unindex(std::uint64_t hash, SlotId id) {
  std::size_t hole = Home(Tag(hash));
  while (buckets_[hole].slot_plus_1 != id.value + 1) {
    TERRACE_CHECK(buckets_[hole].slot_plus_1 != 0, "a slot in use is missing from the index");
    hole = Next(hole);
  }
  for (std::size_t i = Next(hole); buckets_[i].slot_plus_1 != 0; i = Next(i)) {
    // An entry may move back into the hole unless its home lies behind the hole (cyclically).
    if (Distance(Home(buckets_[i].tag), i) >= Distance(hole, i)) {
      buckets_[hole] = buckets_[i];
      hole = i;
    }
  }
  buckets_[hole] = Bucket{};
}

void SlotTable::PushFreed(std::uint32_t id) {
  slots_[id].state = State::kFree;
  slots_[id].next = freed_top_;
  freed_top_ = id;
  ++freed_;
}

void SlotTable::Free(std::uint64_t hash, SlotId id) {
  const State state = slots_[id.value].state;
  TERRACE_CHECK(state != State::kFree, "freed a free slot");
  if (state == State::kWriting || state == State::kReady) Unindex(hash, id);
  PushFreed(id.value);
}

void SlotTable::OrphanOrFreeAll() {
  buckets_.Clear();
  freed_ = 0;
  freed_top_ = kNone;
  bool orphans = false;
  for (std::uint32_t i = fresh_; i-- > 0;) {
    Slot& slot = slots_[i];
    if (slot.state == State::kWriting) slot.state = State::kOrphanWriting;
    if (slot.state == State::kReady && slot.pins > 0) slot.state = State::kOrphanPinned;
    if (slot.state == State::kOrphanWriting || slot.state == State::kOrphanPinned) {
      orphans = true;
    } else {
      PushFreed(i);
    }
  }
  if (orphans) return;
  fresh_ = freed_ = 0;
  freed_top_ = kNone;
}

}  // namespace terrace
