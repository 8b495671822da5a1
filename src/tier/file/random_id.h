// Numbers for names that nobody else gives.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "base/check.h"

namespace terrace {

inline std::uint64_t RandomId() {
  std::uint64_t id = 0;
  // Fewer than 256 bytes never come short and are never interrupted.
  TERRACE_CHECK(::getrandom(&id, sizeof(id), 0) == sizeof(id), "no random numbers");
  return id;
}

}  // namespace terrace
