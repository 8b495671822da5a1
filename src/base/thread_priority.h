// Priorities of threads, as far as the system grants them.
//
// On a machine whose cores are all busy with the model a thread that wakes waits for milliseconds
// until one is given to it. What answers others in between asks for more than its share.
#pragma once

#include <string>

#include "terrace/types.h"

namespace terrace {

// The system calls, each for the calling thread: 0, or an errno. A seam.
struct ThreadPriorityCalls {
  int (*set_nice)(int nice);
  // SCHED_RR with its lowest priority.
  int (*set_round_robin)();
};
extern const ThreadPriorityCalls kSystemThreadPriorityCalls;

struct GrantedPriority {
  ThreadPriority priority = ThreadPriority::kNormal;
  // Why it is less than what was asked for, and what to do about it; empty if it is not.
  std::string why_not_more;
};

// Gives the calling thread `wanted`, or the next lower priority that the system allows. Threads
// that it starts later begin with the normal one. Two system calls at most; never fails.
GrantedPriority SetThisThreadPriority(
    ThreadPriority wanted, const ThreadPriorityCalls& calls = kSystemThreadPriorityCalls);

// From now on the calling thread, when it wakes, waits until it is its turn: it never takes the
// core from whoever runs there. Its share of a busy machine is the same. For work that may begin
// some milliseconds later. The system allows it to anybody; where it does not, and in a thread that
// was started with another kind of schedule (chrt), nothing changes.
void LetOthersRunOn();

}  // namespace terrace
