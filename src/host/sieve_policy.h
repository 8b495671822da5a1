// SIEVE (Zhang and others, NSDI 2024), applied to prefixes.
//
// One queue and a hand that goes from its oldest to its newest chunk, round and round: a chunk that
// was reused since the hand's last visit is spared once, the first other one is evicted. Nothing
// moves when it is reused.
//
// A request is one insertion, which lasts as long as the request: its own chunks stand together,
// the deepest of them the oldest, and become the newest together.
#pragma once

#include "host/slot_lists.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// Thread-compatible. 10 bytes a slot.
class SievePolicy final : public EvictionPolicy {
 public:
  explicit SievePolicy(std::uint32_t slot_count);

  void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) override;
  void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) override;
  void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) override;
  bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                     std::vector<SlotId>& victims) override;
  void Clear() override;
  std::uint32_t refresh_interval() const override;
  std::size_t memory_bytes() const override;

 private:
  static constexpr SlotLists::List kQueue = 0;
  static constexpr SlotLists::List kVictims = 1;  // Until OnRemove().

  // What ChooseVictims() changed: a victim left the queue, or a spared chunk its mark.
  struct Change {
    std::uint32_t slot;
    std::uint32_t newer;  // Of a victim.
    bool victim;
  };
  void Unlink(std::uint32_t slot);
  void Undo(std::uint32_t hand);

  SlotLists lists_;
  HugeArray<std::uint8_t> reused_;
  std::uint32_t hand_;           // Where the next search begins; the end means the oldest.
  std::vector<Change> changes_;  // Of the last ChooseVictims().
};

}  // namespace terrace
