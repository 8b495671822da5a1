// Look-ups as fast as a peer answers them, for what it does not have: the worst that an asker can
// do to a source's lock, so that who goes first there shows.
#pragma once

#include <chrono>
#include <cstdint>

#include "terrace/node.h"
#include "terrace/peer_route.h"

namespace terrace::matrix {

struct Flood {
  PeerAddress peer;
  std::uint32_t requests = 16;  // That ask at a time.
  std::uint32_t chunks = 256;   // Each for so many.
  std::uint32_t tokens_per_chunk = 0;
  std::chrono::milliseconds time{1'000};
};

// How many look-ups were answered. Pre: no step is under way, and the engine has no request.
std::uint64_t RunFlood(Node& node, const Flood& flood);

}  // namespace terrace::matrix
