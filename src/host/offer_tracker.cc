#include "host/offer_tracker.h"

namespace terrace {

void OfferTracker::Count(std::span<const Fingerprint> fingerprints,
                         std::vector<std::uint32_t>& counts) {
  ++offer_;
  counts.assign(fingerprints.size(), 0);
  // Known ones first, so that a new one does not push out another of the same offer.
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    if (!counts_.Refresh(fingerprints[i])) continue;
    Offers& offers = *counts_.Find(fingerprints[i]);
    offers.last_offer = offer_;
    counts[i] = ++offers.count;
  }
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    if (counts[i] != 0) continue;
    counts[i] = 1;
    // What this offer counted is newest: if the oldest is of this offer, all are.
    const bool full = counts_.size() == counts_.capacity();
    if (full && counts_.oldest().payload.last_offer == offer_) continue;
    *counts_.PushNewest(fingerprints[i]) = {1, offer_};
  }
}

}  // namespace terrace
