// ARC (Megiddo and Modha, FAST 2003), applied to prefixes.
//
// T1 has chunks that one request used, T2 those that were used again. Each remembers what was
// evicted from it lately (ghosts B1, B2); a miss on a ghost moves the target for T1's size towards
// the list that would have had it. In each list a request's chunks stand together, the deepest of
// them the oldest, as in LruPolicy.
#pragma once

#include "host/fingerprint_list.h"
#include "host/slot_lists.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// Thread-compatible. 57 bytes a slot, 48 of them for ghosts.
class ArcPolicy final : public EvictionPolicy {
 public:
  explicit ArcPolicy(std::uint32_t slot_count);

  void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) override;
  void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) override;
  void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) override;
  void OnMiss(std::span<const Fingerprint> fingerprints) override;
  bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                     std::vector<SlotId>& victims) override;
  void Clear() override;
  std::uint32_t refresh_interval() const override;
  std::size_t memory_bytes() const override;

  // The size that T1 should have, 0 to slot_count.
  double target() const { return target_; }

 private:
  static constexpr SlotLists::List kT1 = 0;
  static constexpr SlotLists::List kT2 = 1;

  SlotLists lists_;
  GhostList b1_;
  GhostList b2_;
  double target_ = 0;
};

}  // namespace terrace
