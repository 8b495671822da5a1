#include "host/access_log.h"

#include <algorithm>

namespace terrace {

AccessLog::Entry* AccessLog::Find(Fingerprint fingerprint) {
  if (entries_.empty()) return nullptr;
  for (std::size_t i = Home(fingerprint); index_[i] != 0; i = Next(i)) {
    Entry& entry = entries_[index_[i] - 1];
    if (entry.fingerprint == fingerprint) return &entry;
  }
  return nullptr;
}

AccessLog::Entry* AccessLog::Add(Fingerprint fingerprint, Kind kind, SlotRef chunk) {
  if (2 * (entries_.size() + 1) > index_.size()) Grow();
  entries_.push_back({fingerprint, chunk, 0, kind, false});
  std::size_t i = Home(fingerprint);
  while (index_[i] != 0) i = Next(i);
  index_[i] = static_cast<std::uint32_t>(entries_.size());
  return &entries_.back();
}

void AccessLog::Grow() {
  index_.assign(std::max<std::size_t>(128, 2 * index_.size()), 0);
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    std::size_t i = Home(entries_[e].fingerprint);
    while (index_[i] != 0) i = Next(i);
    index_[i] = static_cast<std::uint32_t>(e + 1);
  }
}

void AccessLog::Place(Entry* entry, std::optional<std::uint32_t> given_end) {
  if (entry->placed) return;
  const std::uint32_t last = order_.empty() ? 0 : entries_[order_.back()].end;
  const std::uint32_t end = given_end.value_or(last);
  entry->placed = true;
  entry->end = end;
  const auto place = static_cast<std::uint32_t>(entry - entries_.data());
  if (last <= end) {
    order_.push_back(place);
    return;
  }
  order_.insert(
      std::upper_bound(order_.begin(), order_.end(), end,
                       [&](std::uint32_t e, std::uint32_t i) { return e < entries_[i].end; }),
      place);
}

std::size_t AccessLog::PlaceOf(const Entry& entry) const {
  const auto place = static_cast<std::uint32_t>(&entry - entries_.data());
  // Mostly it came last, or they are asked for in order.
  if (order_.back() == place) return order_.size() - 1;
  std::size_t found = likely_place_;
  if (found >= order_.size() || order_[found] != place) {
    const auto first =
        std::lower_bound(order_.begin(), order_.end(), entry.end,
                         [&](std::uint32_t i, std::uint32_t end) { return entries_[i].end < end; });
    found = static_cast<std::size_t>(std::find(first, order_.end(), place) - order_.begin());
  }
  likely_place_ = found + 1;
  return found;
}

void AccessLog::Clear() {
  // A small request after a large one does not pay for the large one's index.
  if (8 * entries_.size() < index_.size()) {
    // From the last to the first: what an entry's probe passed was there before it.
    for (std::size_t e = entries_.size(); e-- > 0;) {
      std::size_t i = Home(entries_[e].fingerprint);
      while (index_[i] != e + 1) i = Next(i);
      index_[i] = 0;
    }
  } else {
    std::fill(index_.begin(), index_.end(), 0);
  }
  entries_.clear();
  order_.clear();
  tail = placed_tail = SlotRef{};
  is_sequence = true;
}

}  // namespace terrace
