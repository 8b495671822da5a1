// UCX as the peer tier uses it: one context with our settings, workers and what they are told.
// Only in builds with UCX (TERRACE_WITH_UCX).
#pragma once

#ifdef TERRACE_WITH_UCX

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <utility>

#include "terrace/result.h"

namespace terrace {

Error UcxError(const std::string& attempt, ucs_status_t status);

// Thread-safe: its workers may be used by different threads. Outlives them.
class UcxContext {
 public:
  // With settings that notice the death of a peer and still are fast on one host, where the
  // environment (UCX_...) does not say otherwise.
  static Result<std::shared_ptr<UcxContext>> Create();
  ~UcxContext() { ucp_cleanup(context_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  const ucp_context_h context_;
};

// Thread-compatible.
class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> Create(std::shared_ptr<UcxContext> context);
  ~UcxWorker() { ucp_worker_destroy(worker_); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // To sleep on, after Arm() said true: nothing is left to be moved on.
  int descriptor() const { return descriptor_; }
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }
  // Moves everything on; does not take longer than some turns. False if there was nothing.
  bool Progress() {
    int turns = 0;
    while (turns < kTurns && ucp_worker_progress(worker_) != 0) ++turns;
    return turns > 0;
  }

 private:
  static constexpr int kTurns = 64;

  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h worker, int descriptor)
      : context_(std::move(context)), worker_(worker), descriptor_(descriptor) {}

  const std::shared_ptr<UcxContext> context_;
  const ucp_worker_h worker_;
  const int descriptor_;
};

}  // namespace terrace

#endif
