// The asking side of a peer tier: requests and where their chunks may be, questions, and fetches.
//
// For each request it knows which holders to ask (its route, or the configured peers), asks each of
// them once for each key, and reads what was found. An answer is a lease on the holder; it is given
// back when all of it was read, or when the request ends.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log_limiter.h"
#include "terrace/secondary_tier.h"
#include "tier/peer/remote_peer.h"

namespace terrace {

// Thread-compatible: under the manager's lock.
class PeerAsker final : private RemotePeer::Listener {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `context` outlives it. `configured`: whom to ask for requests without a route.
  PeerAsker(const PeerAskerContext& context, const std::vector<PeerAddress>& configured);
  ~PeerAsker();

  void OnNewRequest(const Request& request);
  void OnRequestFinished(RequestId request);
  TierLookup Lookup(const ChunkKey& key, RequestId request);
  void SubmitLoad(TransferJob job);
  // Sends the questions that came up since the last call.
  void Flush();

  void OnEvent(const ControlNetwork::Event& event);  // Of a link.
  void OnData(const DataEvent& event);
  void Tick();
  // Fails what is under way. The reads end when their planes say so.
  void Close();

  void TakeFinished(std::vector<JobResult>& results);
  // Whether somebody's answer has changed since the last call.
  bool TakeProgress() { return std::exchange(progress_, false); }
  std::size_t jobs_under_way() const { return jobs_.size(); }
  std::uint64_t links_ready() const;

 private:
  enum class Phase : std::uint8_t { kUnsent, kAsked, kHit, kMiss };
  struct KeyState {
    Phase phase = Phase::kUnsent;
    LeaseId lease;            // If kHit.
    std::uint32_t index = 0;  // In it.
    TimePoint since;          // If kMiss: the answer came then.
  };
  struct Target {
    RemotePeer* link;
    std::unordered_map<ChunkKey, KeyState> keys;
    std::vector<ChunkKey> unsent;
  };
  struct RequestState {
    PeerRoute::SourceKind kind = PeerRoute::SourceKind::kHolder;
    std::string transfer_id;
    std::vector<Target> targets;
    bool has_unsent = false;  // Is in unsent_.
  };
  struct Question {
    RequestId request;
    RemotePeer* link;
    std::vector<ChunkKey> keys;
  };
  struct Held {
    RequestId request;
    std::uint32_t wanted = 0;   // Chunks that may still be read.
    std::uint32_t reading = 0;  // That are being read.
  };
  using LeaseName = std::pair<RemotePeer*, LeaseId>;
  struct Load {
    TransferJob job;
    std::vector<CopyOutcome> outcomes;
    std::size_t remaining;
    TimePoint started, deadline;
    std::uint64_t bytes = 0;
  };
  struct Read {
    JobId job;
    std::size_t index;
    RemotePeer* link;
    LeaseId lease;
  };

  void OnAnswer(std::uint64_t lookup, const PeerAnswer* answer) override;
  void OnReadLost(std::uint64_t tag) override;
  void OnLeasesVoid(RemotePeer& link) override;

  RemotePeer& LinkTo(const PeerAddress& address, RemotePeer::Kind kind);
  void ForgetIdleLinks();
  Target* FindTarget(RequestId request, const RemotePeer* link);
  TierLookup LookUpAt(Target& target, const ChunkKey& key, RequestState& state, RequestId request);
  void SendQuestions(RequestId id, RequestState& state, Target& target);
  void EndRead(std::uint64_t tag, ReadEnd end);
  void EndLoadIfDone(std::unordered_map<JobId, Load>::iterator load);
  void ReleaseIfDone(const LeaseName& name);

  const PeerAskerContext& context_;
  std::map<std::string, std::unique_ptr<RemotePeer>> links_;  // By name.
  std::vector<RemotePeer*> configured_;
  std::unordered_map<RequestId, RequestState> requests_;
  std::vector<RequestId> unsent_;
  std::unordered_map<std::uint64_t, Question> questions_;  // By look-up.
  std::map<LeaseName, Held> held_;
  std::unordered_map<JobId, Load> jobs_;
  std::unordered_map<std::uint64_t, Read> reads_;  // By tag.
  std::vector<JobResult> finished_;
  std::uint64_t next_lookup_ = 1;
  std::uint64_t next_tag_ = 1;
  bool progress_ = false;
  bool closed_ = false;
  LogLimiter corrupt_log_;
};

}  // namespace terrace
