// Least recently used, applied to prefixes: a request's chunks stand together, the deepest of them
// the oldest.
//
// A chunk that a request stores goes right behind the chunk before it, wherever that is, so that a
// prefix is never older than what continues it. All chunks of a request that goes on are made the
// newest again before they have aged by an eighth of the capacity.
#pragma once

#include "host/slot_lists.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// Thread-compatible. 9 bytes a slot.
class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(std::uint32_t slot_count);

  void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) override;
  void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) override;
  void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) override;
  bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                     std::vector<SlotId>& victims) override;
  void Clear() override { lists_.Clear(); }
  std::uint32_t refresh_interval() const override;
  std::size_t memory_bytes() const override { return lists_.memory_bytes(); }

 private:
  static constexpr SlotLists::List kAll = 0;
  SlotLists lists_;
};

}  // namespace terrace
