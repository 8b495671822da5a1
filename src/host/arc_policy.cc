#include "host/arc_policy.h"

#include <algorithm>

namespace terrace {

ArcPolicy::ArcPolicy(std::uint32_t slot_count)
    : lists_(slot_count, 2), b1_(slot_count), b2_(slot_count) {}

std::uint32_t ArcPolicy::refresh_interval() const {
  return std::max(lists_.slot_count() / 16, std::uint32_t{1});
}

std::size_t ArcPolicy::memory_bytes() const {
  return lists_.memory_bytes() + b1_.memory_bytes() + b2_.memory_bytes();
}

void ArcPolicy::Clear() {
  lists_.Clear();
  b1_.Clear();
  b2_.Clear();
  target_ = 0;
}

void ArcPolicy::OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) {
  b1_.Erase(fingerprint);
  b2_.Erase(fingerprint);
  const bool behind = parent && lists_.ListOf(parent->value) == kT1;
  lists_.PutBehind(kT1, slot.value, behind ? parent->value : lists_.end(kT1));
}

void ArcPolicy::OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) {
  GhostList& ghosts = lists_.ListOf(slot.value) == kT1 ? b1_ : b2_;
  lists_.Remove(slot.value);
  if (removal == Removal::kEvicted) ghosts.PushNewest(fingerprint);
}

void ArcPolicy::OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) {
  std::uint32_t before[] = {lists_.end(kT1), lists_.end(kT2)};
  if (parent) before[lists_.ListOf(parent->value)] = parent->value;
  for (const ChunkAccess& access : accesses) {
    const std::uint32_t slot = access.slot.value;
    const auto list = access.kind == ChunkAccess::Kind::kReuse ? kT2 : lists_.ListOf(slot);
    lists_.Remove(slot);
    lists_.PutBehind(list, slot, before[list]);
    before[list] = slot;
  }
}

void ArcPolicy::OnMiss(std::span<const Fingerprint> fingerprints) {
  for (auto ghost = fingerprints.rbegin(); ghost != fingerprints.rend(); ++ghost) {
    if (b1_.Refresh(*ghost)) {
      const double step = std::max(1.0, static_cast<double>(b2_.size()) / b1_.size());
      target_ = std::min(target_ + step, static_cast<double>(lists_.slot_count()));
    } else if (b2_.Refresh(*ghost)) {
      const double step = std::max(1.0, static_cast<double>(b1_.size()) / b2_.size());
      target_ = std::max(target_ - step, 0.0);
    }
  }
}

bool ArcPolicy::ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                              std::vector<SlotId>& victims) {
  const std::size_t before = victims.size();
  std::uint32_t left_in_t1 = lists_.size(kT1);
  std::uint32_t next[] = {lists_.oldest(kT1), lists_.oldest(kT2)};
  const auto take_from = [&](SlotLists::List list) {
    for (std::uint32_t& i = next[list]; i != lists_.end(list);) {
      const std::uint32_t slot = i;
      i = lists_.newer(i);
      if (!filter.MayEvict(SlotId(slot))) continue;
      victims.push_back(SlotId(slot));
      if (list == kT1) --left_in_t1;
      return true;
    }
    return false;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool t1_first = left_in_t1 >= static_cast<std::uint32_t>(target_);
    if (t1_first && take_from(kT1)) continue;
    if (take_from(kT2) || (!t1_first && take_from(kT1))) continue;
    victims.resize(before);
    return false;
  }
  return true;
}

}  // namespace terrace
