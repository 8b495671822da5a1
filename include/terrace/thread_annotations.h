// Clang's thread-safety annotations under Terrace's names; nothing for other compilers.
//
// A build with clang and -Wthread-safety proves at compile time that every method of a manager is
// called with the manager's lock held. See https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
// for the meaning of each.
#pragma once

#if defined(__clang__)
#define TERRACE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TERRACE_THREAD_ANNOTATION(x)
#endif

#define TERRACE_CAPABILITY(name) TERRACE_THREAD_ANNOTATION(capability(name))
#define TERRACE_SCOPED_CAPABILITY TERRACE_THREAD_ANNOTATION(scoped_lockable)
#define TERRACE_GUARDED_BY(x) TERRACE_THREAD_ANNOTATION(guarded_by(x))
#define TERRACE_REQUIRES(...) TERRACE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TERRACE_ACQUIRE(...) TERRACE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TERRACE_RELEASE(...) TERRACE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TERRACE_TRY_ACQUIRE(...) TERRACE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define TERRACE_EXCLUDES(...) TERRACE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define TERRACE_ASSERT_CAPABILITY(x) TERRACE_THREAD_ANNOTATION(assert_capability(x))
#define TERRACE_RETURN_CAPABILITY(x) TERRACE_THREAD_ANNOTATION(lock_returned(x))
#define TERRACE_NO_THREAD_SAFETY_ANALYSIS TERRACE_THREAD_ANNOTATION(no_thread_safety_analysis)
