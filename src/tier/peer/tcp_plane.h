// The data plane for everybody: chunks travel on the link itself, over TCP.
#pragma once

#include <memory>

#include "terrace/result.h"
#include "tier/peer/data_plane.h"

namespace terrace {

// Listens before it returns; the offer is the port. kInvalidArgument, kNotFound or kUnavailable if
// it cannot listen there. Cost: may resolve context.listen_host.
Result<std::unique_ptr<DataPlane>> CreateTcpPlane(const DataPlaneContext& context);

}  // namespace terrace
