#include "host/lru_policy.h"

#include <algorithm>

namespace terrace {

LruPolicy::LruPolicy(std::uint32_t slot_count) : lists_(slot_count, 1) {}

std::uint32_t LruPolicy::refresh_interval() const {
  return std::max(lists_.slot_count() / 8, std::uint32_t{1});
}

void LruPolicy::OnInsert(SlotId slot, Fingerprint, std::optional<SlotId> parent) {
  lists_.PutBehind(kAll, slot.value, parent ? parent->value : lists_.end(kAll));
}

void LruPolicy::OnRemove(SlotId slot, Fingerprint, Removal) { lists_.Remove(slot.value); }

void LruPolicy::OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) {
  std::uint32_t before = parent ? parent->value : lists_.end(kAll);
  for (const ChunkAccess& access : accesses) {
    lists_.Remove(access.slot.value);
    lists_.PutBehind(kAll, access.slot.value, before);
    before = access.slot.value;
  }
}

bool LruPolicy::ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                              std::vector<SlotId>& victims) {
  const std::size_t enough = victims.size() + count;
  const std::size_t before = victims.size();
  for (std::uint32_t i = lists_.oldest(kAll); i != lists_.end(kAll) && victims.size() < enough;
       i = lists_.newer(i)) {
    if (filter.MayEvict(SlotId(i))) victims.push_back(SlotId(i));
  }
  if (victims.size() == enough) return true;
  victims.resize(before);
  return false;
}

}  // namespace terrace
