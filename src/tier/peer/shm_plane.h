// The data plane for peers on one host: the asker maps the holder's memory, for reading, and copies
// out of it.
//
// The link is a UNIX socket with an abstract, random name; the holder's memory comes along with
// OPENED, as a descriptor that can't be written through. Both ends are of one user. The copy hashes
// what it writes (base/hashed_copy.h), so a slot that changes meanwhile is found out.
#pragma once

#include <memory>

#include "terrace/result.h"
#include "tier/peer/data_plane.h"

namespace terrace {

// Listens before it returns. kUnavailable if host memory has no descriptor, or the system gives no
// such socket.
Result<std::unique_ptr<DataPlane>> CreateShmPlane(const DataPlaneContext& context);

}  // namespace terrace
