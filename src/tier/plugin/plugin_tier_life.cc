// How a plug-in's tier begins and ends.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"
#include "tier/plugin/plugin_tier.h"

namespace terrace {
namespace {

constexpr std::size_t kErrorCapacity = 1024;
constexpr std::size_t kCounterNameSizeMax = 64;

// A counter's name outlives its tier: statistics that somebody keeps point to it. There are few.
std::string_view ForEver(const std::string& name) {
  static Mutex mutex;
  static auto* const names = new std::set<std::string>;
  MutexLock lock(mutex);
  return *names->insert(name).first;
}

}  // namespace

// One call of shutdown(), on a thread of its own that may never come back.
struct PluginTier::EndCall {
  Mutex mutex;
  CondVar done_changed;
  bool done TERRACE_GUARDED_BY(mutex) = false;
  terrace_tier_status status TERRACE_GUARDED_BY(mutex) = TERRACE_TIER_TIMED_OUT;
  std::string exception TERRACE_GUARDED_BY(mutex);

  void Run(const terrace_tier_plugin_v1& plugin, terrace_tier* tier, std::uint64_t timeout_ms) {
    terrace_tier_status answer = TERRACE_TIER_TIMED_OUT;
    std::string out;
    try {
      answer = plugin.shutdown(tier, timeout_ms);
    } catch (const std::exception& e) {
      out = e.what();
      if (out.empty()) out = "an exception";
    } catch (...) {
      out = "something that is no std::exception";
    }
    MutexLock lock(mutex);
    done = true;
    status = answer;
    exception = std::move(out);
    done_changed.NotifyAll();
  }
  bool AwaitDone(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex);
    while (!done) {
      if (!done_changed.WaitUntil(mutex, deadline)) return done;
    }
    return true;
  }
  // "" if it ended the tier.
  std::string WhyNot() {
    MutexLock lock(mutex);
    if (!exception.empty()) return "shutdown() let an exception out: " + exception;
    return status == TERRACE_TIER_OK ? "" : "shutdown() answered " + StatusText(status);
  }
};

Result<std::unique_ptr<PluginTier>> PluginTier::Create(const PluginTierConfig& config,
                                                       TierHost& host) {
  auto library = PluginLibrary::Load(config.library);
  if (!library) return std::move(library).error();
  return Create(std::move(library).value(), config.options.text, host);
}

Result<std::unique_ptr<PluginTier>> PluginTier::Create(std::unique_ptr<PluginLibrary> library,
                                                       std::string_view options, TierHost& host) {
  std::unique_ptr<PluginTier> tier(new PluginTier(std::move(library), host));
  auto started = tier->Start(options);
  if (started) return tier;
  Abandon(std::move(tier));
  return std::move(started).error();
}

void PluginTier::Abandon(std::unique_ptr<PluginTier> tier) {
  const bool ended = tier->tier_ == nullptr || tier->Shutdown(kDestructorPatience);
  if (ended && !tier->lost_) return;
  TERRACE_LOG_ERROR("tier plug-in {}: it may still run, and is kept until the process ends",
                    tier->library_->path());
  {
    MutexLock lock(tier->notify_mutex_);
    tier->notified_ = nullptr;
  }
  static Mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<PluginTier>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(tier));
}

Error PluginTier::StartError(ErrorCode code, const std::string& what) const {
  return {code, "start tier plug-in " + library_->path() + ": " + what};
}

Result<void> PluginTier::Start(std::string_view options) {
  std::array<char, kErrorCapacity> said{};
  terrace_tier_error error{.data = said.data(), .capacity = said.size()};
  terrace_tier* made = nullptr;
  terrace_tier_status status = TERRACE_TIER_UNAVAILABLE;
  try {
    status = Ask("create", [&] {
      return plugin().create(&seen_host_, ToPlugin(options), &made, &info_, &error);
    });
  } catch (const std::exception& e) {
    lost_ = true;
    return StartError(ErrorCode::kUnavailable, e.what());
  }
  if (status != TERRACE_TIER_OK) {
    said.back() = '\0';
    const std::string why = TextOf(std::string_view(said.data()));
    return StartError(CodeOf(status), "create() answered " + StatusText(status) +
                                          (why.empty() ? ", and no reason" : ": " + why));
  }
  if (made == nullptr) {
    lost_ = true;
    return StartError(ErrorCode::kInvalidArgument, "create() answered ok and made no tier");
  }
  tier_ = made;
  if (auto right = CheckInfo(); !right) return right;
  return LearnCounters();
}

