// Threads: named, and without exceptions.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "terrace/result.h"

namespace terrace {

// How long a tier's destructor waits for its threads if nobody called Shutdown(), or not long
// enough. After that it aborts: freeing what a thread still uses would be worse.
inline constexpr std::chrono::milliseconds kDestructorPatience{60'000};

// Runs `body` on a thread that debuggers show under `name` + `suffix`; where that is longer than
// the 15 characters Linux keeps, `name` is cut, so that threads stay told apart.
// kResourceExhausted if the system has no thread left.
Result<std::thread> StartThread(std::string_view name, std::string_view suffix,
                                std::function<void()> body);

// A thread that is waited for with a deadline: std::thread can only be waited for for ever. Its
// owner tells it to end in a way of their own, then joins it.
//
// Start() and JoinUntil() belong to one thread at a time. Destroyed before it is joined, it aborts,
// as std::thread does.
class EndingThread {
 public:
  EndingThread() = default;
  EndingThread(const EndingThread&) = delete;
  EndingThread& operator=(const EndingThread&) = delete;

  // As StartThread(). Once.
  Result<void> Start(std::string_view name, std::string_view suffix, std::function<void()> body);
  // Whether there is a thread that was not joined.
  bool runs() const { return thread_.joinable(); }
  // True if it has ended, and is joined, or there is none. False at the deadline; a later call may
  // say true.
  [[nodiscard]] bool JoinUntil(std::chrono::steady_clock::time_point deadline);

 private:
  Mutex mutex_;
  CondVar ended_cond_;
  bool ended_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
