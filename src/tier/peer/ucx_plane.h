// The data plane over UCX: the asker reads out of the holder's registered memory, over whatever is
// the fastest way that UCX finds between the two.
//
// The link is TCP, as of the TCP plane, and carries what UCX needs to know; so who may read is
// decided by a token there. (The key of the memory is as good as the network it travels on: use
// this plane among machines that trust each other.) A read is reported when UCX says that its
// request is complete, and not before, so its slot is not written afterwards.
#pragma once

#include <memory>

#include "terrace/result.h"
#include "tier/peer/data_plane.h"

namespace terrace {

// Listens before it returns; registers host memory in the background, and askers wait for that.
// The offer is the port. kUnavailable in builds without UCX, or if it does not start.
Result<std::unique_ptr<DataPlane>> CreateUcxPlane(const DataPlaneContext& context);

}  // namespace terrace
