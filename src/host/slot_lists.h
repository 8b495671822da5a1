// Doubly linked lists of slots, from the oldest to the newest: what policies are made of.
//
// A slot is in one list or in none. 9 bytes a slot, taken once.
#pragma once

#include <cstdint>

#include "host/huge_array.h"
#include "terrace/types.h"

namespace terrace {

// Thread-compatible. Slots are their numbers here. All calls are O(1), but Clear().
class SlotLists {
 public:
  using List = std::uint8_t;
  static constexpr List kNone = 0xff;

  SlotLists(std::uint32_t slot_count, List list_count);

  std::uint32_t slot_count() const { return slot_count_; }
  // kNone if it is in none.
  List ListOf(std::uint32_t slot) const { return static_cast<List>(list_plus_1_[slot] - 1); }
  std::uint32_t size(List list) const { return sizes_[list]; }

  // for (i = oldest(list); i != end(list); i = newer(i))
  std::uint32_t oldest(List list) const { return links_[end(list)].newer; }
  std::uint32_t newer(std::uint32_t slot) const { return links_[slot].newer; }
  std::uint32_t end(List list) const { return slot_count_ + list; }

  // Pre: in no list.
  void PushNewest(List list, std::uint32_t slot) { PutBehind(list, slot, end(list)); }
  // One place older than `anchor`, which is in `list` or is its end.
  // Pre: in no list.
  void PutBehind(List list, std::uint32_t slot, std::uint32_t anchor);
  // Pre: in a list.
  void Remove(std::uint32_t slot);
  void Clear();

  std::size_t memory_bytes() const { return links_.memory_bytes() + list_plus_1_.memory_bytes(); }

 private:
  struct Links {
    std::uint32_t older;
    std::uint32_t newer;
  };
  static constexpr List kMaxLists = 4;
  void MakeEmpty();

  const std::uint32_t slot_count_;
  const List list_count_;
  HugeArray<Links> links_;  // Behind the slots' come the ends': `newer` is the list's oldest slot,
                            // `older` its newest.
  HugeArray<std::uint8_t> list_plus_1_;
  std::uint32_t sizes_[kMaxLists] = {};
};

}  // namespace terrace
