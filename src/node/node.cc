#include "terrace/node.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "host/host_region.h"
#include "host/slot_checksums.h"
#include "manager/tiering_manager.h"
#include "node/node_config_keys.h"
#include "node/node_metrics.h"
#include "terrace/eviction_policy.h"
#include "terrace/tier_host.h"
#include "tier/file/file_tier.h"
#include "tier/memory/memory_tier.h"
#include "tier/peer/peer_tier.h"
#include "tier/plugin/plugin_tier.h"

namespace terrace {
namespace {

// What tiers see of the node.
class NodeTierHost final : public TierHost {
 public:
  // `wake` is an eventfd; `checksums` may be null.
  NodeTierHost(HostRegion& region, SlotChecksums* checksums, const CacheIdentity& identity,
               UniqueFd wake)
      : region_(region), checksums_(checksums), identity_(identity), wake_(std::move(wake)) {}

  std::span<std::byte> Slot(SlotId slot) override {
    return {region_.base() + std::size_t{slot.value} * region_.slot_stride_bytes(),
            region_.chunk_bytes()};
  }
  TierMemory Memory() override {
    return {{region_.base(), std::size_t{region_.slot_count()} * region_.slot_stride_bytes()},
            region_.descriptor()};
  }
  std::size_t slot_stride_bytes() const override { return region_.slot_stride_bytes(); }
  const CacheIdentity& identity() const override { return identity_; }
  std::optional<std::uint64_t> KnownChecksum(SlotId slot) const override {
    return checksums_ == nullptr ? std::nullopt : checksums_->Known(slot);
  }
  void NoteChecksum(SlotId slot, std::uint64_t checksum) override {
    if (checksums_ != nullptr) checksums_->Note(slot, checksum);
  }

  void NotifyProgress() override {
    // Acquire and release: who sees it set also sees what was done before, and one writing is
    // enough.
    if (!progress_.exchange(true, std::memory_order_acq_rel)) {
      const std::uint64_t one = 1;
      static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));  // A full one is readable, too.
    }
    if (TieringManager* manager = manager_.load(std::memory_order_acquire)) {
      manager->WakeControlThread();
    }
  }

  // From then on progress wakes its control thread, too. It outlives every tier.
  void SetManager(TieringManager& manager) {
    descriptors_ = manager.ServingDescriptors();
    manager_.store(&manager, std::memory_order_release);
  }

  // What arrives for a tier that serves others wakes the engine as well as the control thread: what
  // it waits for may be among it, and a wake-up saved is a good part of a look-up.
  bool WaitForProgress(std::chrono::milliseconds timeout) {
    const auto deadline = DeadlineIn(timeout);
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const int descriptor : descriptors_) polled.push_back({descriptor, POLLIN, 0});
    // A descriptor that nobody has read since it woke us last must not keep the engine from
    // sleeping.
    if (arrived_ && ::poll(polled.data() + 1, polled.size() - 1, 0) > 0) polled.resize(1);
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      const int count =
          ::poll(polled.data(), polled.size(),
                 static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000)));
      if (count < 0 && errno == EINTR) continue;
      break;
    }
    std::uint64_t taken;
    static_cast<void>(!::read(wake_.get(), &taken, sizeof(taken)));
    const bool progress = progress_.exchange(false, std::memory_order_acq_rel);
    arrived_ = !progress && std::any_of(polled.begin() + 1, polled.end(),
                                        [](const pollfd& one) { return one.revents != 0; });
    return progress || arrived_;
  }

 private:
  HostRegion& region_;
  SlotChecksums* const checksums_;
  const CacheIdentity identity_;
  const UniqueFd wake_;  // The engine sleeps on it.
  std::atomic<TieringManager*> manager_{
      nullptr};  // Release and acquire: whoever sees it may use it.
  std::atomic<bool> progress_{false};
  // Whoever waits for progress.
  std::vector<int> descriptors_;
  bool arrived_ = false;  // The last wait ended by one of them.
};

// A tier of a kind, as a tier.
template <typename Kind>
Result<std::unique_ptr<SecondaryTier>> AsTier(Result<std::unique_ptr<Kind>> tier) {
  if (!tier.ok()) return std::move(tier).error();
  return std::unique_ptr<SecondaryTier>(std::move(tier).value());
}

