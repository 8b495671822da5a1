// Who is at the other end of a UNIX socket.
#pragma once

#include <sys/types.h>

#include "terrace/result.h"

namespace terrace {

// The process there. kPermissionDenied if it is another user than ours: neither gives its memory to
// the other.
Result<pid_t> CheckSameUser(int socket);

}  // namespace terrace
