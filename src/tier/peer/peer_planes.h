// Which data planes a node has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "terrace/result.h"
#include "tier/peer/data_plane.h"

namespace terrace {

// `wanted` as in PeerTierConfig::data_plane. "auto": all of this build that work here, the best
// first; one that does not is a line in the log. kInvalidArgument if the build has not the one that
// is wanted; its error if that does not work here.
Result<std::vector<std::unique_ptr<DataPlane>>> MakeDataPlanes(const std::string& wanted,
                                                               const DataPlaneContext& context);

// Those of this build, for people.
std::string DataPlaneNames();

}  // namespace terrace
