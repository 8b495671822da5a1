// The socket of a region's set-up: abstract, of whole messages, never blocking.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/fd.h"
#include "host/region_header.h"
#include "terrace/result.h"

namespace terrace {

// kUnavailable if the name is taken.
Result<UniqueFd> ListenForRegion(const std::string& name);
// nullopt if nobody listens, or has no time just now.
Result<std::optional<UniqueFd>> ConnectToRegion(const std::string& name);
// nullopt if nobody waits to be accepted any more.
Result<std::optional<UniqueFd>> AcceptForRegion(int listener);

// `memory_fd` is passed along if it is not -1. kUnavailable if the other end is gone.
Result<void> SendRegionMessage(int socket, const RegionMessage& message, int memory_fd = -1);

struct ReceivedRegionMessage {
  RegionMessage message;
  UniqueFd memory;  // Not valid if none was passed.
};
// Pre: the socket is readable. nullopt if the other end is gone; kIncompatible if what came is no
// message of this version.
Result<std::optional<ReceivedRegionMessage>> ReceiveRegionMessage(int socket);

// False if `deadline` passed first.
bool WaitUntilReadable(int socket, std::chrono::steady_clock::time_point deadline);

// For poll(): what is left until `deadline`, rounded up, so that a wait is never a spin.
int PollTimeoutMs(std::chrono::steady_clock::time_point deadline);

}  // namespace terrace
