#include "terrace/version.h"

namespace terrace {

std::string Version() {
  return std::to_string(TERRACE_VERSION_MAJOR) + "." + std::to_string(TERRACE_VERSION_MINOR) + "." +
         std::to_string(TERRACE_VERSION_PATCH);
}

}  // namespace terrace
