// Which operations on storage have been running for so long that it probably does not answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <string>

#include "base/log_limiter.h"
#include "base/mutex.h"
#include "tier/file/chunk_index.h"

namespace terrace {

// Thread-safe. An operation that hangs is seen when somebody looks, or when it ends.
class HungOperations {
 public:
  struct Options {
    std::string what;  // Opens the line in the log: whose operations, on what.
    std::chrono::seconds after;
  };
  struct Seen {
    std::uint64_t now = 0;    // Running.
    std::uint64_t total = 0;  // With those that have ended.
  };

  HungOperations(Options options, SteadyNow now);

  // Warns when some are found and there were none before.
  // Cost: O(hung operations).
  Seen Look();

 private:
  struct Operation {
    std::chrono::steady_clock::time_point begun;
    bool hung = false;
  };
  using Running = std::list<Operation>;

 public:
  // One running operation.
  class Scope {
   public:
    explicit Scope(HungOperations& all) : all_(all), operation_(all.Begin()) {}
    ~Scope() { all_.End(operation_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HungOperations& all_;
    const Running::iterator operation_;
  };

 private:
  Running::iterator Begin();
  void End(Running::iterator operation);

  const Options options_;
  const SteadyNow now_;

  Mutex mutex_;
  Running running_ TERRACE_GUARDED_BY(mutex_);  // Oldest first.
  Seen seen_ TERRACE_GUARDED_BY(mutex_);

  LogLimiter log_;
};

}  // namespace terrace
