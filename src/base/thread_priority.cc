#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>

namespace terrace {
namespace {

constexpr int kHighNice = -10;

// Without it a negative nice value, too, would be inherited by threads that this one starts.
int ResetOnFork() {
  sched_param none{};
  return ::sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) == 0 ? 0 : errno;
}

int SetNice(int nice) {
  if (const int error = ResetOnFork(); error != 0) return error;
  // On Linux a thread has a nice value of its own, under its own id.
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  return ::setpriority(PRIO_PROCESS, thread, nice) == 0 ? 0 : errno;
}

int SetRoundRobin() {
  sched_param lowest{};
  lowest.sched_priority = ::sched_get_priority_min(SCHED_RR);
  return ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest) == 0 ? 0 : errno;
}

std::string Refusal(std::string_view what, int error, std::string_view limit) {
  return std::string(what) + ": " + std::generic_category().message(error) +
         " (it takes CAP_SYS_NICE, or " + std::string(limit) + ")";
}

}  // namespace

const ThreadPriorityCalls kSystemThreadPriorityCalls{SetNice, SetRoundRobin};

GrantedPriority SetThisThreadPriority(ThreadPriority wanted, const ThreadPriorityCalls& calls) {
  GrantedPriority granted;
  if (wanted == ThreadPriority::kRealtime) {
    const int error = calls.set_round_robin();
    if (error == 0) return {ThreadPriority::kRealtime, ""};
    granted.why_not_more = Refusal("SCHED_RR", error, "LimitRTPRIO=1");
  }
  if (wanted == ThreadPriority::kNormal) return granted;
  const int error = calls.set_nice(kHighNice);
  if (error == 0) {
    granted.priority = ThreadPriority::kHigh;
    return granted;
  }
  if (!granted.why_not_more.empty()) granted.why_not_more += "; ";
  granted.why_not_more += Refusal("nice -10", error, "LimitNICE=-10");
  return granted;
}

void LetOthersRunOn() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;
  sched_param none{};
  (void)::sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace terrace
