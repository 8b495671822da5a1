// A secondary tier written in Python, as the manager sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "request_book.h"
#include "terrace/secondary_tier.h"

namespace terrace_kv {

// What an adapter in Python (terrace_kv/tiers.py) is asked for; see there for the calls' shapes.
//
// The manager calls it with its lock held, from the engine's thread or the control thread: each
// method takes the interpreter after that. What Python raises ends in the manager's circuit
// breaker, as what any tier throws.
class PyTier final : public terrace::SecondaryTier {
 public:
  // With the interpreter held, as the destructor.
  PyTier(nb::object adapter, std::shared_ptr<RequestBook> book);
  ~PyTier() override;

  std::string_view type() const override { return type_; }
  terrace::LoadSource load_source() const override { return source_; }
  terrace::TierLookup Lookup(const terrace::ChunkKey& key,
                             const terrace::Request& request) override;
  void SubmitStore(terrace::TransferJob job) override { Submit(std::move(job), true); }
  void SubmitLoad(terrace::TransferJob job) override { Submit(std::move(job), false); }
  void TakeFinished(std::vector<terrace::JobResult>& results) override;
  terrace::StoreInterest OnNewRequest(const terrace::Request& request) override;
  void OnRequestFinished(const terrace::Request& request) override;
  void OnScheduleEnd() override;
  bool HasPendingWork() const override;
  bool serves_external_requests() const override { return serves_; }
  bool serves_between_steps() const override { return serves_between_steps_; }
  bool failed_jobs_are_faults() const override { return failed_jobs_are_faults_; }
  void ServeExternalRequests(terrace::TierServer& server) override;
  bool Drain(std::chrono::milliseconds timeout) override;
  bool Shutdown(std::chrono::milliseconds timeout) override;

 private:
  void Submit(terrace::TransferJob job, bool is_store);

  nb::object adapter_;
  const std::shared_ptr<RequestBook> book_;
  std::string type_;
  terrace::LoadSource source_ = terrace::LoadSource::kOther;
  bool serves_ = false;
  bool serves_between_steps_ = false;
  bool failed_jobs_are_faults_ = true;
  bool is_shut_ = false;
  // With the interpreter held. Of jobs that were not reported.
  std::unordered_map<terrace::JobId, std::vector<terrace::ChunkKey>> jobs_;
};

// What a tier in Python is given to serve its peers with; valid during that one call.
class PyServer {
 public:
  PyServer(terrace::TierServer& server,
           std::unordered_map<terrace::JobId, std::vector<terrace::ChunkKey>>& jobs)
      : server_(&server), jobs_(jobs) {}
  void End() { server_ = nullptr; }

  std::uint64_t BeginRequest();
  int Lookup(nb::handle key, std::uint64_t request);
  nb::object CreateStoreJob(nb::handle keys, std::uint64_t request);
  void FinishRequest(std::uint64_t request);
  bool ShouldYield();

 private:
  terrace::TierServer& server();

  terrace::TierServer* server_;
  std::unordered_map<terrace::JobId, std::vector<terrace::ChunkKey>>& jobs_;
};

}  // namespace terrace_kv
