// S3-FIFO (Yang and others, SOSP 2023), applied to prefixes.
//
// New chunks go into a small queue (a tenth of the capacity). What was reused twice by the time it
// leaves that queue moves to the main queue; the rest is evicted, and remembered as a ghost. A
// ghost that comes back goes into the main queue at once. The main queue gives each chunk as many
// more rounds as it was reused in the last one, at most 3.
//
// A request is one insertion, which lasts as long as the request: its own chunks stand together in
// a queue, the deepest of them the oldest, and become the newest together. Being reused moves
// nothing.
#pragma once

#include "host/fingerprint_list.h"
#include "host/slot_lists.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// Thread-compatible. 34 bytes a slot, 24 of them for ghosts.
class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(std::uint32_t slot_count);

  void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) override;
  void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) override;
  void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) override;
  bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                     std::vector<SlotId>& victims) override;
  void Clear() override;
  std::uint32_t refresh_interval() const override;
  std::size_t memory_bytes() const override;

 private:
  static constexpr SlotLists::List kSmall = 0;
  static constexpr SlotLists::List kMain = 1;
  static constexpr SlotLists::List kFromSmall = 2;  // Victims until OnRemove(), by where they were.
  static constexpr SlotLists::List kFromMain = 3;
  static constexpr std::uint8_t kMaxUses = 3;
  static constexpr std::uint8_t kUsesToStay = 2;

  // A slot as it was before ChooseVictims() moved it.
  struct Move {
    std::uint32_t slot;
    std::uint32_t newer;
    SlotLists::List list;
    std::uint8_t uses;
  };
  void MoveTo(SlotLists::List list, std::uint32_t slot);
  void UndoMoves();

  const std::uint32_t small_size_;
  SlotLists lists_;
  GhostList ghosts_;
  HugeArray<std::uint8_t> uses_;
  std::vector<Move> moves_;  // Of the last ChooseVictims().
};

}  // namespace terrace
