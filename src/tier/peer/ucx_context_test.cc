#include "tier/peer/ucx_context.h"

#ifdef TERRACE_WITH_UCX

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace terrace {
namespace {

// Whoever embeds Terrace keeps its own handlers of fatal signals, or none.
TEST(UcxContext, LeavesFatalSignalsAlone) {
  ASSERT_TRUE(UcxContext::Create().ok());
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    struct sigaction action {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    Dl_info info{};
    if (::dladdr(reinterpret_cast<void*>(action.sa_sigaction), &info) == 0) continue;  // SIG_DFL
    EXPECT_THAT(std::string(info.dli_fname), testing::Not(testing::HasSubstr("libucs"))) << signal;
  }
}

}  // namespace
}  // namespace terrace

#endif
