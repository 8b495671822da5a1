#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <chrono>
#include <future>
#include <string>

namespace terrace {
namespace {

std::string NameSeenByTheThread(std::string_view name, std::string_view suffix) {
  std::array<char, 16> found{};
  std::promise<void> named;
  auto thread = StartThread(name, suffix, [&] {
    named.get_future().wait();
    pthread_getname_np(pthread_self(), found.data(), found.size());
  });
  named.set_value();  // Only now has StartThread() returned, and so given the name.
  thread.value().join();
  return found.data();
}

TEST(StartThread, NamesTheThread) {
  EXPECT_EQ(NameSeenByTheThread("terrace-", "r0"), "terrace-r0");
}

// Linux keeps 15 characters; the number at the end is what tells threads apart.
TEST(StartThread, CutsALongNameAndKeepsTheSuffix) {
  EXPECT_EQ(NameSeenByTheThread("terrace-file-", "r10"), "terrace-filer10");
}

TEST(EndingThread, IsJoinedWhenItHasEndedAndNotBefore) {
  using Clock = std::chrono::steady_clock;
  std::promise<void> end;
  EndingThread thread;
  EXPECT_TRUE(thread.JoinUntil(Clock::now())) << "there is none";
  ASSERT_TRUE(thread.Start("terrace-", "end", [&] { end.get_future().wait(); }).ok());
  EXPECT_TRUE(thread.runs());
  EXPECT_FALSE(thread.JoinUntil(Clock::now()));
  EXPECT_TRUE(thread.runs());
  end.set_value();
  EXPECT_TRUE(thread.JoinUntil(Clock::now() + std::chrono::minutes(1)));
  EXPECT_FALSE(thread.runs());
  EXPECT_TRUE(thread.JoinUntil(Clock::now())) << "it is joined";
}

}  // namespace
}  // namespace terrace
