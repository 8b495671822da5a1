// The asker's part of the UCX plane. Only in builds with UCX (TERRACE_WITH_UCX).
#pragma once

#ifdef TERRACE_WITH_UCX

#include <memory>
#include <string>
#include <vector>

#include "tier/peer/plane_dialer.h"
#include "tier/peer/ucx_context.h"

namespace terrace {

class UcxDialer final : public PlaneDialer {
 public:
  static Result<std::unique_ptr<PlaneDialer>> Create(std::shared_ptr<UcxContext> context);
  // Waits for a moment for endpoints that are being closed.
  ~UcxDialer() override;

  std::unique_ptr<Dial> Begin(const std::string& host, const std::string& offer) override;
  Result<std::unique_ptr<RemoteChunks>> Reach(const DataOpened& opened,
                                              UniqueFd descriptor) override;
  int descriptor() const override { return worker_->descriptor(); }
  bool Arm() override { return worker_->Arm(); }
  bool Progress() override;

  // Closes without waiting for the peer: what is under way ends as an error.
  void CloseEndpoint(ucp_ep_h endpoint);
  ucp_worker_h worker() const { return worker_->get(); }

 private:
  explicit UcxDialer(std::unique_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}

  const std::unique_ptr<UcxWorker> worker_;
  std::vector<void*> closing_;  // Requests.
};

}  // namespace terrace

#endif
