// A secondary tier that does what the test says, when the test says it. It moves no bytes.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "terrace/secondary_tier.h"

namespace terrace::testing_support {

class FakeTier final : public SecondaryTier {
 public:
  explicit FakeTier(std::string name = "", std::vector<std::string>* log = nullptr)
      : name_(std::move(name)), log_(log) {}

  std::string_view type() const override { return "fake"; }
  LoadSource load_source() const override { return source; }

  TierLookup Lookup(const ChunkKey& key, const Request&) override {
    ++lookups;
    MayThrow("Lookup");
    if (unknown.contains(key)) return TierLookup::kRetry;
    return chunks.contains(key) ? TierLookup::kHit : TierLookup::kMiss;
  }
  void SubmitStore(TransferJob job) override {
    MayThrow("SubmitStore");
    stores.push_back(std::move(job));
  }
  void SubmitLoad(TransferJob job) override {
    MayThrow("SubmitLoad");
    loads.push_back(std::move(job));
  }
  void TakeFinished(std::vector<JobResult>& results) override {
    ++polls;
    MayThrow("TakeFinished");
    for (JobResult& result : std::exchange(finished, {})) results.push_back(std::move(result));
  }
  StoreInterest OnNewRequest(const Request& request) override {
    Note("new", request);
    return interest;
  }
  void OnRequestFinished(const Request& request) override { Note("finished", request); }
  void OnScheduleEnd() override {
    ++step_ends;
    MayThrow("OnScheduleEnd");
  }
  bool HasPendingWork() const override { return pending; }
  bool serves_external_requests() const override { return static_cast<bool>(serve); }
  bool serves_between_steps() const override { return between_steps; }
  bool failed_jobs_are_faults() const override { return failed_jobs_count; }
  void ServeExternalRequests(TierServer& server) override {
    ++serves;
    MayThrow("ServeExternalRequests");
    serve(server);
  }
  int event_descriptor() const override { return descriptor; }
  bool Drain(std::chrono::milliseconds) override {
    MayThrow("Drain");
    while (!stores.empty()) FinishStore();
    while (!loads.empty()) FinishLoad();
    return true;
  }
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds) override {
    MayThrow("Shutdown");
    for (std::deque<TransferJob>* jobs : {&stores, &loads}) {
      for (TransferJob& job : std::exchange(*jobs, {})) {
        Finish(job, std::vector(job.keys.size(), CopyOutcome::kFailed));
      }
    }
    if (log_ != nullptr) log_->push_back(name_ + ": shutdown");
    return ends_in_time;
  }

  // Ends the oldest job. With `outcomes`, key by key, the last one for the rest; else all kOk.
  void FinishStore(std::vector<CopyOutcome> outcomes = {}) {
    TransferJob job = Pop(stores);
    outcomes.resize(job.keys.size(), outcomes.empty() ? CopyOutcome::kOk : outcomes.back());
    for (std::size_t i = 0; i < job.keys.size(); ++i) {
      if (outcomes[i] == CopyOutcome::kOk) chunks.insert(job.keys[i]);
    }
    Finish(job, std::move(outcomes));
  }
  void FinishLoad(std::vector<CopyOutcome> outcomes = {}) {
    TransferJob job = Pop(loads);
    outcomes.resize(job.keys.size(), outcomes.empty() ? CopyOutcome::kOk : outcomes.back());
    Finish(job, std::move(outcomes));
  }

  std::set<ChunkKey> chunks;              // What it has.
  std::set<ChunkKey> unknown;             // What it does not know yet.
  std::deque<TransferJob> stores, loads;  // Submitted and not ended.
  std::vector<JobResult> finished;        // Ended and not taken.
  StoreInterest interest = StoreInterest::kNewChunks;
  bool ends_in_time = true;  // What Shutdown() says.
  bool between_steps = true;
  bool failed_jobs_count = true;           // Before the manager is made.
  std::function<void(TierServer&)> serve;  // If set before the manager is made, it serves others.
  int descriptor = -1;
  bool pending = false;
  std::set<std::string> throws;  // Names of methods that do.
  LoadSource source = LoadSource::kDisk;
  int lookups = 0, polls = 0, serves = 0, step_ends = 0;

 private:
  void MayThrow(const char* method) const {
    if (throws.contains(method)) throw std::runtime_error("the fake tier was told to");
  }
  static TransferJob Pop(std::deque<TransferJob>& jobs) {
    TransferJob job = std::move(jobs.front());
    jobs.pop_front();
    return job;
  }
  void Finish(const TransferJob& job, std::vector<CopyOutcome> outcomes) {
    const auto ok = std::count(outcomes.begin(), outcomes.end(), CopyOutcome::kOk);
    finished.push_back({job.id, std::move(outcomes), static_cast<std::uint64_t>(ok) * 100});
  }
  void Note(const char* what, const Request& request) {
    if (log_ != nullptr)
      log_->push_back(name_ + ": " + what + " " + std::to_string(request.id.value));
  }

  const std::string name_;
  std::vector<std::string>* log_;
};

}  // namespace terrace::testing_support
