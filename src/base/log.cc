#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>

namespace terrace {

spdlog::logger& Log() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("terrace", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l terrace: %v");
    const char* level = std::getenv("TERRACE_LOG_LEVEL");
    made->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::info);
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace terrace
