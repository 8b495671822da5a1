// What a manager and its tiers know of an inference request.
#pragma once

#include <memory>

#include "terrace/peer_route.h"
#include "terrace/types.h"

namespace terrace {

// Created by the engine side, the same from OnNewRequest() to OnRequestFinished().
struct Request {
  // Engines choose ids below kExternalRequests; those above name requests of peers, which the
  // manager makes (tier_server.h).
  RequestId id;
  // The kinds of secondary tier it may be served from. Host memory is always asked; what the
  // request stores goes to every tier.
  LoadSourceSet load_from = LoadSourceSet::All();
  // For the peer tier; null: what that does with requests of which nobody said anything.
  std::shared_ptr<const PeerRoute> route = nullptr;
  // Its chunks in the order of their use are one prefix, of no use with a hole: none that it stored
  // or loaded itself is evicted for another of them, and the late ones go before the early ones.
  // False for a collector of unrelated chunks, which are a prefix only in that they go in that
  // order once it has finished.
  bool is_sequence = true;
};

inline constexpr RequestId kExternalRequests{std::uint64_t{1} << 63};

}  // namespace terrace
