// The serving side of a peer tier: who called, what they asked, and what is kept for a decoder.
//
// A question is answered once everything about it is known, or when its time is over. What is a hit
// is pinned at once, in the same hold of the lock, and handed over as a lease. A chunk on this
// node's disk becomes a hit when it was promoted; one that this node computes for the asker
// (`wait`) when it was stored.
//
// While there is another asker, none can have all that peers together may pin: a session pins at
// most half of it, and its next questions wait for what it gives back. The other limits stand in
// docs/peers.md.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/log_limiter.h"
#include "terrace/cache_identity.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_config.h"
#include "tier/peer/control_network.h"
#include "tier/peer/lease_table.h"
#include "tier/peer/peer_counters.h"
#include "wire/peer_message.h"

namespace terrace {

// All of it outlives the holder.
struct PeerHolderContext {
  const PeerTierConfig* config = nullptr;
  ControlNetwork* network = nullptr;
  const CacheIdentity* identity = nullptr;
  InstanceId instance{};
  LeaseTable* leases = nullptr;
  std::vector<PeerWelcome::Plane> planes;
  PeerCounters* counters = nullptr;
  std::function<std::chrono::steady_clock::time_point()> now;
  std::function<SessionToken()> new_token;
};

// Thread-compatible: under the manager's lock.
class PeerHolder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit PeerHolder(const PeerHolderContext& context) : context_(context) {}

  void OnCall(const std::string& caller, std::span<const std::uint8_t> bytes);
  // Works on the questions, as far as the server allows.
  void Serve(TierServer& server);

  // What of a request's chunks is wanted here: all, if it is computed for another node.
  StoreInterest OnNewRequest(const Request& request);
  void OnRequestFinished(RequestId request);
  void SubmitStore(TransferJob job);

  // Deadlines; ends sessions whose data link is gone.
  void Tick();
  void TakeFinished(std::vector<JobResult>& results);
  // Says goodbye, ends all leases and gives up what is parked. There is nothing to serve any more.
  void Close();

  std::size_t session_count() const { return sessions_.size(); }

 private:
  enum class Known : std::uint8_t { kOpen, kFound, kMissing };
  struct Question {
    PeerLookup lookup;
    TimePoint deadline, next_try;
    std::chrono::microseconds pause{0};
    std::vector<Known> known;  // By key.
    std::size_t open = 0;      // Of these.
    std::optional<Request> request;
    std::vector<TransferJob> jobs;  // Pin what was found.
    bool deferred = false;          // Was, at least once.
  };
  struct Session {
    SessionId id;
    InstanceId instance{};
    TimePoint heard_at;
    std::deque<Question> questions;
  };
  using Sessions = std::map<std::string, Session>;
  // Chunks of one job that a decoder has not got yet.
  struct Parked {
    TransferJob job;
    std::unordered_set<ChunkKey> left;
  };
  struct Transfer {
    std::uint32_t running = 0;  // Requests that compute it.
    std::vector<Parked> parked;
    std::vector<RequestId> requests;
    TimePoint give_up_at;  // What is parked, if there is something.
    TimePoint forget_at;   // The name, once nothing runs and nothing is parked.
    bool given_up = false;
  };

  void On(const std::string& caller, const PeerHello& hello);
  std::optional<PeerRefusal> FaultOf(const PeerHello& hello) const;
  void On(Session& session, const std::string& caller, PeerLookup lookup);
  void On(Session& session, const PeerCancel& cancel);
  void Reply(const std::string& caller, const PeerMessage& message);
  void Refuse(const std::string& caller, PeerRefusal refusal);
  void EndSession(Sessions::iterator session);
  void Drop(Question& question);

  bool ServeSession(Sessions::iterator session, TierServer& server);
  bool LookUp(const Session& session, Question& question, TierServer& server);
  bool Pin(const Session& session, Question& question, std::vector<std::size_t>& found,
           TierServer& server);
  std::size_t PinnedBy(const Session& session) const;
  void Defer(Question& question, std::size_t share);
  bool IsStillComputed(const PeerLookup& lookup) const;
  void Answer(const std::string& caller, Session& session, Question& question, TierServer& server);
  void Claim(const std::string& transfer_id, const Question& question);
  void GiveUp(Transfer& transfer);
  void EndStore(const TransferJob& job);
  void OnSilence();

  const PeerHolderContext& context_;
  Sessions sessions_;
  std::string served_first_;      // Whose turn it is: the first session not before this caller.
  std::vector<Request> orphans_;  // Requests at the manager whose question is gone.
  std::map<std::string, Transfer> transfers_;
  std::unordered_map<RequestId, std::string> transfer_of_;
  std::vector<JobResult> finished_;
  std::uint64_t next_session_ = 1;
  LogLimiter bad_message_log_, questions_log_, share_log_, transfers_log_, silence_log_;
  std::map<std::string, LogLimiter> refusal_logs_;  // By field, of which there are a dozen.
  bool closed_ = false;
};

}  // namespace terrace
