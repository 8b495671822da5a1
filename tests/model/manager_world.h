// An engine, its tiers and their peers, driven by chance from one seed, against the manager.
//
// The world keeps a naive copy of the manager's rules and holds what the manager says of itself
// against it after every operation. manager_world.cc operates, manager_world_checks.cc checks.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "manager/tiering_manager.h"
#include "tests/model/model_tier.h"
#include "tests/model/slots.h"
#include "tests/model/weights.h"

namespace terrace::model {

class ManagerWorld {
 public:
  explicit ManagerWorld(std::uint64_t seed);

  // Operates that often, and then ends everything or shuts down. Stops at the first failure.
  void Run(int operations);

  // What happened in it, so that a test can tell whether the rare things did. By name.
  using Happened = std::map<std::string, std::uint64_t>;
  void AddTo(Happened& happened);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Copy {  // Of the engine, under way.
    Request request;
    std::vector<ChunkKey> keys;
    std::vector<SlotId> slots;
  };
  // What the manager has to know of a request, the naive way.
  struct Life {
    std::optional<TimePoint> waits_since;
    std::set<std::uint64_t> given;                          // To tiers that want the whole request.
    std::set<std::pair<std::uint64_t, std::uint64_t>> own;  // Number and birth of chunks it used.
    std::set<std::uint64_t> touched;  // All that it ever asked for, offered or loaded.
  };

  struct Budget {  // Of one call that serves.
    std::uint32_t keys = 0;
    std::uint32_t job_keys = 0;
    std::uint64_t bytes = 0;
  };

  // Holds the lock in the engine's lane, possibly since an earlier operation.
  void Enter();
  void Leave();

  void Operate();
  void BeginRequest();
  void LookUpAndLoad();
  void LoadWithoutLookingUp();
  void EndLoad(std::size_t n);
  void BeginStore();
  void EndStore(std::size_t n, bool may_succeed);
  void FinishRequest();
  void EndStep();
  void ControlRound();
  void Reset();
  void Tick();
  void Serve(ModelTier& tier, TierServer& server);
  void ServeChunks(ModelTier& tier, TierServer& server, const Request& request);
  void Misuse(ModelTier& tier, TierServer& server);
  void ComeToRest();
  void ShutDown();

  LookupResult CheckedLookup(const ChunkKey& key, const Request& request,
                             const std::function<LookupResult()>& call);
  bool CheckedLoad(const std::vector<ChunkKey>& keys, const Request& request);
  void CheckRefusal(const std::vector<ChunkKey>& offer, const Request& request);
  void CheckPlan(const std::vector<ChunkKey>& offer, const std::vector<ChunkKey>& ready_before,
                 const StorePlan& plan);
  void CountOffer(const std::vector<ChunkKey>& offer, const StorePlan& plan, Life& life,
                  const Request& request);
  // After every operation, under the lock.
  void Check(const Request* actor = nullptr);
  void TakeEvents(const Request* actor);
  void CheckStats();
  void CheckJobsInTime();
  void CheckQuiet();

  std::uint64_t FreeSlots() const {
    return weights_.slots - host_->ready_count() - host_->writing_count() - host_->orphan_count();
  }

  Chance chance_;
  const Weights weights_;
  Slots slots_;
  TieringOptions options_;
  TimePoint now_{std::chrono::hours(1)};
  std::vector<ModelTier*> tiers_;
  HostTier* host_ = nullptr;
  std::unique_ptr<TieringManager> manager_;
  bool held_ = false;
  std::set<ChunkKey> hits_;         // Of this hold.
  std::vector<ChunkKey> old_hits_;  // Of an earlier one.
  std::vector<Request> requests_;   // Not finished.
  std::unordered_map<std::uint64_t, Life> lives_;
  std::vector<Copy> loads_, stores_;
  std::vector<std::uint64_t> birth_;    // By number: that of the chunk now ready; 0 for none.
  std::vector<TimePoint> promoted_at_;  // By number: the last promotion's reservation.
  std::uint64_t births_ = 0, ready_ = 0;
  std::uint64_t unsent_ = 0;        // Slots reserved for promotions that no tier has.
  std::vector<std::uint64_t> due_;  // By tier: chunks that it is to be given.
  std::vector<std::uint64_t> last_totals_;
  Budget budget_;
  std::uint64_t next_request_ = 1;
  std::uint64_t operations_ = 0;
  std::uint64_t busy_slots_ = 0, shutdowns_under_load_ = 0;  // That happened.
};

}  // namespace terrace::model
