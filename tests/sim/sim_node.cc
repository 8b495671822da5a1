#include "tests/sim/sim_node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "host/host_tier.h"
#include "terrace/eviction_policy.h"
#include "tests/support/keys.h"

namespace terrace::sim {
namespace {

constexpr std::uint32_t kSlots = 96;

PeerTierConfig ConfigOf(const std::vector<std::string>& peers) {
  PeerTierConfig config;
  for (const std::string& peer : peers) config.peers.push_back(peer + ":1");
  config.lookup_timeout_ms = 400;
  config.connect_timeout_ms = 300;
  config.fetch_timeout_ms = 800;
  config.lease_ms = 500;
  config.park_timeout_ms = 2'000;
  return config;
}

CacheIdentityFields IdentityOf(const std::string& dtype) {
  CacheIdentityFields fields = testing::TestIdentityFields(kChunkBytes);
  fields.dtype = dtype;
  return fields;
}

// What a chunk's bytes are, wherever they are.
void FillChunk(const ChunkKey& key, std::span<std::byte> bytes) {
  std::uint64_t state = 0;
  std::memcpy(&state, key.hash().data(), sizeof state);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

}  // namespace

SimNode::SimNode(Internet& internet, std::string host, std::vector<std::string> peers,
                 std::string dtype, const std::function<void(PeerTierConfig&)>& change)
    : world_(internet.hub.world()), host_(std::move(host)), memory_(kSlots, IdentityOf(dtype)) {
  PeerTierConfig config = ConfigOf(peers);
  if (change) change(config);
  PeerTierParts parts;
  parts.leases = std::make_unique<LeaseTable>(
      LeaseTable::Options{.lease_time = std::chrono::milliseconds(500)});
  parts.network = std::make_unique<SimNetwork>(internet.hub, host_);
  parts.planes.push_back(
      std::make_unique<SimPlane>(internet.hub, internet.planes, host_, memory_, *parts.leases));
  parts.now = [this] { return world_.now(); };
  parts.random = [this] { return world_.RandomWord(); };
  std::vector<std::unique_ptr<SecondaryTier>> tiers;
  tiers.push_back(PeerTier::Make(config, memory_, std::move(parts)));
  TieringOptions options;
  options.promotion_timeout = std::chrono::seconds(2);
  options.lookup_timeout = std::chrono::seconds(3);
  options.chunk_bytes = kChunkBytes;
  options.now = [this] { return world_.now(); };
  options.tiers.push_back(
      {.breaker = {.failure_threshold = ~0u}, .backpressure = BackpressureOptions::Off()});
  manager_ = std::make_unique<TieringManager>(
      std::make_unique<HostTier>(kSlots, MakeEvictionPolicy("lru", kSlots).value(),
                                 EventRecording::kOff,
                                 HostTierOptions{.checksums = &memory_.RememberChecksums()}),
      std::move(tiers), options);
}

SimNode::~SimNode() { manager_->Shutdown(); }

void SimNode::Submit(std::uint32_t prompt, std::shared_ptr<const PeerRoute> route) {
  Work work{{RequestId(next_request_++), LoadSourceSet::All(), std::move(route)},
            testing_support::Keys(std::uint64_t{prompt} * 1000 + 1, kChunksPerPrompt),
            world_.now()};
  ManagerRegion region(*manager_);
  manager_->OnNewRequest(work.request);
  requests_.push_back(std::move(work));
}

void SimNode::Abort() {
  ManagerRegion region(*manager_);
  manager_->OnRequestFinished(requests_.back().request);
  requests_.pop_back();
}

void SimNode::Step() {
  ManagerRegion region(*manager_);
  std::erase_if(requests_, [&](Work& work) {
    manager_->AssertHeld();
    if (!GoOn(work)) return false;
    manager_->OnRequestFinished(work.request);
    return true;
  });
  manager_->OnScheduleEnd();
}

// Loads what is a hit from the front, computes the rest, a piece a step. True when it is done.
bool SimNode::GoOn(Work& work) {
  manager_->AssertHeld();
  if (!work.started && !TryStart(work)) return false;
  const auto rest = std::span<const ChunkKey>(work.keys).subspan(work.computed);
  const auto piece = rest.first(std::min(rest.size(), chunks_per_step_));
  StorePlan plan;
  if (!piece.empty() &&
      manager_->PrepareStore(piece, work.request, plan) == StoreOutcome::kPlanned) {
    for (std::size_t i = 0; i < plan.keys.size(); ++i)
      FillChunk(plan.keys[i], memory_.Slot(plan.slots[i]));
    manager_->CompleteStore(plan.slots, work.request, CopyOutcome::kOk);
  }
  work.computed += piece.size();
  return work.computed == work.keys.size();
}

bool SimNode::TryStart(Work& work) {
  manager_->AssertHeld();
  // As the connector does: behind what is not known yet it asks on, behind a miss it does not.
  std::size_t hits = 0;
  bool waits = false;
  for (const ChunkKey& key : work.keys) {
    const LookupResult result = manager_->Lookup(key, work.request);
    if (result == LookupResult::kMiss) break;
    waits = waits || result != LookupResult::kHit;
    ++hits;
  }
  if (waits) return false;
  work.started = true;
  work.computed = hits;
  if (hits == 0) return true;
  const auto keys = std::span<const ChunkKey>(work.keys).first(hits);
  std::vector<SlotId> slots(hits);
  TERRACE_CHECK(manager_->PrepareLoad(keys, work.request, slots), "a hit is no hit");
  CheckLoaded(keys, slots);
  manager_->CompleteLoad(slots, work.request);
  chunks_loaded_ += hits;
  return true;
}

void SimNode::CheckLoaded(std::span<const ChunkKey> keys, std::span<const SlotId> slots) {
  std::vector<std::byte> right(kChunkBytes);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    FillChunk(keys[i], right);
    const auto slot = memory_.Slot(slots[i]);
    TERRACE_CHECK(std::equal(right.begin(), right.end(), slot.begin()),
                  "the bytes of a loaded chunk are wrong");
  }
}

void SimNode::Round() {
  ManagerRegion region(*manager_, Lane::kControl, "a round");
  static_cast<void>(manager_->ServeRound());
}

void SimNode::ResetCache() {
  ManagerRegion region(*manager_);
  manager_->ResetCache();
}

Duration SimNode::LongestWait() const {
  TimePoint first = world_.now();
  for (const Work& work : requests_) first = std::min(first, work.submitted);
  return std::chrono::duration_cast<Duration>(world_.now() - first);
}

void SimNode::OnContinued() {
  for (Work& work : requests_) work.submitted = world_.now();
}

ManagerStats SimNode::Stats() {
  ManagerRegion region(*manager_);
  return manager_->Stats();
}

std::uint64_t SimNode::Counter(const std::string& name) {
  const ManagerStats stats = Stats();
  for (const CounterValue& counter : stats.tiers[0].counters) {
    if (counter.name == name) return counter.value;
  }
  TERRACE_CHECK(false, "no such counter");
}

std::string SimNode::Leftovers() {
  const ManagerStats stats = Stats();
  std::string left;
  const auto note = [&](const char* what, std::uint64_t count) {
    if (count > 0) left += std::string(what) + " " + std::to_string(count) + "; ";
  };
  note("pinned", stats.pinned_chunks);
  note("writing", stats.writing_chunks);
  note("orphans", stats.orphaned_slots);
  note("stuck", stats.stuck_slots);
  note("promotions", stats.tiers[0].promotion.slots_in_flight);
  note("cascades", stats.tiers[0].cascade.slots_in_flight);
  note("serving", stats.tiers[0].serve.slots_in_flight);
  note("faults", stats.tiers[0].faults);
  note("unknown reports", stats.tiers[0].unknown_reports);
  note("leases", Counter("terrace_peer_leases"));
  note("forgotten requests of peers", stats.peer_requests_overdue);
  return left;
}

}  // namespace terrace::sim
