// How often chunks were offered that are not stored yet: those that nobody offers twice are not
// worth a slot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/fingerprint_list.h"

namespace terrace {

// Bounded: the chunk that was not offered for longest is forgotten first, but no chunk of the offer
// being counted. Thread-compatible; memory is taken once, 32 bytes a tracked chunk.
class OfferTracker {
 public:
  // Pre: capacity >= 1.
  explicit OfferTracker(std::uint32_t capacity) : counts_(capacity) {}

  // Counts one offer of each of `fingerprints`, and says how often each was offered. A chunk that
  // there is no room to remember counts as offered once.
  // Post: counts.size() == fingerprints.size().
  void Count(std::span<const Fingerprint> fingerprints, std::vector<std::uint32_t>& counts);

  std::size_t memory_bytes() const { return counts_.memory_bytes(); }

 private:
  struct Offers {
    std::uint32_t count;
    std::uint32_t last_offer;
  };
  FingerprintList<Offers> counts_;
  std::uint32_t offer_ = 0;
};

}  // namespace terrace
