#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace terrace::internal {

void CheckFailed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "terrace: bug at %s:%d: %s (%s)\n", file, line, why, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace terrace::internal
