#include "base/thread_priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "base/thread.h"

namespace terrace {
namespace {

// Bits of what was called.
int called = 0;
int Granted(int) { return called |= 1, 0; }
int Refused(int nice) { return called |= 1, nice == -10 ? EACCES : EINVAL; }
int Granted() { return called |= 2, 0; }
int Refused() { return called |= 2, EPERM; }

GrantedPriority Set(ThreadPriority wanted, const ThreadPriorityCalls& calls) {
  called = 0;
  return SetThisThreadPriority(wanted, calls);
}

TEST(SetThisThreadPriority, NormalAsksTheSystemForNothing) {
  const GrantedPriority granted = Set(ThreadPriority::kNormal, {Refused, Refused});
  EXPECT_EQ(granted.priority, ThreadPriority::kNormal);
  EXPECT_EQ(granted.why_not_more, "");
  EXPECT_EQ(called, 0);
}

TEST(SetThisThreadPriority, GivesWhatIsAskedForAndNoMore) {
  GrantedPriority granted = Set(ThreadPriority::kHigh, {Granted, Granted});
  EXPECT_EQ(granted.priority, ThreadPriority::kHigh);
  EXPECT_EQ(granted.why_not_more, "");
  EXPECT_EQ(called, 1);
  granted = Set(ThreadPriority::kRealtime, {Granted, Granted});
  EXPECT_EQ(granted.priority, ThreadPriority::kRealtime);
  EXPECT_EQ(granted.why_not_more, "");
  EXPECT_EQ(called, 2);
}

TEST(SetThisThreadPriority, FallsBackAndSaysWhyAndWhatToDo) {
  GrantedPriority granted = Set(ThreadPriority::kRealtime, {Granted, Refused});
  EXPECT_EQ(granted.priority, ThreadPriority::kHigh);
  EXPECT_EQ(granted.why_not_more,
            "SCHED_RR: Operation not permitted (it takes CAP_SYS_NICE, or LimitRTPRIO=1)");
  granted = Set(ThreadPriority::kRealtime, {Refused, Refused});
  EXPECT_EQ(granted.priority, ThreadPriority::kNormal);
  EXPECT_EQ(
      granted.why_not_more,
      "SCHED_RR: Operation not permitted (it takes CAP_SYS_NICE, or LimitRTPRIO=1); nice -10: "
      "Permission denied (it takes CAP_SYS_NICE, or LimitNICE=-10)");
}

// What the thread really has after that, and what a thread started by it has.
struct Seen {
  GrantedPriority granted;
  int policy = 0, nice = 0, policy_of_child = 0, nice_of_child = 0;
};

int NiceOfThisThread() {
  return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)));
}

Seen SetForReal(ThreadPriority wanted) {
  Seen seen;
  auto thread = StartThread("terrace-", "test", [&] {
    seen.granted = SetThisThreadPriority(wanted);
    seen.policy = ::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
    seen.nice = NiceOfThisThread();
    auto child = StartThread("terrace-", "child", [&] {
      seen.policy_of_child = ::sched_getscheduler(0);
      seen.nice_of_child = NiceOfThisThread();
    });
    child.value().join();
  });
  thread.value().join();
  return seen;
}

// Whatever this machine allows: what is said to be granted is what the thread has.
TEST(SetThisThreadPriority, TheSystemHasGrantedWhatItSays) {
  for (const ThreadPriority wanted :
       {ThreadPriority::kNormal, ThreadPriority::kHigh, ThreadPriority::kRealtime}) {
    const Seen seen = SetForReal(wanted);
    const ThreadPriority got = seen.granted.priority;
    EXPECT_EQ(seen.granted.why_not_more.empty(), got == wanted) << seen.granted.why_not_more;
    EXPECT_EQ(seen.policy, got == ThreadPriority::kRealtime ? SCHED_RR : SCHED_OTHER);
    if (got == ThreadPriority::kHigh) {
      EXPECT_EQ(seen.nice, -10);
    }
    EXPECT_EQ(seen.policy_of_child & ~SCHED_RESET_ON_FORK, SCHED_OTHER);
    EXPECT_GE(seen.nice_of_child, 0);
  }
}

TEST(LetOthersRunOn, IsOfTheCallingThreadAlone) {
  const int before = ::sched_getscheduler(0);
  int policy = -1;
  auto thread = StartThread("terrace-", "test", [&] {
    LetOthersRunOn();
    policy = ::sched_getscheduler(0);
  });
  thread.value().join();
  EXPECT_EQ(policy, SCHED_BATCH);
  EXPECT_EQ(::sched_getscheduler(0), before);
}

TEST(LetOthersRunOn, LeavesAThreadOfAnotherScheduleAlone) {
  int policy = -1;
  auto thread = StartThread("terrace-", "test", [&] {
    const sched_param none{};
    EXPECT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    LetOthersRunOn();
    policy = ::sched_getscheduler(0);
  });
  thread.value().join();
  EXPECT_EQ(policy, SCHED_IDLE);
}

}  // namespace
}  // namespace terrace
