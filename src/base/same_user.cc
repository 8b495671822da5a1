#include "base/same_user.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace terrace {

Result<pid_t> CheckSameUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoError("look who is there", errno);
  }
  if (peer.uid != ::geteuid()) {
    return Error{ErrorCode::kPermissionDenied,
                 fmt::format("process {} there is of user {}, this one of user {}", peer.pid,
                             peer.uid, ::geteuid())};
  }
  return peer.pid;
}

}  // namespace terrace
