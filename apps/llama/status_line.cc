#include "status_line.h"

#include <unistd.h>

#include <cstdio>

namespace terrace::llama {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{2};

}  // namespace

StatusLine::StatusLine()
    : start_(Clock::now()), next_(start_ + kPatience), terminal_(isatty(STDERR_FILENO) == 1) {}

void StatusLine::Say(const std::string& what) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "%s[%.0f s] %s%s", terminal_ ? "\r\033[K" : "", elapsed, what.c_str(),
               terminal_ ? "" : "\n");
  std::fflush(stderr);
  shown_ = true;
  next_ = now + (terminal_ ? std::chrono::seconds(1) : kPatience);
}

void StatusLine::Clear() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
  shown_ = false;
  next_ = Clock::now() + kPatience;
}

}  // namespace terrace::llama
