#include "tests/model/manager_world.h"

#include <algorithm>
#include <string>

#include "terrace/eviction_policy.h"
#include "tests/support/keys.h"

namespace terrace::model {

using testing_support::Key;

namespace {

constexpr std::uint64_t kRunMax = 6;  // Chunks of one look-up, load or store.

std::unique_ptr<EvictionPolicy> AnyPolicy(Chance& chance, std::uint32_t slots) {
  const char* const names[] = {"lru", "arc", "s3fifo", "sieve"};
  auto policy = MakeEvictionPolicy(names[chance.Below(std::size(names))], slots);
  return policy ? std::move(policy).value() : MakeEvictionPolicy("lru", slots).value();
}

}  // namespace

ManagerWorld::ManagerWorld(std::uint64_t seed)
    : chance_(seed),
      weights_(chance_),
      slots_(weights_.slots),
      birth_(weights_.keys + kRunMax, 0),
      promoted_at_(weights_.keys + kRunMax) {
  const LoadSource sources[] = {LoadSource::kMemory, LoadSource::kDisk, LoadSource::kPeer};
  std::vector<std::unique_ptr<SecondaryTier>> tiers;
  GuardedTierOptions guards;
  guards.breaker.failure_threshold = static_cast<std::uint32_t>(weights_.failures_to_open);
  if (weights_.drops_when_slow) {
    guards.backpressure = BackpressureOptions::LocalDisk();
    guards.backpressure.policy = "drop";
  }
  for (int i = 0; i < weights_.tiers; ++i) {
    auto tier = std::make_unique<ModelTier>(sources[i], weights_, chance_, slots_);
    if (chance_.Percent(weights_.serving_percent)) {
      tier->serve = [this](ModelTier& t, TierServer& server) { Serve(t, server); };
    }
    for (std::uint64_t n = 0; n < weights_.keys; ++n) {
      if (chance_.Percent(weights_.tier_has_percent)) tier->chunks.insert(n);
    }
    tiers_.push_back(tier.get());
    tiers.push_back(std::move(tier));
    options_.tiers.push_back(guards);
  }
  for (std::size_t i = 1; i < tiers_.size(); ++i) tiers_[i]->other = tiers_[i - 1];
  due_.assign(tiers_.size(), 0);
  options_.promotion_timeout = std::chrono::seconds(2);
  options_.lookup_timeout = std::chrono::seconds(5);
  options_.cascade_timeout = std::chrono::seconds(10);
  options_.waiting_timeout = std::chrono::seconds(10);
  options_.promoting_slots_percent = static_cast<std::uint32_t>(weights_.promoting_percent);
  options_.cascading_slots_percent = static_cast<std::uint32_t>(weights_.cascading_percent);
  options_.peer_request_timeout = std::chrono::hours(24 * 365);  // Peers here may be slow.
  options_.serve_keys = static_cast<std::uint32_t>(weights_.serve_keys);
  options_.chunk_bytes = 100;
  options_.serve_bytes = static_cast<std::uint64_t>(weights_.serve_chunks) * 100;
  options_.now = [this] { return now_; };
  auto host = std::make_unique<HostTier>(weights_.slots, AnyPolicy(chance_, weights_.slots),
                                         EventRecording::kOn, weights_.host);
  host_ = host.get();
  manager_ = std::make_unique<TieringManager>(std::move(host), std::move(tiers), options_);
}

void ManagerWorld::Run(int operations) {
  for (int i = 0; i < operations; ++i, ++operations_) {
    Operate();
    if (testing::Test::HasFailure()) break;
  }
  if (!testing::Test::HasFailure()) chance_.Percent(70) ? ComeToRest() : ShutDown();
  if (testing::Test::HasFailure()) ADD_FAILURE() << "at operation " << operations_;
  Leave();
}

void ManagerWorld::Enter() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  if (!std::exchange(held_, true)) manager_->Lock(Lane::kEngine, "the model");
}

void ManagerWorld::Leave() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  if (!std::exchange(held_, false)) return;
  if (!hits_.empty()) old_hits_.assign(hits_.begin(), hits_.end());
  hits_.clear();
  manager_->Unlock();
}

