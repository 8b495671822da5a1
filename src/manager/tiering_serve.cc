// Serving peers: through the tier that they came by, from host memory and all other tiers.
#include <algorithm>
#include <utility>

#include "manager/tiering_manager.h"

namespace terrace {

class TieringManager::Server final : public TierServer {
 public:
  Server(TieringManager& manager, std::size_t tier, Lane lane)
      : manager_(manager),
        tier_(tier),
        lane_(lane),
        keys_left_(manager.options_.serve_keys),
        job_keys_left_(manager.options_.serve_keys),
        bytes_left_(manager.options_.serve_bytes) {}

  Request BeginRequest() override {
    manager_.AssertHeld();
    const Request request{RequestId(manager_.next_external_++)};
    manager_.AddRequest(request, tier_);
    manager_.peer_deadlines_.emplace_back(
        manager_.options_.now() + manager_.options_.peer_request_timeout, request.id);
    if (keys_left_ > 0) --keys_left_;
    active_ = true;
    return request;
  }

  LookupResult Lookup(const ChunkKey& key, const Request& request) override {
    manager_.AssertHeld();
    RequestState* state = Find(request, "looked a chunk up");
    if (state == nullptr) return LookupResult::kMiss;
    if (keys_left_ == 0) return LookupResult::kRetry;
    --keys_left_;
    active_ = true;
    return manager_.LookUp(key, *state);
  }

  std::optional<TransferJob> CreateStoreJob(std::span<const ChunkKey> keys,
                                            const Request& request) override {
    manager_.AssertHeld();
    RequestState* state = Find(request, "made a job");
    if (state == nullptr || keys.empty()) return std::nullopt;
    // A job of more bytes than the whole budget is made as the first of its round.
    const std::uint64_t bytes = keys.size() * manager_.options_.chunk_bytes;
    if (keys.size() > job_keys_left_ || (bytes > bytes_left_ && bytes_made_ > 0)) {
      yielded_ = true;
      return std::nullopt;
    }
    if (manager_.slots_serving_ + keys.size() > SlotsForPeers()) {
      ++manager_.tiers_[tier_]->guard.stats().serve_refusals;
      return std::nullopt;
    }
    std::vector<SlotId> slots(keys.size());
    const JobId id(manager_.next_job_);
    if (!manager_.host_->Pin(keys, {PinHolder::Kind::kJob, id.value}, slots)) return std::nullopt;
    WentOn(*state);
    job_keys_left_ -= static_cast<std::uint32_t>(keys.size());
    bytes_left_ -= std::min(bytes, bytes_left_);
    bytes_made_ += bytes;
    active_ = true;
    return manager_.AddJob({JobKind::kServe,
                            tier_,
                            request.id,
                            {keys.begin(), keys.end()},
                            std::move(slots),
                            {},
                            std::nullopt});
  }

  void FinishRequest(const Request& request) override {
    manager_.AssertHeld();
    if (Find(request, "finished a request") == nullptr) return;
    active_ = true;
    manager_.FinishRequest(request.id);
  }

  std::size_t SlotsForPeers() const override {
    manager_.AssertHeld();
    return manager_.SlotsOf(manager_.options_.serving_slots_percent);
  }

  bool ShouldYield() const override {
    manager_.AssertHeld();
    const bool spent = keys_left_ == 0 || job_keys_left_ == 0 || bytes_left_ == 0;
    const bool yield = spent || (lane_ == Lane::kControl && manager_.EngineWaits());
    yielded_ = yielded_ || yield;
    return yield;
  }

  bool active() const { return active_; }
  bool yielded() const { return yielded_ || keys_left_ == 0; }

 private:
  // A tier's mistake is the tier's fault, not the node's end. One that was overdue and finished by
  // the manager is gone for the tier, too.
  RequestState* Find(const Request& request, const char* did) TERRACE_REQUIRES(manager_) {
    const auto found = manager_.requests_.find(request.id);
    const bool good = found != manager_.requests_.end() && found->second.served_by == tier_ &&
                      !found->second.finished;
    if (good) return &found->second;
    const bool was_there = request.id >= kExternalRequests &&
                           request.id.value < manager_.next_external_ &&
                           (found == manager_.requests_.end() || found->second.served_by == tier_);
    if (was_there) return nullptr;
    manager_.tiers_[tier_]->guard.OnContractFault(std::string("it ") + did +
                                                  " for a request that it did not begin");
    return nullptr;
  }

  TieringManager& manager_;
  const std::size_t tier_;
  const Lane lane_;
  std::uint32_t keys_left_;
  std::uint32_t job_keys_left_;
  std::uint64_t bytes_left_;
  std::uint64_t bytes_made_ = 0;
  bool active_ = false;
  mutable bool yielded_ = false;
};

TieringManager::RoundReport TieringManager::ServeTier(std::size_t index, Lane lane) {
  Tier& tier = *tiers_[index];
  const bool serves = lane == Lane::kControl ? tier.guard.serves_between_steps()
                                             : tier.guard.serves_external_requests();
  if (!serves) return {};
  Server server(*this, index, lane);
  tier.guard.Serve(server, options_.now());
  return {server.active(), server.yielded()};
}

std::uint64_t TieringManager::FaultsOfTiers() const {
  std::uint64_t faults = 0;
  for (const auto& tier : tiers_) faults += tier->guard.stats().faults;
  return faults;
}

TieringManager::RoundReport TieringManager::ServeRound() {
  RoundReport report;
  const std::uint64_t faults = FaultsOfTiers();
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    Tier& tier = *tiers_[i];
    if (!tier.guard.serves_between_steps() && tier.jobs_for_peers == 0) continue;
    report.active = CollectFinished(i) || report.active;
  }
  MarkOverdueJobs();
  FinishOverduePeerRequests();
  // Whoever was not reached before the engine came is the first next time.
  const std::size_t count = tiers_.size();
  const std::size_t first = serve_first_;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = (first + n) % count;
    const RoundReport one = ServeTier(i, Lane::kControl);
    report.active = report.active || one.active;
    report.yielded = report.yielded || one.yielded;
    serve_first_ = (i + 1) % count;
    if (n + 1 < count && EngineWaits()) {
      report.yielded = true;
      break;
    }
  }
  // What peers asked for goes on without the engine. Between its steps nothing else is unsent.
  SubmitPromotions();
  for (const auto& tier : tiers_) {
    if (std::exchange(tier->asked_by_peer, false)) tier->guard.OnScheduleEnd(options_.now());
    tier->guard.EndPoll(options_.now());
  }
  report.needs_timer =
      !peer_deadlines_.empty() || std::any_of(tiers_.begin(), tiers_.end(), [](const auto& tier) {
        return tier->guard.serves_between_steps() && tier->guard.event_descriptor() < 0;
      });
  report.failed = FaultsOfTiers() > faults;
  return report;
}

std::vector<int> TieringManager::ServingDescriptors() const {
  std::vector<int> descriptors;
  for (const auto& tier : tiers_) {
    if (tier->guard.serves_between_steps() && tier->guard.event_descriptor() >= 0) {
      descriptors.push_back(tier->guard.event_descriptor());
    }
  }
  return descriptors;
}

bool TieringManager::AnyTierServes() const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [](const auto& tier) { return tier->guard.serves_between_steps(); });
}

}  // namespace terrace
