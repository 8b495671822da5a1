#include "host/sieve_policy.h"

#include <algorithm>

namespace terrace {

SievePolicy::SievePolicy(std::uint32_t slot_count)
    : lists_(slot_count, 2), reused_(slot_count), hand_(lists_.end(kQueue)) {}

std::uint32_t SievePolicy::refresh_interval() const {
  return std::max(lists_.slot_count() / 8, std::uint32_t{1});
}

std::size_t SievePolicy::memory_bytes() const {
  return lists_.memory_bytes() + reused_.memory_bytes();
}

void SievePolicy::Clear() {
  lists_.Clear();
  reused_.Clear();
  hand_ = lists_.end(kQueue);
}

void SievePolicy::OnInsert(SlotId slot, Fingerprint, std::optional<SlotId> parent) {
  lists_.PutBehind(kQueue, slot.value, parent ? parent->value : lists_.end(kQueue));
  reused_[slot.value] = 0;
}

void SievePolicy::Unlink(std::uint32_t slot) {
  if (hand_ == slot) hand_ = lists_.newer(slot);
  lists_.Remove(slot);
}

void SievePolicy::OnRemove(SlotId slot, Fingerprint, Removal) { Unlink(slot.value); }

void SievePolicy::OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) {
  std::uint32_t before = parent ? parent->value : lists_.end(kQueue);
  for (const ChunkAccess& access : accesses) {
    const std::uint32_t slot = access.slot.value;
    if (access.kind == ChunkAccess::Kind::kReuse) {
      reused_[slot] = 1;
    } else if (access.kind == ChunkAccess::Kind::kOwn) {
      Unlink(slot);
      lists_.PutBehind(kQueue, slot, before);
      before = slot;
    }
  }
}

void SievePolicy::Undo(std::uint32_t hand) {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (change->victim) {
      lists_.Remove(change->slot);
      lists_.PutBehind(kQueue, change->slot, change->newer);
    } else {
      reused_[change->slot] = 1;
    }
  }
  hand_ = hand;
}

bool SievePolicy::ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                                std::vector<SlotId>& victims) {
  const std::uint32_t end = lists_.end(kQueue);
  const std::uint32_t old_hand = hand_;
  const std::size_t before = victims.size();
  changes_.clear();
  std::uint32_t idle = 0;  // Chunks in a row that may not go.
  while (victims.size() < before + count) {
    if (idle >= lists_.size(kQueue)) {  // A whole round of them, or nothing left.
      Undo(old_hand);
      victims.resize(before);
      return false;
    }
    if (hand_ == end) hand_ = lists_.oldest(kQueue);
    const std::uint32_t slot = hand_;
    hand_ = lists_.newer(slot);
    if (!filter.MayEvict(SlotId(slot))) {
      ++idle;
      continue;
    }
    idle = 0;
    changes_.push_back({slot, lists_.newer(slot), reused_[slot] == 0});
    if (reused_[slot] != 0) {
      reused_[slot] = 0;
      continue;
    }
    lists_.Remove(slot);
    lists_.PushNewest(kVictims, slot);
    victims.push_back(SlotId(slot));
  }
  return true;
}

}  // namespace terrace
