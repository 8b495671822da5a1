#include "host/host_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

using SlotState = SlotTable::State;

HostTier::HostTier(std::uint32_t slot_count, std::unique_ptr<EvictionPolicy> policy,
                   EventRecording recording, const HostTierOptions& options)
    : recording_(recording),
      store_threshold_(options.store_threshold),
      policy_(std::move(policy)),
      refresh_interval_(std::max(policy_->refresh_interval(), std::uint32_t{1})),
      checksums_(options.checksums),
      table_(slot_count),
      events_(std::max(options.max_events, std::uint32_t{1})) {
  if (store_threshold_ >= 2) tracker_.emplace(std::max(options.max_tracker_size, std::uint32_t{1}));
}

HostTier::State HostTier::Find(const ChunkKey& key) const {
  const auto slot = table_.Find(key);
  if (!slot) return State::kAbsent;
  return table_[*slot].state == SlotState::kWriting ? State::kWriting : State::kReady;
}

std::optional<SlotId> HostTier::FindNext(const ChunkKey& key) {
  if (slot_count() == 0) return std::nullopt;
  SlotTable::Slot& last = table_[last_used_];
  std::optional<SlotId> found;
  if (SlotId guess(last.next); table_.Holds(guess, key)) {
    found = guess;
  } else {
    found = table_.Find(key);
    if (!found) return found;
    // A free slot's `next` is not a guess.
    if (last.state == SlotState::kReady) last.next = found->value;
  }
  // Neighbours in a prefix mostly are neighbours in memory: one step further is likely, too.
  const std::uint32_t next = table_[*found].next;
  table_.PrefetchSlot(SlotId(next));
  if (const std::uint32_t further = 2 * next - found->value; further < slot_count()) {
    table_.PrefetchSlot(SlotId(further));
  }
  last_used_ = *found;
  return found;
}

HostTier::State HostTier::Use(const ChunkKey& key, std::uint64_t hold) {
  const auto id = FindNext(key);
  if (!id) return State::kAbsent;
  SlotTable::Slot& slot = table_[*id];
  if (slot.state == SlotState::kWriting) return State::kWriting;
  slot.used_in_hold = hold;
  return State::kReady;
}

void HostTier::Prefetch(std::span<const ChunkKey> keys) const {
  for (const ChunkKey& key : keys) table_.Prefetch(KeyHash(key));
  for (const ChunkKey& key : keys) table_.PrefetchSlot(KeyHash(key));
}

void HostTier::AddPin(SlotId id) {
  SlotTable::Slot& slot = table_[id];
  TERRACE_CHECK(slot.state == SlotState::kReady, "pinned a chunk that is not ready");
  TERRACE_CHECK(slot.pins < SlotTable::kMaxPins, "pinned a chunk 16 million times");
  if (slot.pins == 0) ++pinned_count_;
  ++slot.pins;
}

bool HostTier::Pin(std::span<const ChunkKey> keys, PinHolder holder, std::span<SlotId> slots) {
  TERRACE_CHECK(slots.size() == keys.size(), "as many slots as keys");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto slot = table_.Find(keys[i]);
    if (!slot || !IsReady(*slot)) return false;
    slots[i] = *slot;
  }
  PinSlots(slots, holder);
  return true;
}

void HostTier::PinSlots(std::span<const SlotId> slots, PinHolder holder) {
  if (slots.empty()) return;
  for (SlotId slot : slots) AddPin(slot);
  if (std::uint64_t* const held = pins_.Find(holder)) {
    *held += slots.size();
  } else {
    pins_.Insert(holder, slots.size());
  }
}

void HostTier::Unpin(std::span<const SlotId> slots, PinHolder holder) {
  if (slots.empty()) return;
  std::uint64_t* const held = pins_.Find(holder);
  TERRACE_CHECK(held != nullptr && *held >= slots.size(),
                "gave back pins that the holder does not have");
  *held -= slots.size();
  if (*held == 0) pins_.Erase(holder);
  for (SlotId id : slots) {
    SlotTable::Slot& slot = table_[id];
    const bool orphan = slot.state == SlotState::kOrphanPinned;
    TERRACE_CHECK((orphan || slot.state == SlotState::kReady) && slot.pins > 0,
                  "unpinned a chunk without pins");
    --slot.pins;
    if (slot.pins > 0) continue;
    if (orphan) {
      --orphan_count_;
      table_.Free(id);
    } else {
      --pinned_count_;
    }
  }
}

void HostTier::Publish(std::span<const SlotId> slots, CopyOutcome outcome) {
  for (SlotId id : slots) {
    SlotTable::Slot& slot = table_[id];
    if (slot.state == SlotState::kOrphanWriting) {
      --orphan_count_;
      table_.Free(id);
      continue;
    }
    TERRACE_CHECK(slot.state == SlotState::kWriting,
                  "completed a chunk that was not being written");
    --writing_count_;
    if (outcome == CopyOutcome::kOk) {
      slot.state = SlotState::kReady;
      ++ready_count_;
      Record(CacheEvent::Kind::kStored, slot.key);
    } else {
      const Fingerprint fingerprint = KeyHash(slot.key);
      Record(CacheEvent::Kind::kFailed, slot.key);
      policy_->OnRemove(id, fingerprint, EvictionPolicy::Removal::kDropped);
      table_.Free(fingerprint, id);
    }
  }
}

ResetReport HostTier::Reset() {
  ResetReport report;
  report.removed_chunks = ready_count_ + writing_count_;
  report.busy_slots = pinned_count_ + writing_count_;
  if (recording_ == EventRecording::kOn) {
    ForEachChunk([&](const ChunkKey& key) { Record(CacheEvent::Kind::kRemoved, key); });
  }
  policy_->Clear();
  table_.OrphanOrFreeAll();
  orphan_count_ += pinned_count_ + writing_count_;
  ready_count_ = pinned_count_ = writing_count_ = 0;
  return report;
}

void HostTier::CheckConservation() const {
  std::uint64_t pins = 0, held = 0;
  std::uint32_t ready = 0, pinned = 0, writing = 0, orphans = 0;
  for (std::uint32_t i = 0; i < table_.slot_count(); ++i) {
    const SlotTable::Slot& slot = table_[SlotId(i)];
    if (slot.state == SlotState::kFree) continue;
    if (slot.state == SlotState::kReady || slot.state == SlotState::kOrphanPinned)
      pins += slot.pins;
    ready += slot.state == SlotState::kReady;
    pinned += slot.state == SlotState::kReady && slot.pins > 0;
    writing += slot.state == SlotState::kWriting;
    orphans += slot.state == SlotState::kOrphanWriting || slot.state == SlotState::kOrphanPinned;
  }
  pins_.ForEach([&](const PinHolder&, std::uint64_t count) { held += count; });
  TERRACE_CHECK(pins == held, "pins of slots and pins of holders differ");
  TERRACE_CHECK(ready == ready_count_ && pinned == pinned_count_ && writing == writing_count_ &&
                    orphans == orphan_count_,
                "counts of slots are wrong");
  TERRACE_CHECK(table_.free_count() + ready + writing + orphans == slot_count(), "slots were lost");
}

}  // namespace terrace
