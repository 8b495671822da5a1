// Log lines to stderr through spdlog: TERRACE_LOG_WARN("read {}: {}", path, why). Format strings
// are fmt's.
//
// Never below WARN while the manager's lock is held.
#pragma once

#include <spdlog/spdlog.h>

namespace terrace {

// The logger of the library, named "terrace"; made at first use, level INFO or what
// TERRACE_LOG_LEVEL says (debug, info, warning, error, off). Thread-safe.
spdlog::logger& Log();

}  // namespace terrace

#define TERRACE_LOG_DEBUG(...) ::terrace::Log().debug(__VA_ARGS__)
#define TERRACE_LOG_INFO(...) ::terrace::Log().info(__VA_ARGS__)
#define TERRACE_LOG_WARN(...) ::terrace::Log().warn(__VA_ARGS__)
#define TERRACE_LOG_ERROR(...) ::terrace::Log().error(__VA_ARGS__)
