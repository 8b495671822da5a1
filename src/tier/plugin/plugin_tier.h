// A tier whose code is in a shared library: terrace/tier_plugin.h, seen as a SecondaryTier.
//
// Nothing that the plug-in says is believed before it was checked. What is wrong is a fault: the
// next call of the same kind, or TakeFinished(), throws it as std::runtime_error, for the manager
// to count and to act upon. It cannot be checked that the plug-in keeps to the memory it was given.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_config.h"
#include "terrace/tier_host.h"
#include "tier/common/result_queue.h"
#include "tier/plugin/plugin_library.h"
#include "tier/plugin/plugin_server.h"
#include "tier/plugin/plugin_types.h"

namespace terrace {

// Thread-safe if the plug-in is.
class PluginTier final : public SecondaryTier {
 public:
  static constexpr std::size_t kCountersMax = 64;
  // What shutdown() of a plug-in may take beyond its time.
  static constexpr std::chrono::milliseconds kGrace{200};

  // Loads the library and makes its tier, which may block. Errors name the library and say what is
  // wrong with it, or repeat what it says. `host` outlives the tier.
  static Result<std::unique_ptr<PluginTier>> Create(const PluginTierConfig& config, TierHost& host);
  // The same for a library that is there. `options` is a JSON object.
  static Result<std::unique_ptr<PluginTier>> Create(std::unique_ptr<PluginLibrary> library,
                                                    std::string_view options, TierHost& host);
  // Waits for the plug-in's shutdown() for kDestructorPatience, then aborts.
  ~PluginTier() override;

  std::string_view type() const override { return library_->name(); }
  LoadSource load_source() const override { return static_cast<LoadSource>(info_.source); }
  TierLookup Lookup(const ChunkKey& key, const Request& request) override;
  void SubmitStore(TransferJob job) override;
  void SubmitLoad(TransferJob job) override;
  void TakeFinished(std::vector<JobResult>& results) override;
  StoreInterest OnNewRequest(const Request& request) override;
  void OnRequestFinished(const Request& request) override;
  void OnScheduleEnd() override;
  bool HasPendingWork() const override;
  bool serves_external_requests() const override { return info_.serves_external_requests != 0; }
  void ServeExternalRequests(TierServer& server) override;
  int event_descriptor() const override { return info_.event_descriptor; }
  std::vector<CounterValue> Counters() const override;
  bool Drain(std::chrono::milliseconds timeout) override;
  // The plug-in's shutdown() runs on a thread of its own, so that one that hangs hangs nobody.
  // After false, a later call may say true.
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds timeout) override;

 private:
  using SubmitFunction = decltype(terrace_tier_plugin_v1::submit_store);
  struct EndCall;

  PluginTier(std::unique_ptr<PluginLibrary> library, TierHost& host);

  Result<void> Start(std::string_view options);
  // Ends a tier that did not start; what may not have ended is kept for ever.
  static void Abandon(std::unique_ptr<PluginTier> tier);
  void NotifyHost();
  Result<void> CheckInfo() const;
  Result<void> LearnCounters();
  Error StartError(ErrorCode code, const std::string& what) const;

  // Calls into the plug-in. No exception gets past here but as a fault.
  template <typename Question>
  static auto Ask(const char* function, const Question& question) {
    try {
      return question();
    } catch (const std::exception& e) {
      throw std::runtime_error(std::string(function) + "() let an exception out: " + e.what());
    } catch (...) {
      throw std::runtime_error(std::string(function) + "() let an exception out");
    }
  }
  const terrace_tier_plugin_v1& plugin() const { return library_->functions(); }

  void Submit(SubmitFunction function, const char* name, const TransferJob& job);
  const terrace_tier_job* AddJob(const TransferJob& job);
  void Report(JobResult result);
  // The result of a job that the plug-in reported; nullopt, and a fault, if it has none such.
  std::optional<JobResult> Conclude(const terrace_tier_result& said);
  void Collect(std::vector<JobResult>& results);
  void NoteFault(std::string what) const;
  void ThrowFault();
  void Log(std::int32_t level, terrace_tier_text line) const;

  std::shared_ptr<EndCall> BeginEnd(std::chrono::milliseconds timeout);
  bool FinishEnd(EndCall& call);
  void FailWhatIsLeft();

  // Constant after Create().
  TierHost& host_;
  const std::unique_ptr<PluginLibrary> library_;
  const terrace_tier_identity identity_;
  const terrace_tier_host seen_host_;
  terrace_tier* tier_ = nullptr;
  bool lost_ = false;  // create() left nobody knows what, and no tier to end it with.
  terrace_tier_info info_;
  std::vector<std::string_view> counter_names_;  // Live for ever.

  Mutex notify_mutex_;
  // Whom the plug-in's notices go to: nobody once the tier was abandoned, for the host is gone
  // then.
  TierHost* notified_ TERRACE_GUARDED_BY(notify_mutex_);

  mutable Mutex mutex_;
  // Under way: what the plug-in has and has not reported. By id.
  std::unordered_map<std::uint64_t, std::unique_ptr<PluginJob>> jobs_ TERRACE_GUARDED_BY(mutex_);
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<EndCall> end_call_ TERRACE_GUARDED_BY(mutex_);
  mutable std::string fault_ TERRACE_GUARDED_BY(mutex_);  // Not yet thrown; "" for none.

  ResultQueue finished_;  // Of jobs that the plug-in does not have.
  PluginServer server_;

  std::atomic<std::size_t> jobs_under_way_{
      0};  // jobs_.size(). Relaxed: who reads it is told later.
  // The plug-in's shutdown() said ok. Release and acquire: what it wrote before is seen.
  std::atomic<bool> ended_{false};
};

}  // namespace terrace
