// A file descriptor with an owner, and errno as an Error.
#pragma once

#include <string>
#include <utility>

#include "terrace/result.h"

namespace terrace {

// Closes what it holds. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();
  // Somebody else closes it from now on.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Moves a descriptor that is one of 0, 1 and 2, which are free when a program was started with a
// closed standard stream, to a higher number: what anybody prints must never go into our files or
// memory. Returns the descriptor, or -1 with errno set; -1 stays -1.
int KeepAwayFromStdio(int fd);

// An Error for a failed system call: `attempt` says what was tried on what ("open /x/y"), the
// message adds errno's text. The code follows from errno_value.
Error ErrnoError(std::string attempt, int errno_value);

}  // namespace terrace
