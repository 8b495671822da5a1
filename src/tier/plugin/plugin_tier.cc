#include "tier/plugin/plugin_tier.h"

#include <array>
#include <exception>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"

namespace terrace {
namespace {

constexpr std::size_t kLogLineSizeMax = 2048;

}  // namespace

PluginTier::PluginTier(std::unique_ptr<PluginLibrary> library, TierHost& host)
    : host_(host),
      library_(std::move(library)),
      identity_(ToPlugin(host.identity())),
      seen_host_{
          .struct_size = sizeof(terrace_tier_host),
          .abi_major = TERRACE_TIER_ABI_MAJOR,
          .abi_minor = TERRACE_TIER_ABI_MINOR,
          .context = this,
          .chunk_bytes = host.identity().fields().chunk_bytes,
          .slot_stride_bytes = host.slot_stride_bytes(),
          .identity = &identity_,
          .notify_progress = [](void* self) { static_cast<PluginTier*>(self)->NotifyHost(); },
          .log = [](void* self, std::int32_t level,
                    terrace_tier_text line) { static_cast<PluginTier*>(self)->Log(level, line); }},
      info_{.struct_size = sizeof(terrace_tier_info),
            .source = TERRACE_TIER_SOURCE_OTHER,
            .serves_external_requests = 0,
            .event_descriptor = -1},
      notified_(&host),
      server_({.add_job = [this](TransferJob job) { return AddJob(job); },
               .fault = [this](std::string what) { NoteFault(std::move(what)); }}) {}

PluginTier::~PluginTier() {
  if (tier_ == nullptr) return;
  TERRACE_CHECK(Shutdown(kDestructorPatience), "a tier plug-in does not end");
  try {
    Ask("destroy", [&] { plugin().destroy(tier_); });
  } catch (const std::exception& e) {
    library_->KeepLoaded();
    TERRACE_LOG_ERROR("tier plug-in {}: {}", library_->path(), e.what());
  }
}

TierLookup PluginTier::Lookup(const ChunkKey& key, const Request& request) {
  if (ended_.load(std::memory_order_acquire)) return TierLookup::kMiss;
  const terrace_tier_key asked = ToPlugin(key);
  const terrace_tier_request by = ToPlugin(request);
  const std::int32_t answer = Ask("lookup", [&] { return plugin().lookup(tier_, &asked, &by); });
  switch (answer) {
    case TERRACE_TIER_MISS:
      return TierLookup::kMiss;
    case TERRACE_TIER_HIT:
      return TierLookup::kHit;
    case TERRACE_TIER_RETRY:
      return TierLookup::kRetry;
    default:
      throw std::runtime_error("lookup() answered " + std::to_string(answer));
  }
}

void PluginTier::SubmitStore(TransferJob job) {
  Submit(plugin().submit_store, "submit_store", job);
}
void PluginTier::SubmitLoad(TransferJob job) { Submit(plugin().submit_load, "submit_load", job); }

// Throws nothing: the manager would take an exception for a job that was not taken, and use its
// slots again. After an exception of the plug-in's nobody knows that: the job stays under way.
void PluginTier::Submit(SubmitFunction function, const char* name, const TransferJob& job) {
  if (job.keys.empty()) return Report(JobResult{.id = job.id, .outcomes = {}});
  const terrace_tier_job* const seen = AddJob(job);
  if (seen == nullptr) return Report(PluginJob(job, host_).Failed());
  try {
    const terrace_tier_status status = Ask(name, [&] { return function(tier_, seen); });
    if (status == TERRACE_TIER_OK) return;
    NoteFault(std::string(name) + "() answered " + StatusText(status));
  } catch (const std::exception& e) {
    return NoteFault(e.what());
  }
  // It may have reported the job all the same.
  std::unique_ptr<PluginJob> refused;
  {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(job.id.value);
    if (found == jobs_.end()) return;
    refused = std::move(found->second);
    jobs_.erase(found);
    jobs_under_way_.store(jobs_.size(), std::memory_order_relaxed);
  }
  Report(refused->Failed());
}

// nullptr if no more are taken.
const terrace_tier_job* PluginTier::AddJob(const TransferJob& job) {
  auto added = std::make_unique<PluginJob>(job, host_);
  const terrace_tier_job* const seen = &added->seen_by_plugin();
  MutexLock lock(mutex_);
  if (stopping_) return nullptr;
  jobs_.emplace(job.id.value, std::move(added));
  jobs_under_way_.store(jobs_.size(), std::memory_order_relaxed);
  return seen;
}

// The result first, then the notice: who wakes must find it.
void PluginTier::Report(JobResult result) {
  finished_.Push(std::move(result));
  host_.NotifyProgress();
}

void PluginTier::TakeFinished(std::vector<JobResult>& results) {
  finished_.Take(results);
  if (!ended_.load(std::memory_order_acquire)) Collect(results);
  ThrowFault();
}

// Until the plug-in has no more, or tells tales.
void PluginTier::Collect(std::vector<JobResult>& results) {
  while (jobs_under_way_.load(std::memory_order_relaxed) > 0) {
    std::array<terrace_tier_result, 64> said{};
    std::size_t count = 0;
    try {
      count = Ask("take_finished",
                  [&] { return plugin().take_finished(tier_, said.data(), said.size()); });
    } catch (const std::exception& e) {
      return NoteFault(e.what());
    }
    const bool too_many = count > said.size();
    if (too_many) {
      NoteFault("take_finished() said that it wrote " + std::to_string(count) +
                " results where there is room for " + std::to_string(said.size()));
    }
    bool right = !too_many;
    for (std::size_t i = 0; i < std::min(count, said.size()); ++i) {
      auto result = Conclude(said[i]);
      right = right && result.has_value();
      if (result) results.push_back(std::move(*result));
    }
    if (!right || count < said.size()) return;
  }
}

std::optional<JobResult> PluginTier::Conclude(const terrace_tier_result& said) {
  std::unique_ptr<PluginJob> job;
  {
    MutexLock lock(mutex_);
    if (const auto found = jobs_.find(said.job); found != jobs_.end()) {
      job = std::move(found->second);
      jobs_.erase(found);
      jobs_under_way_.store(jobs_.size(), std::memory_order_relaxed);
    }
  }
  if (job == nullptr) {
    NoteFault("it reported job " + std::to_string(said.job) +
              ", which it was not given or has reported before");
    return std::nullopt;
  }
  std::string fault;
  JobResult result = job->ResultOf(said, fault);
  if (!fault.empty()) NoteFault(std::move(fault));
  return result;
}

// The first of several is told.
void PluginTier::NoteFault(std::string what) const {
  MutexLock lock(mutex_);
  if (fault_.empty()) fault_ = std::move(what);
}

void PluginTier::ThrowFault() {
  std::string fault;
  {
    MutexLock lock(mutex_);
    fault.swap(fault_);
  }
  if (!fault.empty()) throw std::runtime_error(fault);
}

StoreInterest PluginTier::OnNewRequest(const Request& request) {
  if (plugin().on_new_request == nullptr || ended_) return StoreInterest::kNewChunks;
  const terrace_tier_request seen = ToPlugin(request);
  const std::int32_t answer =
      Ask("on_new_request", [&] { return plugin().on_new_request(tier_, &seen); });
  if (answer == TERRACE_TIER_WHOLE_REQUEST) return StoreInterest::kWholeRequest;
  if (answer == TERRACE_TIER_NEW_CHUNKS) return StoreInterest::kNewChunks;
  throw std::runtime_error("on_new_request() answered " + std::to_string(answer));
}

void PluginTier::OnRequestFinished(const Request& request) {
  if (plugin().on_request_finished == nullptr || ended_) return;
  const terrace_tier_request seen = ToPlugin(request);
  Ask("on_request_finished", [&] { plugin().on_request_finished(tier_, &seen); });
}

void PluginTier::OnScheduleEnd() {
  if (plugin().on_schedule_end == nullptr || ended_) return;
  Ask("on_schedule_end", [&] { plugin().on_schedule_end(tier_); });
}

bool PluginTier::HasPendingWork() const {
  if (plugin().has_pending_work == nullptr || ended_) return false;
  return Ask("has_pending_work", [&] { return plugin().has_pending_work(tier_); }) != 0;
}

void PluginTier::ServeExternalRequests(TierServer& server) {
  if (!serves_external_requests() || ended_) return;
  server_.Lend(server, [&](const terrace_tier_server& seen) {
    Ask("serve_external_requests", [&] { plugin().serve_external_requests(tier_, &seen); });
  });
}

std::vector<CounterValue> PluginTier::Counters() const {
  if (counter_names_.empty()) return {};
  std::array<terrace_tier_counter, kCountersMax> said{};
  const std::size_t count =
      Ask("read_counters", [&] { return plugin().read_counters(tier_, said.data(), said.size()); });
  if (count != counter_names_.size()) {
    throw std::runtime_error("read_counters() had " + std::to_string(counter_names_.size()) +
                             " counters and now has " + std::to_string(count));
  }
  std::vector<CounterValue> counters;
  for (std::size_t i = 0; i < count; ++i) counters.push_back({counter_names_[i], said[i].value});
  return counters;
}

void PluginTier::NotifyHost() {
  MutexLock lock(notify_mutex_);
  if (notified_ != nullptr) notified_->NotifyProgress();
}

void PluginTier::Log(std::int32_t level, terrace_tier_text line) const {
  const std::string text = TextOf(line, kLogLineSizeMax);
  if (level == TERRACE_TIER_LOG_INFO) {
    TERRACE_LOG_INFO("tier plug-in {}: {}", library_->name(), text);
  } else if (level == TERRACE_TIER_LOG_WARNING) {
    TERRACE_LOG_WARN("tier plug-in {}: {}", library_->name(), text);
  } else {
    TERRACE_LOG_ERROR("tier plug-in {}: {}", library_->name(), text);
  }
}

}  // namespace terrace
