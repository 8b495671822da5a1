// Tells a person on stderr that something long goes on: what, how far, how long.
//
// On a terminal one line that is written over; elsewhere a line now and then. Says nothing before
// the first two seconds.
#pragma once

#include <chrono>
#include <string>

namespace terrace::llama {

// Confined to one thread.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { Clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Says what `what()` returns, if it is time to. Cheap otherwise.
  template <typename Function>
  void Update(Function what) {
    if (IsTime()) Say(what());
  }
  // Something else was said, or is about to be: takes the line away and starts waiting anew.
  void Clear();

 private:
  bool IsTime() const { return std::chrono::steady_clock::now() >= next_; }
  void Say(const std::string& what);

  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace terrace::llama