Result<std::unique_ptr<SecondaryTier>> MakeTier(const TierConfig& config, TierHost& host) {
  switch (config.type) {
    case TierConfig::Type::kMemory:
      return AsTier(MemoryTier::Create(config.memory, host));
    case TierConfig::Type::kFile:
      return AsTier(FileTier::Create(config.file, host));
    case TierConfig::Type::kPeer:
      return AsTier(PeerTier::Create(config.peer, host));
    case TierConfig::Type::kPlugin:
      return AsTier(PluginTier::Create(config.plugin, host));
    case TierConfig::Type::kCustom:
      return config.custom.make(host);
  }
  return Error{ErrorCode::kInvalidArgument, "make a tier: unknown type"};
}

// They ask for the same chunks again and again, and somebody waits each time.
bool HasPeers(const NodeConfig& config) {
  return std::any_of(config.secondary_tiers.begin(), config.secondary_tiers.end(),
                     [](const TierConfig& tier) { return tier.type == TierConfig::Type::kPeer; });
}

ThreadPriority PriorityOf(const ControlThreadConfig& control) {
  if (control.priority == "realtime") return ThreadPriority::kRealtime;
  return control.priority == "high" ? ThreadPriority::kHigh : ThreadPriority::kNormal;
}

BackpressureOptions BackpressureOf(const TierConfig& config) {
  if (config.backpressure == "off") return BackpressureOptions::Off();
  // The low water mark as far below as the reference's presets have it.
  BackpressureOptions options = BackpressureOptions::LocalDisk();
  options.policy = config.backpressure;
  options.high_water_s_per_mib = config.backpressure_ms_per_mib / 1e3;
  options.low_water_s_per_mib = options.high_water_s_per_mib / 5;
  return options;
}

TieringOptions ManagerOptionsOf(const NodeConfig& config, std::uint64_t chunk_bytes) {
  TieringOptions options;
  options.promotion_timeout = std::chrono::milliseconds(config.promotion_timeout_ms);
  options.lookup_timeout = std::chrono::milliseconds(config.lookup_timeout_ms);
  options.promoting_slots_percent = config.promoting_slots_percent;
  options.cascading_slots_percent = config.cascading_slots_percent;
  if (config.tier_poll_interval_s > 0) {
    // Not a busy loop, whatever is asked for.
    const std::chrono::duration<double> interval(config.tier_poll_interval_s);
    options.poll_interval = std::max<std::chrono::nanoseconds>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(interval),
        std::chrono::microseconds(50));
  }
  options.control_priority = PriorityOf(config.control_thread);
  options.chunk_bytes = chunk_bytes;
  for (const TierConfig& tier : config.secondary_tiers) {
    options.tiers.push_back({.breaker = {}, .backpressure = BackpressureOf(tier)});
    // Each peer has a health of its own: one that fails must not cost the others.
    if (tier.type == TierConfig::Type::kPeer) {
      options.tiers.back().breaker.failure_threshold = std::numeric_limits<std::uint32_t>::max();
    }
  }
  return options;
}

}  // namespace

struct Node::Impl {
  ~Impl() {
    metrics.reset();
    if (manager == nullptr) return;
    manager->Shutdown();
    if (!manager->tiers_still_run()) return;
    // A tier that did not end may still copy from and to host memory, and report.
    (void)connector.release();
    (void)manager.release();
    (void)tier_host.release();
    (void)checksums.release();
    (void)new std::shared_ptr<HostMemory>(std::move(memory));
  }

  // In order of construction: each is used by those below it.
  std::shared_ptr<HostMemory> memory;
  std::unique_ptr<SlotChecksums> checksums;  // Null where no tier asks for them.
  std::unique_ptr<NodeTierHost> tier_host;
  std::unique_ptr<TieringManager> manager;
  std::unique_ptr<Connector> connector;
  std::unique_ptr<NodeMetrics> metrics;
  std::string metrics_address;
};

