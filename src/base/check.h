// Bugs abort, in release builds too: serving the bytes of another chunk is worse than a crash.
#pragma once

namespace terrace::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* why);
}  // namespace terrace::internal

// Aborts with the place, the condition and `why` if `condition` is false. Evaluated in every build.
#define TERRACE_CHECK(condition, why) \
  (static_cast<bool>(condition)       \
       ? static_cast<void>(0)         \
       : ::terrace::internal::CheckFailed(__FILE__, __LINE__, #condition, why))

// The same in debug builds; free in release builds.
#ifdef NDEBUG
#define TERRACE_DCHECK(condition, why) static_cast<void>(sizeof(condition))
#else
#define TERRACE_DCHECK(condition, why) TERRACE_CHECK(condition, why)
#endif
