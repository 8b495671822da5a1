// Host memory and the tiers behind it as one cache.
//
// A completed store goes to every tier in the background (cascade); a lookup that finds a chunk in
// a tier brings it back (promotion). Both hold the host slot until the tier has reported the job,
// so host memory that a tier may touch is never reused. Without any tier it manages host memory
// alone.
//
// In four files: what the engine calls (tiering_manager.cc), jobs and their ends (tiering_jobs.cc),
// chunks that wait for their turn (tiering_waits.cc), and serving (tiering_serve.cc).
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <memory_resource>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "host/host_tier.h"
#include "manager/guarded_tier.h"
#include "terrace/offloading_manager.h"
#include "terrace/result.h"
#include "terrace/secondary_tier.h"

namespace terrace {

class ControlThread;

struct TieringOptions {
  // How long anybody waits for a promotion. After that its chunk is a miss for everybody, and its
  // slot stays reserved until the tier reports the job: a slow disk may still write into it.
  std::chrono::milliseconds promotion_timeout{10'000};
  // How long one request is told to ask again before it is told to compute.
  std::chrono::milliseconds lookup_timeout{30'000};
  // After that a tier's reading of host memory counts as overdue, its slots stay pinned.
  std::chrono::milliseconds cascade_timeout{60'000};
  // How long a stored chunk waits for its turn to go to a tier.
  std::chrono::milliseconds waiting_timeout{60'000};
  // How long each tier has to end at Shutdown().
  std::chrono::milliseconds shutdown_timeout{10'000};
  // At most this part of the slots, in percent, is reserved for promotions, and pinned by the
  // cascades to one tier.
  std::uint32_t promoting_slots_percent = 50;
  std::uint32_t cascading_slots_percent = 50;
  // And pinned by what all peers read.
  std::uint32_t serving_slots_percent = 50;
  // How long a request of a peer may stay open.
  std::chrono::milliseconds peer_request_timeout{60'000};
  // What one call that serves peers may do: the engine waits for one call at most.
  std::uint32_t serve_keys = 256;
  std::uint64_t serve_bytes = std::uint64_t{256} << 20;
  std::uint64_t chunk_bytes = 0;  // For that budget.
  // How often the control thread looks at tiers that have no descriptor; 0: no thread, and peers
  // are served once a step.
  std::chrono::nanoseconds poll_interval{0};
  ThreadPriority control_priority = ThreadPriority::kNormal;  // Of that thread, if allowed.
  std::vector<GuardedTierOptions> tiers;  // By tier; missing ones have defaults.
  // A seam for tests.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class TieringManager final : public OffloadingManager {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Tiers in order of priority, at most 32. They are shut down with the manager, in reverse order.
  TieringManager(std::unique_ptr<HostTier> host, std::vector<std::unique_ptr<SecondaryTier>> tiers,
                 TieringOptions options = {});
  ~TieringManager() override;

  // Starts the control thread, if a tier serves others and the interval is above zero. Once, before
  // anybody else uses the manager. kResourceExhausted if the system has no threads left.
  Result<void> StartControlThread() TERRACE_EXCLUDES(this);
  // Makes the control thread look now. Any thread; cheap; nothing if there is none.
  void WakeControlThread();

  StoreInterest OnNewRequest(const Request& request) override TERRACE_REQUIRES(this);
  LookupResult Lookup(const ChunkKey& key, const Request& request) override TERRACE_REQUIRES(this);
  LoadSource GetLoadSource(const ChunkKey& key, const Request& request) const override
      TERRACE_REQUIRES(this);
  std::optional<SlotId> SlotOf(const ChunkKey& key) const override TERRACE_REQUIRES(this) {
    return host_->SlotOf(key);
  }
  bool PrepareLoad(std::span<const ChunkKey> keys, const Request& request, std::span<SlotId> slots,
                   ChunkEnds ends = {}) override TERRACE_REQUIRES(this);
  void Touch(std::span<const ChunkKey> keys, const Request& request) override
      TERRACE_REQUIRES(this) {
    host_->Touch(request.id, keys);
  }
  void CompleteLoad(std::span<const SlotId> slots, const Request& request) override
      TERRACE_REQUIRES(this);
  StoreOutcome PrepareStore(std::span<const ChunkKey> keys, const Request& request, StorePlan& plan,
                            ChunkEnds ends = {}) override TERRACE_REQUIRES(this);
  void CompleteStore(std::span<const SlotId> slots, const Request& request,
                     CopyOutcome outcome) override TERRACE_REQUIRES(this);
  void OnRequestFinished(const Request& request) override TERRACE_REQUIRES(this);
  void OnScheduleEnd() override TERRACE_REQUIRES(this);
  bool HasPendingWork() const override TERRACE_REQUIRES(this);
  std::vector<ChunkKey> ReadyChunks() const override TERRACE_REQUIRES(this);
  std::vector<CacheEvent> TakeEvents() override TERRACE_REQUIRES(this);
  ResetReport ResetCache() override TERRACE_REQUIRES(this);
  ManagerStats Stats() const override TERRACE_REQUIRES(this);
  void Shutdown() override TERRACE_EXCLUDES(this);

  // Blocks until every cascade and promotion has ended or `timeout` passed; true if all have. While
  // somebody else is inside it waits for the lock, no longer than that.
  bool Drain(std::chrono::milliseconds timeout) TERRACE_EXCLUDES(this);

  // One round of the control thread: collects from the tiers that serve others and from those that
  // work for peers, serves, and submits what that began. Never the engine's per-step work.
  struct RoundReport {
    bool active = false;   // Something was done: look again soon.
    bool yielded = false;  // There may be more to do at once.
    bool failed = false;   // Some tier threw.
    // Nobody may tell when there is more to do: a peer waits for something, or a tier that serves
    // has no descriptor.
    bool needs_timer = false;
  };
  RoundReport ServeRound() TERRACE_REQUIRES(this);
  // Descriptors of the tiers that serve others; constant after construction.
  std::vector<int> ServingDescriptors() const;
  bool AnyTierServes() const;
  ControlStats& control_stats() TERRACE_REQUIRES(this) { return stats_.control; }

  // True after a Shutdown() that a tier did not end in time, or that could not have the lock: host
  // memory must not be unmapped.
  bool tiers_still_run() const { return tiers_still_run_; }

 private:
  enum class JobKind : std::uint8_t { kPromotion, kCascade, kServe };
  struct Job {
    JobKind kind;
    std::size_t tier;
    RequestId request;
    std::vector<ChunkKey> keys;
    std::vector<SlotId> slots;
    TimePoint submitted_at;
    std::optional<GuardedTier::Permit> permit;
    bool overdue = false;
  };
  // What tiers said about a chunk to a request.
  struct Asked {
    bool counted = false;          // As a miss of host memory.
    std::uint32_t by_tiers = 0;    // Bit i: tier i was asked.
    std::uint32_t failed_by = 0;   // Bit i: tier i had it and did not bring it; not asked again.
    std::uint32_t unknown_to = 0;  // Bit i: tier i did not know, and has not answered since.
    std::uint32_t hit_in = 0;      // Bit i: it came from tier i, once or again.
    std::optional<TimePoint> unknown_since;  // Some tier did not know.
    // With it: the last time, and since when that was so without a long pause between two look-ups.
    TimePoint unknown_last{}, silent_since{};
    std::optional<std::size_t> promoted_from;
  };
  struct RequestState {
    explicit RequestState(const Request& r) : request(r) {}
    bool IsWantedWholeBy(std::size_t tier) const { return (whole_request_tiers >> tier & 1) != 0; }

    Request request;
    std::optional<std::size_t> served_by;  // The tier whose peer it is of: never asked, never told.
    bool finished = false;
    std::uint32_t whole_request_tiers = 0;  // Bit i: tier i wants all its chunks.
    std::uint32_t unwanted_by = 0;          // Bit i: tier i wants none of them.
    std::uint64_t stores_in_flight = 0;     // PrepareStore() plans that were not completed yet.
    std::uint32_t promotions_unsent = 0;    // Tiers that still owe it a SubmitLoad() at step end.
    std::uint32_t cascades_waiting = 0;     // Chunks in Tier::waiting on its behalf.
    std::vector<ChunkKey> parked;           // Offered while somebody else wrote them.
    TimePoint parked_until;
    std::unordered_set<ChunkKey> given;  // To whole_request_tiers, or parked for them.
    std::unordered_map<ChunkKey, Asked> asked;
    std::optional<TimePoint> waits_since;  // First answer "ask again" since it last went on.
    bool gave_up = false;                  // Waited too long.
    std::uint64_t unknown_in_hold = 0;     // The hold of the lock in which a tier did not know.
  };
  struct Promotion {
    TimePoint deadline;
    bool overdue = false;
  };
  struct UnsentPromotion {
    std::size_t tier;
    RequestId request;
    StorePlan plan;
  };
  struct Waiting {
    ChunkKey key;
    RequestId request;
    TimePoint until;
  };
  struct Tier {
    explicit Tier(GuardedTier t) : guard(std::move(t)) {}
    GuardedTier guard;
    std::deque<Waiting> waiting;       // Stored chunks whose turn to go to the tier has not come.
    std::uint32_t jobs_for_peers = 0;  // Promotions under way for requests of peers.
    bool asked_by_peer = false;        // Since its last OnScheduleEnd().
  };
  class Server;

  // tiering_manager.cc
  RequestState& MustFind(RequestId id) TERRACE_REQUIRES(this);
  RequestState& AddRequest(const Request& request, std::optional<std::size_t> served_by)
      TERRACE_REQUIRES(this);
  LookupResult LookUp(const ChunkKey& key, RequestState& state) TERRACE_REQUIRES(this);
  LookupResult LookUpWriting(const ChunkKey& key) TERRACE_REQUIRES(this);
  LookupResult AskTiers(const ChunkKey& key, RequestState& state, std::uint64_t ticks_in_host)
      TERRACE_REQUIRES(this);
  LookupResult WaitOrGiveUp(LookupResult result, RequestState& state) TERRACE_REQUIRES(this);
  void NoteSilentTiers(const ChunkKey& key, const RequestState& state) TERRACE_REQUIRES(this);
  LookupResult Promote(const ChunkKey& key, std::size_t tier, RequestState& state)
      TERRACE_REQUIRES(this);
  static void NotBrought(const ChunkKey& key, std::size_t tier, RequestState& state);
  static void WentOn(RequestState& state);
  std::uint64_t SlotsOf(std::uint32_t percent) const TERRACE_REQUIRES(this);  // At least one.
  void FinishRequest(RequestId id) TERRACE_REQUIRES(this);
  void ForgetIfDone(RequestId id) TERRACE_REQUIRES(this);
  void EndLingering(RequestId id) TERRACE_REQUIRES(this);
  template <typename Visit>
  void ForEachTierOf(const RequestState& state, const Visit& visit) TERRACE_REQUIRES(this);

  // tiering_jobs.cc
  TransferStats& StatsOf(const Job& job) TERRACE_REQUIRES(this);
  TransferJob AddJob(Job job) TERRACE_REQUIRES(this);
  void FailJob(const TransferJob& job) TERRACE_REQUIRES(this);
  void SubmitPromotions() TERRACE_REQUIRES(this);
  void FailPromotions(UnsentPromotion& unsent) TERRACE_REQUIRES(this);
  void FailSlots(UnsentPromotion& unsent) TERRACE_REQUIRES(this);
  void SubmitCascade(std::size_t tier, std::span<const SlotId> slots, RequestId request)
      TERRACE_REQUIRES(this);
  void CollectFinished() TERRACE_REQUIRES(this);
  bool CollectFinished(std::size_t tier) TERRACE_REQUIRES(this);
  void FinishJob(std::size_t tier, JobResult& result) TERRACE_REQUIRES(this);
  void EndJob(const Job& job, const JobResult& result) TERRACE_REQUIRES(this);
  void EndPromotions(const Job& job, const JobResult& result) TERRACE_REQUIRES(this);
  void EndPromotion(SlotId slot, CopyOutcome outcome) TERRACE_REQUIRES(this);
  void MarkPromotionOverdue(Promotion& promotion) TERRACE_REQUIRES(this);
  void MarkOverdueJobs() TERRACE_REQUIRES(this);
  void FinishOverduePeerRequests() TERRACE_REQUIRES(this);
  static bool IsForPeer(const Job& job) {
    return job.kind == JobKind::kServe || job.request >= kExternalRequests;
  }
  void MarkOverdue(Job& job, TimePoint now) TERRACE_REQUIRES(this);

  // tiering_waits.cc
  void Cascade(std::span<const SlotId> slots, RequestState& state) TERRACE_REQUIRES(this);
  std::uint64_t CascadeRoom(const Tier& tier) const TERRACE_REQUIRES(this);
  void GiveToTier(std::size_t tier, std::span<const SlotId> slots, RequestState& state,
                  bool promised) TERRACE_REQUIRES(this);
  void FlushWaiting() TERRACE_REQUIRES(this);
  void FlushWaiting(std::size_t tier) TERRACE_REQUIRES(this);
  void OfferWholeRequest(std::span<const ChunkKey> keys, const StorePlan& plan, RequestState& state)
      TERRACE_REQUIRES(this);
  void GiveWholeRequest(std::span<const SlotId> slots, RequestState& state) TERRACE_REQUIRES(this);
  void FlushParked() TERRACE_REQUIRES(this);
  void CountDroppedParked(std::uint64_t chunks, const RequestState& state) TERRACE_REQUIRES(this);
  void DropWaits() TERRACE_REQUIRES(this);
  void DropWaits(RequestState& state) TERRACE_REQUIRES(this);

  void LeaveRunning();
  void SetControlRunning(bool running) TERRACE_EXCLUDES(this);

  // tiering_serve.cc
  RoundReport ServeTier(std::size_t tier, Lane lane) TERRACE_REQUIRES(this);
  std::uint64_t FaultsOfTiers() const TERRACE_REQUIRES(this);

  const TieringOptions options_;
  const std::unique_ptr<HostTier> host_ TERRACE_GUARDED_BY(this);
  std::unique_ptr<ControlThread> control_;    // Outlives the tiers, whose threads may wake it.
  std::vector<std::unique_ptr<Tier>> tiers_;  // The vector is constant after construction; what
                                              // the tiers hold here is guarded by the lock.
  std::unordered_map<JobId, Job> jobs_ TERRACE_GUARDED_BY(this);
  // Deadlines of jobs, per kind in order of submission, so that the front is the next to pass.
  std::array<std::deque<std::pair<TimePoint, JobId>>, 3> deadlines_ TERRACE_GUARDED_BY(this);
  // Keeps the memory of requests that ended for those that come.
  std::pmr::unsynchronized_pool_resource request_memory_ TERRACE_GUARDED_BY(this);
  std::pmr::unordered_map<RequestId, RequestState> requests_ TERRACE_GUARDED_BY(this){
      &request_memory_};
  std::unordered_set<RequestId> requests_parked_ TERRACE_GUARDED_BY(this);
  std::vector<UnsentPromotion> unsent_ TERRACE_GUARDED_BY(this);
  std::unordered_map<SlotId, Promotion> promotions_ TERRACE_GUARDED_BY(this);  // Not ended.
  std::uint64_t slots_promoting_ TERRACE_GUARDED_BY(this) = 0;  // Of promotions_, not overdue.
  std::uint64_t overdue_jobs_ TERRACE_GUARDED_BY(this) = 0;     // Of jobs_.
  std::uint64_t peer_jobs_ TERRACE_GUARDED_BY(this) = 0;        // Of jobs_, not overdue.
  std::uint64_t slots_serving_ TERRACE_GUARDED_BY(this) = 0;    // Pinned by jobs of kind kServe.
  std::deque<std::pair<TimePoint, RequestId>> peer_deadlines_ TERRACE_GUARDED_BY(this);
  std::vector<JobResult> results_ TERRACE_GUARDED_BY(this);  // Reused by CollectFinished().
  std::uint64_t next_job_ TERRACE_GUARDED_BY(this) = 1;
  std::uint64_t next_external_ TERRACE_GUARDED_BY(this) = kExternalRequests.value;
  std::size_t serve_first_ TERRACE_GUARDED_BY(this) = 0;  // Whose turn it is to be served first.
  bool collected_this_step_ TERRACE_GUARDED_BY(this) = false;
  bool tiers_are_shut_ TERRACE_GUARDED_BY(this) = false;  // They are given nothing any more.
  ManagerStats stats_ TERRACE_GUARDED_BY(this);

  bool tiers_were_shut_down_ = false;  // These two are Shutdown()'s alone.
  bool tiers_still_run_ = false;
};

}  // namespace terrace