Result<std::unique_ptr<Node>> Node::Create(const NodeConfig& config,
                                           const CacheIdentity& identity) {
  auto memory = HostMemory::Create(config, identity);
  if (!memory.ok()) return std::move(memory).error();
  return Create(config, identity, std::move(memory).value());
}

Result<std::unique_ptr<Node>> Node::Create(const NodeConfig& config, const CacheIdentity& identity,
                                           std::shared_ptr<HostMemory> memory) {
  if (auto checked = CheckNodeConfig(config); !checked) return std::move(checked).error();
  auto impl = std::make_unique<Impl>();
  impl->memory = std::move(memory);
  HostRegion& region = *impl->memory->region_;
  if (region.chunk_bytes() != identity.fields().chunk_bytes) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("make a node: a chunk of its host memory has {} bytes, one of its "
                             "identity {}; make both from one identity",
                             region.chunk_bytes(), identity.fields().chunk_bytes)};
  }
  auto policy = MakeEvictionPolicy(config.eviction_policy, region.slot_count());
  if (!policy.ok()) return std::move(policy).error();
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoError("make a node: an eventfd", errno);
  if (HasPeers(config)) impl->checksums = std::make_unique<SlotChecksums>(region.slot_count());
  impl->tier_host =
      std::make_unique<NodeTierHost>(region, impl->checksums.get(), identity, std::move(wake));

  std::vector<std::unique_ptr<SecondaryTier>> tiers;
  for (std::size_t i = 0; i < config.secondary_tiers.size(); ++i) {
    auto tier = MakeTier(config.secondary_tiers[i], *impl->tier_host);
    if (!tier.ok()) {
      while (!tiers.empty()) tiers.pop_back();  // Last started, first stopped.
      Error error = std::move(tier).error();
      error.message = "start secondary_tiers[" + std::to_string(i) + "]: " + error.message;
      return error;
    }
    tiers.push_back(std::move(tier).value());
  }
  impl->manager = std::make_unique<TieringManager>(
      std::make_unique<HostTier>(
          region.slot_count(), std::move(policy).value(),
          config.enable_kv_events ? EventRecording::kOn : EventRecording::kOff,
          HostTierOptions{.store_threshold = config.store_threshold,
                          .max_tracker_size = config.max_tracker_size,
                          .checksums = impl->checksums.get()}),
      std::move(tiers), ManagerOptionsOf(config, identity.fields().chunk_bytes));
  auto started = impl->manager->StartControlThread();
  if (!started) return std::move(started).error();
  // Not before: a tier's thread may report progress since it was made.
  impl->tier_host->SetManager(*impl->manager);
  auto connector =
      Connector::Create(*impl->manager, {.tokens_per_chunk = identity.fields().tokens_per_chunk,
                                         .blocks_per_chunk = 1,
                                         .offload_prompt_only = config.offload_prompt_only});
  if (!connector.ok()) return std::move(connector).error();
  impl->connector = std::move(connector).value();
  if (!config.metrics_listen.empty()) {
    auto metrics = NodeMetrics::Start(config, identity, *impl->manager, *impl->connector);
    if (!metrics.ok()) return std::move(metrics).error();
    impl->metrics = std::move(metrics).value();
    impl->metrics_address = impl->metrics->address();
  }
  return std::unique_ptr<Node>(new Node(std::move(impl)));
}

Node::Node(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Node::~Node() { Shutdown(); }

OffloadingManager& Node::manager() { return *impl_->manager; }
Connector& Node::connector() { return *impl_->connector; }

HostSlots Node::host_slots() const {
  HostSlots slots = impl_->memory->slots();
  if (impl_->checksums != nullptr) slots.checksums = impl_->checksums->values();
  return slots;
}

const std::string& Node::metrics_address() const { return impl_->metrics_address; }

bool Node::WaitForProgress(std::chrono::milliseconds timeout) {
  return impl_->tier_host->WaitForProgress(timeout);
}

bool Node::Drain(std::chrono::milliseconds timeout) { return impl_->manager->Drain(timeout); }

void Node::Shutdown() {
  impl_->connector->AbandonStep();
  impl_->metrics.reset();
  impl_->manager->Shutdown();
}

}  // namespace terrace
