#include "host/slot_lists.h"

#include "base/check.h"

namespace terrace {

SlotLists::SlotLists(std::uint32_t slot_count, List list_count)
    : slot_count_(slot_count),
      list_count_(list_count),
      links_(std::size_t{slot_count} + list_count),
      list_plus_1_(slot_count) {
  TERRACE_CHECK(list_count <= kMaxLists, "more lists than there may be");
  MakeEmpty();
}

void SlotLists::MakeEmpty() {
  for (List list = 0; list < list_count_; ++list) {
    links_[end(list)] = {end(list), end(list)};
    sizes_[list] = 0;
  }
}

void SlotLists::PutBehind(List list, std::uint32_t slot, std::uint32_t anchor) {
  TERRACE_DCHECK(list_plus_1_[slot] == 0, "a slot is in one list at most");
  const std::uint32_t older = links_[anchor].older;
  links_[slot] = {older, anchor};
  links_[older].newer = slot;
  links_[anchor].older = slot;
  list_plus_1_[slot] = static_cast<std::uint8_t>(list + 1);
  ++sizes_[list];
}

void SlotLists::Remove(std::uint32_t slot) {
  TERRACE_DCHECK(list_plus_1_[slot] != 0, "the slot is in no list");
  const Links links = links_[slot];
  links_[links.older].newer = links.newer;
  links_[links.newer].older = links.older;
  --sizes_[list_plus_1_[slot] - 1];
  list_plus_1_[slot] = 0;
}

void SlotLists::Clear() {
  list_plus_1_.Clear();
  MakeEmpty();
}

}  // namespace terrace