void ManagerWorld::Operate() {
  const int total = 72 + weights_.finish_jobs_weight + weights_.control_weight +
                    weights_.step_weight + weights_.reset_weight + weights_.clock_weight;
  int choice = static_cast<int>(chance_.Below(static_cast<std::uint64_t>(total)));
  auto is = [&choice](int weight) { return (choice -= weight) < 0; };
  if (is(8)) {
    BeginRequest();
  } else if (is(16)) {
    LookUpAndLoad();
  } else if (is(4)) {
    LoadWithoutLookingUp();
  } else if (is(12)) {
    if (!loads_.empty()) EndLoad(chance_.Below(loads_.size()));
  } else if (is(14)) {
    BeginStore();
  } else if (is(13)) {
    if (!stores_.empty()) EndStore(chance_.Below(stores_.size()), true);
  } else if (is(5)) {
    FinishRequest();
  } else if (is(weights_.step_weight)) {
    EndStep();
  } else if (is(weights_.finish_jobs_weight)) {
    if (tiers_.empty()) return;
    ModelTier& tier = **chance_.Any(tiers_);
    if (chance_.Percent(weights_.tier_forgets_percent) && !tier.chunks.empty()) {
      tier.chunks.erase(chance_.Any(tier.chunks));
    }
    tier.FinishAnyJob();
  } else if (is(weights_.control_weight)) {
    ControlRound();
  } else if (is(weights_.clock_weight)) {
    Tick();
  } else {
    Reset();
  }
  if (chance_.Percent(70)) Leave();
}

void ManagerWorld::BeginRequest() {
  if (requests_.size() > 8) return;
  Request request{RequestId(next_request_++)};
  if (chance_.Percent(weights_.filtered_percent)) {
    request.load_from = LoadSourceSet::None();
    if (chance_.Percent(50)) request.load_from = request.load_from.With(LoadSource::kDisk);
  }
  requests_.push_back(request);
  lives_[request.id.value];
  Enter();
  manager_->AssertHeld();
  const StoreInterest interest = manager_->OnNewRequest(request);
  EXPECT_EQ(interest == StoreInterest::kWholeRequest,
            std::any_of(tiers_.begin(), tiers_.end(),
                        [&](const ModelTier* tier) { return tier->WantsWhole(request.id.value); }));
  Check();
}

// A prefix scan, then a load of a part of what was hit, in the same hold.
void ManagerWorld::LookUpAndLoad() {
  if (requests_.empty()) return;
  const Request request = *chance_.Any(requests_);
  const std::uint64_t first = chance_.Below(weights_.keys);
  const std::uint64_t count = 1 + chance_.Below(kRunMax);
  Enter();
  manager_->AssertHeld();
  std::vector<ChunkKey> hits;
  for (std::uint64_t i = 0; i < count; ++i) {
    const ChunkKey key = Key(first + i);
    const LookupResult result = CheckedLookup(key, request, [&] {
      manager_->AssertHeld();
      return manager_->Lookup(key, request);
    });
    if (result == LookupResult::kMiss) break;
    if (result != LookupResult::kHit) continue;  // The scan goes on behind what is not known yet.
    hits.push_back(key);
    hits_.insert(key);
  }
  Check(&request);
  if (hits.empty() || chance_.Percent(30)) return;
  EXPECT_TRUE(CheckedLoad(hits, request)) << "a hit of this hold was lost";
  Check(&request);
}

// What was a hit in an earlier hold may be gone; then the load is refused whole.
void ManagerWorld::LoadWithoutLookingUp() {
  if (requests_.empty() || old_hits_.empty()) return;
  Enter();
  CheckedLoad(old_hits_, *chance_.Any(requests_));
  Check();
}

// The engine reads the bytes as late as it can.
void ManagerWorld::EndLoad(std::size_t n) {
  const Copy load = std::move(loads_[n]);
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(n));
  for (std::size_t i = 0; i < load.keys.size(); ++i) {
    slots_.CheckBytes(load.slots[i], load.keys[i]);
    slots_.EndRead(load.slots[i]);
  }
  Enter();
  manager_->AssertHeld();
  manager_->CompleteLoad(load.slots, load.request);
  Check();
}

