// A secondary tier of the model: it copies when chance says so, fails, throws, forgets, reports
// late or wrongly, and checks that the manager keeps its side of the contract (secondary_tier.h).
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "terrace/secondary_tier.h"
#include "tests/model/slots.h"
#include "tests/model/weights.h"

namespace terrace::model {

class ModelTier final : public SecondaryTier {
 public:
  enum class Kind : std::uint8_t { kStore, kLoad, kServe };
  struct Job {
    Kind kind;
    TransferJob transfer;
  };

  ModelTier(LoadSource source, const Weights& weights, Chance& chance, Slots& slots)
      : weights_(weights), chance_(chance), slots_(slots), source_(source) {}

  std::string_view type() const override { return "model"; }
  LoadSource load_source() const override { return source_; }

  TierLookup Lookup(const ChunkKey& key, const Request& request) override {
    ExpectsWork(request.id, "Lookup");
    EXPECT_TRUE(request.load_from.Has(source_)) << "asked for a request that excludes it";
    MayThrow();
    if (!calm && chance_.Percent(weights_.tier_unknown_percent)) return TierLookup::kRetry;
    return chunks.contains(NumberOf(key)) ? TierLookup::kHit : TierLookup::kMiss;
  }
  void SubmitStore(TransferJob job) override {
    ExpectsWork(job.request, "SubmitStore");
    ExpectsJob(job);
    received_chunks += job.keys.size();
    MayThrow();
    for (std::size_t i = 0; i < job.keys.size(); ++i) slots_.BeginRead(job.slots[i], job.keys[i]);
    jobs.push_back({Kind::kStore, std::move(job)});
  }
  void SubmitLoad(TransferJob job) override {
    ExpectsWork(job.request, "SubmitLoad");
    ExpectsJob(job);
    MayThrow();
    for (SlotId slot : job.slots) slots_.BeginWrite(slot, Slots::Writer::kTier);
    jobs.push_back({Kind::kLoad, std::move(job)});
  }
  void AddServeJob(TransferJob job) {
    for (std::size_t i = 0; i < job.keys.size(); ++i) slots_.BeginRead(job.slots[i], job.keys[i]);
    jobs.push_back({Kind::kServe, std::move(job)});
  }

  void TakeFinished(std::vector<JobResult>& results) override {
    MayThrow();
    if (!calm && !shut && chance_.Percent(weights_.tier_reports_late_percent)) return;
    while (!ended_.empty()) {
      auto [result, job] = std::move(ended_.front());
      ended_.pop_front();
      results.push_back(std::move(result));
      job ? LetGo(*job) : void(++unknown_reports);
      MayThrow();  // What was appended counts.
    }
  }

  StoreInterest OnNewRequest(const Request& request) override {
    EXPECT_FALSE(own_requests.contains(request.id.value)) << "told of its own peer's request";
    EXPECT_TRUE(lives.try_emplace(request.id.value, false).second) << "told of a request twice";
    MayThrow();
    const bool whole = chance_.Percent(weights_.whole_percent);
    lives[request.id.value] = whole;
    return whole ? StoreInterest::kWholeRequest : StoreInterest::kNewChunks;
  }
  void OnRequestFinished(const Request& request) override {
    EXPECT_EQ(lives.erase(request.id.value), 1u) << "told of an end twice, or without a beginning";
    MayThrow();
  }
  void OnScheduleEnd() override { MayThrow(); }
  bool HasPendingWork() const override {
    MayThrow();
    return false;
  }
  bool serves_external_requests() const override { return static_cast<bool>(serve); }
  void ServeExternalRequests(TierServer& server) override {
    EXPECT_FALSE(shut) << "served after its shutdown";
    MayThrow();
    serve(*this, server);
    MayThrow();
  }
  bool Drain(std::chrono::milliseconds) override { return true; }
  bool Shutdown(std::chrono::milliseconds) override {
    shut = true;
    while (!jobs.empty()) End(0, std::vector(jobs[0].transfer.keys.size(), CopyOutcome::kFailed));
    MayThrow();
    return true;
  }

  // Ends a job: the copy is done now, the report comes when the manager asks.
  void FinishAnyJob() {
    if (jobs.empty()) return;
    const std::size_t n = chance_.Below(jobs.size());
    std::vector<CopyOutcome> outcomes;
    for (const ChunkKey& key : jobs[n].transfer.keys) {
      const bool fails = !calm && chance_.Percent(weights_.tier_fails_percent);
      // A tier that lost the chunk since it said that it has it can only fail.
      const bool lost = jobs[n].kind == Kind::kLoad && !chunks.contains(NumberOf(key));
      outcomes.push_back(fails || lost ? CopyOutcome::kFailed : CopyOutcome::kOk);
    }
    End(n, std::move(outcomes));
  }

