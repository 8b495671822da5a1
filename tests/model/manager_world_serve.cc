// Peers, and how a world ends.
#include <algorithm>

#include "tests/model/manager_world.h"
#include "tests/support/keys.h"

namespace terrace::model {

using testing_support::Key;

// What a tier does when it is asked to serve: some work of several requests, which stay open over
// several calls, and now and then what it must not.
void ManagerWorld::Serve(ModelTier& tier, TierServer& server) {
  if (tier.calm) {
    for (const Request& request : std::exchange(tier.open, {})) server.FinishRequest(request);
    return;
  }
  budget_ = {options_.serve_keys, options_.serve_keys, options_.serve_bytes};
  for (std::uint64_t i = chance_.Below(5); i > 0; --i) {
    if (chance_.Percent(weights_.peer_misuse_percent)) Misuse(tier, server);
    if (tier.open.size() < 3 && chance_.Percent(50)) {
      const Request request = server.BeginRequest();
      if (budget_.keys > 0) --budget_.keys;
      EXPECT_GE(request.id, kExternalRequests);
      EXPECT_TRUE(tier.own_requests.insert(request.id.value).second);
      tier.open.push_back(request);
    }
    if (tier.open.empty()) continue;
    const auto request = chance_.Any(tier.open);
    ServeChunks(tier, server, *request);
    if (chance_.Percent(50)) continue;
    server.FinishRequest(*request);
    if (tier.closed.size() < 8) tier.closed.push_back(*request);
    tier.open.erase(request);
  }
}

void ManagerWorld::ServeChunks(ModelTier& tier, TierServer& server, const Request& request) {
  std::vector<ChunkKey> hits;
  const std::uint64_t first = chance_.Below(weights_.keys);
  for (std::uint64_t i = 0; i < 1 + chance_.Below(4); ++i) {
    const ChunkKey key = Key(first + i);
    if (budget_.keys == 0) {
      EXPECT_TRUE(server.ShouldYield());
      EXPECT_EQ(server.Lookup(key, request), LookupResult::kRetry) << "beyond the budget";
      break;
    }
    --budget_.keys;
    if (CheckedLookup(key, request, [&] { return server.Lookup(key, request); }) ==
        LookupResult::kHit) {
      hits.push_back(key);
    }
  }
  if (hits.empty()) return;
  const std::uint64_t bytes = hits.size() * options_.chunk_bytes;
  std::uint64_t serving = hits.size();
  manager_->AssertHeld();
  for (const TierStats& stats : manager_->Stats().tiers) serving += stats.serve.slots_in_flight;
  const bool room = serving <= std::max<std::uint64_t>(1, weights_.slots / 2);
  const bool may = room && hits.size() <= budget_.job_keys &&
                   (bytes <= budget_.bytes || budget_.bytes == options_.serve_bytes);
  auto job = server.CreateStoreJob(hits, request);
  EXPECT_EQ(job.has_value(), may) << "a job of hits, as the budget allows";
  if (!job) return;
  lives_[request.id.value].waits_since.reset();
  budget_.job_keys -= static_cast<std::uint32_t>(hits.size());
  budget_.bytes -= std::min(bytes, budget_.bytes);
  EXPECT_EQ(job->keys, hits);
  tier.AddServeJob(std::move(*job));
}

// Refused, whatever it is, and no harm to anybody.
void ManagerWorld::Misuse(ModelTier& tier, TierServer& server) {
  const ModelTier& other = **chance_.Any(tiers_);
  Request stranger{RequestId(chance_.Below(1000))};
  if (!tier.closed.empty() && chance_.Percent(50)) stranger = *chance_.Any(tier.closed);
  if (&other != &tier && !other.open.empty()) stranger = other.open.front();
  const ChunkKey key = Key(chance_.Below(weights_.keys));
  EXPECT_EQ(server.Lookup(key, stranger), LookupResult::kMiss);
  EXPECT_FALSE(server.CreateStoreJob({&key, 1}, stranger));
  server.FinishRequest(stranger);
  if (!tier.open.empty()) EXPECT_FALSE(server.CreateStoreJob({}, tier.open.front()));
  const ChunkKey never = Key(weights_.keys + 1'000);
  if (!tier.open.empty()) EXPECT_FALSE(server.CreateStoreJob({&never, 1}, tier.open.front()));
}

// Everything ends, and then nothing is held and nobody waits.
void ManagerWorld::ComeToRest() {
  for (ModelTier* tier : tiers_) tier->calm = true;
  while (!loads_.empty()) EndLoad(0);
  while (!stores_.empty()) EndStore(0, true);
  while (!requests_.empty()) FinishRequest();
  Leave();
  for (int i = 0; i < 16; ++i) {
    EndStep();
    for (ModelTier* tier : tiers_) {
      while (!tier->jobs.empty()) tier->FinishAnyJob();
    }
    // Who was left alone is asked again after a minute at most.
    if (i >= 4) now_ += std::chrono::seconds(61);
  }
  Enter();
  manager_->AssertHeld();
  CheckStats();
  CheckQuiet();
  EXPECT_FALSE(manager_->HasPendingWork());
  for (const ModelTier* tier : tiers_) EXPECT_TRUE(tier->lives.empty()) << "never told of an end";
}

// With everything under way. Tiers then report failures, and the engine's copies end later.
void ManagerWorld::ShutDown() {
  const bool calm = chance_.Percent(70);
  if (calm) {
    for (ModelTier* tier : tiers_) tier->calm = true;
    now_ += std::chrono::minutes(10);
  }
  for (const ModelTier* tier : tiers_) shutdowns_under_load_ += tier->jobs.empty() ? 0 : 1;
  Leave();
  manager_->Shutdown();
  for (const ModelTier* tier : tiers_) EXPECT_TRUE(tier->shut);
  unsent_ = 0;
  while (!loads_.empty()) EndLoad(0);
  while (!stores_.empty()) EndStore(0, false);
  while (!requests_.empty()) FinishRequest();
  Enter();
  if (calm) CheckQuiet();
  Leave();
  manager_->Shutdown();
}

void ManagerWorld::AddTo(Happened& happened) {
  ManagerRegion region(*manager_);
  const ManagerStats stats = manager_->Stats();
  happened["busy slots at a reset"] += busy_slots_;
  happened["shutdowns under load"] += shutdowns_under_load_;
  happened["stored"] += stats.stored_chunks;
  happened["failed stores"] += stats.failed_store_chunks;
  happened["loaded"] += stats.loaded_chunks;
  happened["evicted"] += stats.evicted_chunks;
  happened["stores refused"] += stats.store_refusals;
  happened["promotions refused"] += stats.promotion_refusals;
  happened["promotions postponed"] += stats.promotions_postponed;
  happened["promotions overdue"] += stats.promotions_overdue;
  happened["look-ups overdue"] += stats.lookups_overdue;
  happened["parked overdue"] += stats.parked_chunks_overdue;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const TierStats& tier = stats.tiers[i];
    happened["promoted"] += tier.promotion.chunks;
    happened["not promoted"] += tier.promotion.failed_chunks;
    happened["cascaded"] += tier.cascade.chunks;
    happened["served"] += tier.serve.chunks;
    happened["cascades overdue"] += tier.cascade.overdue_jobs_total;
    happened["serve jobs overdue"] += tier.serve.overdue_jobs_total;
    happened["left out by back-pressure"] += tier.dropped_by_backpressure_chunks;
    happened["left out while down"] += tier.dropped_while_down_chunks;
    happened["left out while waiting"] += tier.dropped_while_waiting_chunks;
    happened["faults"] += tier.faults;
    happened["downs"] += tier.downs;
    happened["unknown reports"] += tier.unknown_reports;
    happened["wrong counts of outcomes"] += tiers_[i]->wrong_counts;
    happened["peers' requests"] += tiers_[i]->own_requests.size();
  }
}

}  // namespace terrace::model
