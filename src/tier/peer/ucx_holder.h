// The holder's part of the UCX plane: its memory, registered, and a worker that answers for it.
// Only in builds with UCX (TERRACE_WITH_UCX).
#pragma once

#ifdef TERRACE_WITH_UCX

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/thread.h"
#include "terrace/tier_host.h"
#include "tier/peer/ucx_context.h"

namespace terrace {

// What an asker needs to read a holder's memory; travels as the detail of OPENED.
struct UcxAccess {
  std::uint64_t base = 0;  // The holder's address of slot 0.
  std::vector<std::byte> worker;
  std::vector<std::byte> key;
};
std::vector<std::byte> EncodeUcxAccess(const UcxAccess& access);
// kCorrupt unless it is whole, to the last bit: UCX does not check what it is given.
Result<UcxAccess> DecodeUcxAccess(std::span<const std::byte> detail);

// Thread-safe.
class UcxHolder {
 public:
  // Registers the memory on a thread of its own, which may take seconds, and then calls
  // `registered`, with an empty detail if UCX did not take it; from then on it is idle but for what
  // askers do.
  static Result<std::unique_ptr<UcxHolder>> Start(
      std::shared_ptr<UcxContext> context, TierHost& host,
      std::function<void(std::vector<std::byte> detail)> registered);
  // Pre: Shutdown() returned true, or nobody waits for longer than kDestructorPatience.
  ~UcxHolder();
  UcxHolder(const UcxHolder&) = delete;
  UcxHolder& operator=(const UcxHolder&) = delete;

  [[nodiscard]] bool Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  UcxHolder(std::shared_ptr<UcxContext> context, std::unique_ptr<UcxWorker> worker, UniqueFd wake);

  void Run(TierHost& host, const std::function<void(std::vector<std::byte>)>& registered);
  // Of the memory; empty, with a line in the log, if UCX does not take it.
  std::vector<std::byte> Register(TierMemory memory);
  void Sleep();

  const std::shared_ptr<UcxContext> context_;
  const std::unique_ptr<UcxWorker> worker_;
  const UniqueFd wake_;  // An eventfd.
  EndingThread thread_;
  ucp_mem_h memory_ = nullptr;  // The thread's.

  std::atomic<bool> stopping_ = false;  // Set before wake_ is written.
};

}  // namespace terrace

#endif
