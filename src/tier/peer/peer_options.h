// What can be wrong with a peer tier's configuration beyond the bounds of each key.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "terrace/tier_config.h"

namespace terrace {

// Each fault with the key to which it belongs; empty if there is none. The configuration's parser
// and the tier itself refuse the same.
std::vector<std::pair<std::string, std::string>> FaultsOf(const PeerTierConfig& config);

// Whether only this machine can connect there: 127.0.0.0/8, ::1 or localhost.
bool IsLoopback(const std::string& host);

}  // namespace terrace
