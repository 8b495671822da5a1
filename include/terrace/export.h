// Marks what a program that links a shared libterrace may use.
#pragma once

#if defined(TERRACE_SHARED) && defined(__GNUC__)
#define TERRACE_API __attribute__((visibility("default")))
#else
#define TERRACE_API
#endif