  bool WantsWhole(std::uint64_t request) const {
    const auto life = lives.find(request);
    return life != lives.end() && life->second;
  }
  // Chunks of the jobs of this kind that it has not reported, of those since before `then`.
  struct Load {
    std::uint64_t jobs = 0, slots = 0;
  };
  Load UnderWay(Kind kind, std::chrono::steady_clock::time_point then) const {
    Load load;
    const auto count = [&](const Job& job) {
      if (job.kind != kind || job.transfer.submitted_at > then) return;
      ++load.jobs;
      load.slots += job.transfer.slots.size();
    };
    for (const Job& job : jobs) count(job);
    for (const auto& [result, job] : ended_) {
      if (job) count(*job);
    }
    return load;
  }

  // Chunks that it pins.
  std::vector<ChunkKey> KeysRead() const {
    std::vector<ChunkKey> keys;
    const auto add = [&](const Job& job) {
      const auto& read = job.transfer.keys;
      if (job.kind != Kind::kLoad) keys.insert(keys.end(), read.begin(), read.end());
    };
    for (const Job& job : jobs) add(job);
    for (const auto& [result, job] : ended_) {
      if (job) add(*job);
    }
    return keys;
  }

  std::set<std::uint64_t> chunks;                      // What it has.
  std::vector<Job> jobs;                               // Submitted and not ended.
  std::function<void(ModelTier&, TierServer&)> serve;  // If set, it serves peers.
  std::vector<Request> open;                           // Of its peers, begun and not finished.
  std::vector<Request> closed;                         // Finished, for misuse.
  std::unordered_set<std::uint64_t> own_requests;      // All of them, for ever.
  std::unordered_map<std::uint64_t, bool>
      lives;                          // By request begun and not ended: wants all of it.
  const ModelTier* other = nullptr;   // Whose jobs it reports now and then.
  std::uint64_t received_chunks = 0;  // By SubmitStore().
  std::uint64_t unknown_reports = 0;  // That it made.
  std::uint64_t wrong_counts = 0;     // Of outcomes, that it reported of loads.
  bool calm = false;                  // No faults any more.
  bool shut = false;

 private:
  void MayThrow() const {
    if (!calm && chance_.Percent(weights_.tier_throws_percent)) throw std::runtime_error("model");
  }
  void ExpectsWork(RequestId request, const char* what) const {
    EXPECT_FALSE(shut) << what << " after its shutdown";
    EXPECT_FALSE(own_requests.contains(request.value)) << what << " for its own peer";
    EXPECT_TRUE(lives.contains(request.value))
        << what << " before a request's begin or after its end";
  }
  static void ExpectsJob(const TransferJob& job) {
    EXPECT_FALSE(job.keys.empty());
    EXPECT_EQ(job.keys.size(), job.slots.size());
    EXPECT_EQ(std::set(job.slots.begin(), job.slots.end()).size(), job.slots.size());
  }

  void End(std::size_t n, std::vector<CopyOutcome> outcomes) {
    Job job = std::move(jobs[n]);
    jobs.erase(jobs.begin() + static_cast<std::ptrdiff_t>(n));
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::uint64_t number = NumberOf(job.transfer.keys[i]);
      const bool ok = outcomes[i] == CopyOutcome::kOk;
      if (job.kind == Kind::kLoad) {
        slots_.Write(job.transfer.slots[i], ok ? number : Slots::kGarbage);
      } else {
        slots_.CheckBytes(job.transfer.slots[i], job.transfer.keys[i]);
        if (job.kind == Kind::kStore && ok) chunks.insert(number);
      }
    }
    const JobId id = job.transfer.id;
    const bool misreports = !calm && !shut && chance_.Percent(weights_.tier_misreports_percent);
    const int how = misreports ? chance_.Pick({0, 1, 2, 3, 4}) : -1;
    if (how == 0) ended_.push_back({{JobId(id.value + (1u << 30)), outcomes}, std::nullopt});
    if ((how == 1 || how == 2) && job.kind == Kind::kLoad && outcomes.size() > 1) ++wrong_counts;
    if (how == 1) outcomes.erase(outcomes.begin());
    if (how == 2) outcomes.push_back(CopyOutcome::kOk);
    if (how == 4 && other != nullptr && !other->jobs.empty()) {
      ended_.push_back({{other->jobs.front().transfer.id, outcomes}, std::nullopt});
    }
    const std::uint64_t bytes = outcomes.size() * 100;
    ended_.push_back({{id, outcomes, bytes}, std::move(job)});
    if (how == 3) ended_.push_back({{id, outcomes, bytes}, std::nullopt});
  }

  // From now on the manager may give the slots to somebody else.
  void LetGo(const Job& job) {
    for (SlotId slot : job.transfer.slots) {
      job.kind == Kind::kLoad ? slots_.EndWrite(slot, Slots::Writer::kTier) : slots_.EndRead(slot);
    }
  }

  const Weights& weights_;
  Chance& chance_;
  Slots& slots_;
  const LoadSource source_;
  std::deque<std::pair<JobResult, std::optional<Job>>>
      ended_;  // Not taken; no job: a wrong report.
};

}  // namespace terrace::model
