#include "host/s3fifo_policy.h"

#include <algorithm>

namespace terrace {

S3FifoPolicy::S3FifoPolicy(std::uint32_t slot_count)
    : small_size_(std::max(slot_count / 10, std::uint32_t{1})),
      lists_(slot_count, 4),
      ghosts_(slot_count - slot_count / 10),
      uses_(slot_count) {}

// Often enough that a request that goes on does not fall out of the small queue.
std::uint32_t S3FifoPolicy::refresh_interval() const {
  return std::max(small_size_ / 4, std::uint32_t{1});
}

std::size_t S3FifoPolicy::memory_bytes() const {
  return lists_.memory_bytes() + ghosts_.memory_bytes() + uses_.memory_bytes();
}

void S3FifoPolicy::Clear() {
  lists_.Clear();
  ghosts_.Clear();
  uses_.Clear();
}

void S3FifoPolicy::OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) {
  const auto list = ghosts_.Erase(fingerprint) ? kMain : kSmall;
  const bool behind = parent && lists_.ListOf(parent->value) == list;
  lists_.PutBehind(list, slot.value, behind ? parent->value : lists_.end(list));
  uses_[slot.value] = 0;
}

void S3FifoPolicy::OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) {
  const bool to_ghosts = lists_.ListOf(slot.value) == kFromSmall;
  lists_.Remove(slot.value);
  if (to_ghosts && removal == Removal::kEvicted) ghosts_.PushNewest(fingerprint);
}

void S3FifoPolicy::OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) {
  std::uint32_t before[] = {lists_.end(kSmall), lists_.end(kMain)};
  if (parent) before[lists_.ListOf(parent->value)] = parent->value;
  for (const ChunkAccess& access : accesses) {
    const std::uint32_t slot = access.slot.value;
    const auto list = lists_.ListOf(slot);
    if (access.kind == ChunkAccess::Kind::kReuse) {
      uses_[slot] = std::min<std::uint8_t>(uses_[slot] + 1, kMaxUses);
    } else if (access.kind == ChunkAccess::Kind::kOwn) {
      lists_.Remove(slot);
      lists_.PutBehind(list, slot, before[list]);
      before[list] = slot;
    }
  }
}

void S3FifoPolicy::MoveTo(SlotLists::List list, std::uint32_t slot) {
  moves_.push_back({slot, lists_.newer(slot), lists_.ListOf(slot), uses_[slot]});
  lists_.Remove(slot);
  lists_.PushNewest(list, slot);
}

void S3FifoPolicy::UndoMoves() {
  for (auto move = moves_.rbegin(); move != moves_.rend(); ++move) {
    lists_.Remove(move->slot);
    lists_.PutBehind(move->list, move->slot, move->newer);
    uses_[move->slot] = move->uses;
  }
}

bool S3FifoPolicy::ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                                 std::vector<SlotId>& victims) {
  const std::size_t before = victims.size();
  moves_.clear();
  // The newest one of each queue that may not go: all older ones in it may not go either.
  std::uint32_t passed[] = {lists_.end(kSmall), lists_.end(kMain)};
  const auto next_in = [&](SlotLists::List queue) {
    std::uint32_t i = lists_.newer(passed[queue]);  // The oldest, of the end.
    while (i != lists_.end(queue) && !filter.MayEvict(SlotId(i))) {
      passed[queue] = i;
      i = lists_.newer(i);
    }
    return i;
  };
  const auto take_from_small = [&] {
    for (;;) {
      const std::uint32_t slot = next_in(kSmall);
      if (slot == lists_.end(kSmall)) return false;
      if (uses_[slot] >= kUsesToStay) {
        MoveTo(kMain, slot);
        uses_[slot] = 0;
        continue;
      }
      MoveTo(kFromSmall, slot);
      victims.push_back(SlotId(slot));
      return true;
    }
  };
  const auto take_from_main = [&] {
    for (;;) {
      const std::uint32_t slot = next_in(kMain);
      if (slot == lists_.end(kMain)) return false;
      if (uses_[slot] > 0) {
        MoveTo(kMain, slot);
        --uses_[slot];
        continue;
      }
      MoveTo(kFromMain, slot);
      victims.push_back(SlotId(slot));
      return true;
    }
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool main_first = lists_.size(kSmall) < small_size_;
    if (main_first && take_from_main()) continue;
    // The small queue may give all it has to the main queue.
    if (take_from_small() || take_from_main()) continue;
    UndoMoves();
    victims.resize(before);
    return false;
  }
  return true;
}

}  // namespace terrace
