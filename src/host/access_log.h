// What one request stored, loaded and missed, each chunk once, in the order of its prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host/slot_table.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// A slot and the chunk that it held: once the generation has moved on, it holds something else.
struct SlotRef {
  SlotId slot;
  std::uint32_t generation = 0;  // No slot in use has 0.
};

// Thread-compatible. Memory is kept when it is cleared, for the next request.
class AccessLog {
 public:
  enum class Kind : std::uint8_t {
    kMissed,  // Offered and absent.
    kSeen,    // Was being written for another request.
    kReused,  // Was ready.
    kOwn,     // Stored or promoted for this request.
  };
  struct Entry {
    Fingerprint fingerprint;
    SlotRef chunk;
    std::uint32_t end;  // By which they are ordered, if placed.
    Kind kind;
    bool placed;  // Has its place in the order.
  };

  // nullptr if there is none. Valid until the next Add().
  Entry* Find(Fingerprint fingerprint);
  // Pre: Find(fingerprint) is nullptr.
  Entry* Add(Fingerprint fingerprint, Kind kind, SlotRef chunk);
  // Gives the entry its place in the order, unless it has one: behind those that have one, or only
  // those whose end is not higher.
  // Cost: O(1) if that is all of them; else O(log placed, and those behind it).
  void Place(Entry* entry, std::optional<std::uint32_t> end = {});
  // Calls visit(entry) for those placed before a placed one, the nearest first, until it says true.
  // Cost: O(log placed), or O(1) if it is the one behind that of the last call; and the visits.
  template <typename Visitor>
  void FindBefore(const Entry& entry, Visitor visit) const {
    for (std::size_t i = PlaceOf(entry); i-- > 0;) {
      if (visit(entries_[order_[i]])) return;
    }
  }

  // Calls visit(entry) for those with a place, in order, then for the others.
  template <typename Visitor>
  void ForEachInOrder(Visitor visit) const {
    for (std::uint32_t i : order_) visit(entries_[i]);
    for (const Entry& entry : entries_) {
      if (!entry.placed) visit(entry);
    }
  }

  void Clear();

  SlotRef tail;         // The last chunk of the request that was stored, promoted or used.
  SlotRef placed_tail;  // The same, of those that have a place.
  std::uint64_t refreshed_at = 0;  // On the host tier's clock.
  bool is_sequence = true;         // As Request::is_sequence, when it stored last.

 private:
  std::size_t Home(Fingerprint fingerprint) const {
    return ReduceToRange(static_cast<std::uint32_t>(fingerprint >> 32), index_.size());
  }
  std::size_t Next(std::size_t i) const { return i + 1 == index_.size() ? 0 : i + 1; }
  void Grow();
  std::size_t PlaceOf(const Entry& entry) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> order_;      // Places in entries_.
  mutable std::size_t likely_place_ = 0;  // In order_: a guess at what PlaceOf() is asked next.
  std::vector<std::uint32_t> index_;  // 1 + the place in entries_; 0 is empty. At most half used.
};

}  // namespace terrace