Result<void> PluginTier::CheckInfo() const {
  auto wrong = [this](const std::string& what) {
    return StartError(ErrorCode::kInvalidArgument, "create() said " + what);
  };
  if (info_.source < TERRACE_TIER_SOURCE_MEMORY || info_.source > TERRACE_TIER_SOURCE_OTHER) {
    return wrong("that chunks come from source " + std::to_string(info_.source));
  }
  if (info_.serves_external_requests < 0 || info_.serves_external_requests > 1) {
    return wrong("serves_external_requests " + std::to_string(info_.serves_external_requests));
  }
  if (serves_external_requests() && plugin().serve_external_requests == nullptr) {
    return wrong("that it serves external requests, and it lacks serve_external_requests()");
  }
  const int fd = info_.event_descriptor;
  if (fd < -1 || (fd >= 0 && ::fcntl(fd, F_GETFD) < 0)) {
    return wrong("event_descriptor " + std::to_string(fd) + ", which is not open");
  }
  return {};
}

// Their names are constant: asked for once.
Result<void> PluginTier::LearnCounters() {
  if (plugin().read_counters == nullptr) return {};
  std::array<terrace_tier_counter, kCountersMax> said{};
  std::size_t count = 0;
  try {
    count = Ask("read_counters",
                [&] { return plugin().read_counters(tier_, said.data(), said.size()); });
  } catch (const std::exception& e) {
    return StartError(ErrorCode::kInvalidArgument, e.what());
  }
  if (count > said.size()) {
    return StartError(ErrorCode::kInvalidArgument,
                      "read_counters() said that it wrote " + std::to_string(count) +
                          " counters where there is room for " + std::to_string(said.size()));
  }
  std::set<std::string> names;
  std::vector<std::string_view> kept;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = TextOf(said[i].name, kCounterNameSizeMax + 1);
    if (!IsPlainName(name, kCounterNameSizeMax) || !names.insert(name).second) {
      return StartError(ErrorCode::kInvalidArgument,
                        "counter " + std::to_string(i) + " must have a name of its own, at most " +
                            std::to_string(kCounterNameSizeMax) +
                            " lower-case letters, digits and '_', is '" + name + "'");
    }
    kept.push_back(ForEver(name));
  }
  counter_names_ = std::move(kept);
  return {};
}

bool PluginTier::Drain(std::chrono::milliseconds timeout) {
  if (ended_.load(std::memory_order_acquire)) return true;
  const auto timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count(), 0));
  const terrace_tier_status status =
      Ask("drain", [&] { return plugin().drain(tier_, timeout_ms); });
  if (status == TERRACE_TIER_OK) return true;
  if (status != TERRACE_TIER_TIMED_OUT) NoteFault("drain() answered " + StatusText(status));
  return false;
}

bool PluginTier::Shutdown(std::chrono::milliseconds timeout) {
  if (ended_.load(std::memory_order_acquire)) return true;
  timeout = std::max(timeout, std::chrono::milliseconds(0));
  const auto deadline = DeadlineIn(timeout + std::min(kGrace, kGrace.max() - timeout));
  const auto call = BeginEnd(timeout);
  if (!call->AwaitDone(deadline)) {
    TERRACE_LOG_ERROR("tier plug-in {}: shutdown() has not returned in time", library_->path());
    return false;
  }
  return FinishEnd(*call);
}

// A call that is still under way is waited for, not made again.
std::shared_ptr<PluginTier::EndCall> PluginTier::BeginEnd(std::chrono::milliseconds timeout) {
  const auto timeout_ms = static_cast<std::uint64_t>(timeout.count());
  auto call = std::make_shared<EndCall>();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (end_call_ != nullptr) return end_call_;
    end_call_ = call;
  }
  auto run = [call, tier = tier_, functions = plugin(), timeout_ms] {
    call->Run(functions, tier, timeout_ms);
  };
  auto thread = StartThread("terrace-plugin", "-end", run);
  if (thread) {
    std::move(thread).value().detach();
  } else {
    run();  // No thread to be had: it is waited for here.
  }
  return call;
}

bool PluginTier::FinishEnd(EndCall& call) {
  {
    MutexLock lock(mutex_);
    end_call_.reset();
  }
  if (const std::string why = call.WhyNot(); !why.empty()) {
    TERRACE_LOG_ERROR("tier plug-in {}: {}", library_->path(), why);
    return false;
  }
  std::vector<JobResult> results;
  Collect(results);
  for (JobResult& result : results) Report(std::move(result));
  FailWhatIsLeft();
  ended_.store(true, std::memory_order_release);
  return true;
}

// Nothing of the plug-in runs any more, so nobody touches the slots of what it never reported.
void PluginTier::FailWhatIsLeft() {
  std::unordered_map<std::uint64_t, std::unique_ptr<PluginJob>> left;
  {
    MutexLock lock(mutex_);
    left.swap(jobs_);
    jobs_under_way_.store(0, std::memory_order_relaxed);
  }
  if (left.empty()) return;
  NoteFault("shutdown() left " + std::to_string(left.size()) + " jobs that were never reported");
  for (const auto& [id, job] : left) Report(job->Failed());
}

}  // namespace terrace
