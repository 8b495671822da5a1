#include "base/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace terrace {

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int KeepAwayFromStdio(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int saved = errno;
  ::close(fd);
  errno = saved;
  return moved;
}

Error ErrnoError(std::string attempt, int errno_value) {
  ErrorCode code = ErrorCode::kUnavailable;
  switch (errno_value) {
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermissionDenied;
      break;
    case ENOENT:
      code = ErrorCode::kNotFound;
      break;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      code = ErrorCode::kResourceExhausted;
      break;
    case ENOTDIR:
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
      code = ErrorCode::kInvalidArgument;
      break;
    default:
      break;
  }
  return Error{code, std::move(attempt) + ": " + std::generic_category().message(errno_value)};
}

}  // namespace terrace
