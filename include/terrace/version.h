// Which Terrace this is.
#pragma once

#include <string>

#include "terrace/export.h"

#define TERRACE_VERSION_MAJOR 0
#define TERRACE_VERSION_MINOR 1
#define TERRACE_VERSION_PATCH 0

namespace terrace {

// "0.1.0".
TERRACE_API std::string Version();
// What was built in, a line each: compiler, build type, sanitizers, libraries with their versions,
// CUDA, kinds of tier. Ends with a newline.
TERRACE_API std::string BuildInfo();

}  // namespace terrace