void ManagerWorld::BeginStore() {
  if (requests_.empty()) return;
  const Request request = *chance_.Any(requests_);
  Life& life = lives_[request.id.value];
  std::vector<ChunkKey> offer;
  const std::uint64_t first = chance_.Below(weights_.keys);
  const std::uint64_t count = 1 + chance_.Below(kRunMax);
  for (std::uint64_t i = 0; i < count; ++i) {
    offer.push_back(Key(first + i));
    life.touched.insert(first + i);
  }
  Enter();
  manager_->AssertHeld();
  std::vector<ChunkKey> ready_before;
  for (const ChunkKey& key : offer) {
    if (host_->Find(key) == HostTier::State::kReady) ready_before.push_back(key);
  }
  const std::uint64_t evicted = host_->evicted_total();
  StorePlan plan;
  const StoreOutcome outcome = manager_->PrepareStore(offer, request, plan);
  for (SlotId slot : plan.slots) slots_.BeginWrite(slot, Slots::Writer::kEngine);
  CountOffer(offer, plan, life, request);
  if (outcome == StoreOutcome::kNoRoom) {
    EXPECT_TRUE(plan.keys.empty() && plan.slots.empty());
    EXPECT_EQ(host_->evicted_total(), evicted) << "a refusal evicted something";
    CheckRefusal(offer, request);
  } else {
    CheckPlan(offer, ready_before, plan);
    if (host_->evicted_total() > evicted) EXPECT_EQ(FreeSlots(), 0u) << "evicted without need";
    life.waits_since.reset();
  }
  Check(&request);
  if (outcome == StoreOutcome::kPlanned) {
    for (const ChunkKey& key : offer) {
      const std::uint64_t birth = birth_[NumberOf(key)];
      if (birth != 0) life.own.insert({NumberOf(key), birth});
    }
  }
  if (plan.keys.empty()) return;
  stores_.push_back({request, plan.keys, plan.slots});
}

void ManagerWorld::EndStore(std::size_t n, bool may_succeed) {
  const Copy store = std::move(stores_[n]);
  stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(n));
  const bool fails = !may_succeed || chance_.Percent(weights_.store_fails_percent);
  Life& life = lives_[store.request.id.value];
  std::vector<std::uint64_t> stored;
  for (std::size_t i = 0; i < store.keys.size(); ++i) {
    const std::uint64_t number = NumberOf(store.keys[i]);
    if (!fails) slots_.Write(store.slots[i], number);
    if (!fails && !slots_.orphan(store.slots[i])) {
      stored.push_back(number);
      life.given.insert(number);
    }
    slots_.EndWrite(store.slots[i], Slots::Writer::kEngine);
  }
  for (std::uint64_t& due : due_) due += stored.size();
  Enter();
  manager_->AssertHeld();
  manager_->CompleteStore(store.slots, store.request,
                          fails ? CopyOutcome::kFailed : CopyOutcome::kOk);
  Check();
  for (std::uint64_t number : stored) life.own.insert({number, birth_[number]});
}

void ManagerWorld::FinishRequest() {
  if (requests_.empty()) return;
  const auto request = chance_.Any(requests_);
  Enter();
  manager_->AssertHeld();
  manager_->OnRequestFinished(*request);
  Check();
  requests_.erase(request);
}

void ManagerWorld::EndStep() {
  Enter();
  manager_->AssertHeld();
  manager_->OnScheduleEnd();
  unsent_ = 0;
  Check();
  CheckJobsInTime();
  Leave();
}

void ManagerWorld::ControlRound() {
  Leave();
  ManagerRegion region(*manager_, Lane::kControl, "the model's control round");
  manager_->ServeRound();
  unsent_ = 0;
  Check();
  CheckJobsInTime();
}

void ManagerWorld::Reset() {
  Enter();
  manager_->AssertHeld();
  hits_.clear();
  busy_slots_ += manager_->ResetCache().busy_slots;
  slots_.Reset();
  unsent_ = 0;
  for (auto& [id, life] : lives_) life.given.clear();
  Check();
  EXPECT_EQ(host_->ready_count() + host_->writing_count(), 0u) << "a reset left something";
}

void ManagerWorld::Tick() {
  const int how = chance_.Pick({0, 0, 0, 1, 1, 2});
  if (how == 0) now_ += std::chrono::milliseconds(1 + chance_.Below(200));
  if (how == 1) now_ += std::chrono::seconds(1 + chance_.Below(6));
  if (how == 2) now_ += std::chrono::minutes(2);
}

}  // namespace terrace::model
