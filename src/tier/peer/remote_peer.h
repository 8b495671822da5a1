// One other node, as the asker sees it: its session, its health, what it was asked and what it
// promised.
//
//   idle --somebody wants it--> connecting --welcome--> ready
//   connecting, ready --silence, nonsense, a cut, a refusal--> down --back-off--> connecting ...
//
// A peer that fails costs whoever waits for it one deadline, once: all that is under way with it
// fails at once, and while it is down, or is tried again after a failure, nobody waits for it.
// Nothing of a session outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/log_limiter.h"
#include "terrace/cache_identity.h"
#include "terrace/tier_config.h"
#include "tier/peer/control_network.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/peer_counters.h"
#include "wire/peer_message.h"

namespace terrace {

// What every link of a node shares; all of it outlives them.
struct PeerAskerContext {
  const PeerTierConfig* config = nullptr;
  ControlNetwork* network = nullptr;
  std::vector<DataPlane*> planes;  // In order of preference.
  const CacheIdentity* identity = nullptr;
  InstanceId instance{};
  PeerCounters* counters = nullptr;
  std::function<std::chrono::steady_clock::time_point()> now;
  std::uint64_t seed = 0;  // Of the back-off's jitter.
  mutable std::uint64_t next_data_link = 1;
};

// Thread-compatible: under the manager's lock.
class RemotePeer {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Who waits for what this peer says.
  class Listener {
   public:
    // `answer` is null if none will come. Its length fits the question.
    virtual void OnAnswer(std::uint64_t lookup, const PeerAnswer* answer) = 0;
    // A read that the plane never got.
    virtual void OnReadLost(std::uint64_t tag) = 0;
    // What it promised is void.
    virtual void OnLeasesVoid(RemotePeer& link) = 0;

   protected:
    ~Listener() = default;
  };

  // One that is configured is connected from the start, and again whenever it was lost.
  enum class Kind : std::uint8_t { kOnDemand, kConfigured };

  RemotePeer(const PeerAskerContext& context, PeerAddress address, Kind kind, Listener& listener);
  // Tells nobody: Close() does.
  ~RemotePeer();
  RemotePeer(const RemotePeer&) = delete;
  RemotePeer& operator=(const RemotePeer&) = delete;

  const PeerAddress& address() const { return address_; }
  const std::string& name() const { return name_; }
  LinkId link() const { return link_; }
  DataLinkId data_link() const { return data_link_; }
  bool is_ready() const { return state_ == State::kReady; }
  // Nothing under way, nothing held, nobody talks: may be forgotten.
  bool IsIdle() const;

  // Somebody will want it soon: connects, if it is not down.
  void Want();
  // Whether a request should wait for its answer. After a failure only once both links are open: a
  // peer whose data port alone is silent would cost somebody a deadline at each try.
  bool IsWorthWaiting() const {
    if (failures_ > 0) return state_ == State::kReady && data_open_;
    return state_ == State::kReady || state_ == State::kConnecting;
  }

  // Asks; the listener gets exactly one OnAnswer for each id. Pre: IsWorthWaiting(); 1 to
  // kPeerKeysMax keys; the id is new.
  void Ask(PeerLookup question, std::chrono::milliseconds patience);
  // The answer does not matter any more: no OnAnswer comes.
  void Cancel(std::uint64_t lookup);
  // Pre: is_ready(). The ends come from the plane, or as OnReadLost.
  void Read(std::span<const ChunkRead> reads);
  void Release(LeaseId lease);

  // Events of link() and data_link().
  void OnMessage(std::span<const std::uint8_t> bytes);
  void OnLinkLost(const std::string& why);
  void OnDataOpened();
  void OnDataLost(const std::string& why);
  // A chunk of it has come. Connecting and talking alone do not show that it works: a peer that
  // does no more is left alone for longer each time.
  void OnChunk() { failures_ = 0; }
  // It did not do what it should have done by now.
  void OnOverdue(const std::string& what) { Fail(what); }

  // Deadlines and renewals.
  void Tick();
  // Says goodbye and ends everything.
  void Close();

 private:
  enum class State : std::uint8_t { kIdle, kConnecting, kReady, kDown };
  struct Asked {
    std::size_t keys;
    TimePoint deadline;
  };

  void Connect();
  void On(const PeerWelcome& welcome);
  void On(const PeerRefusal& refusal);
  void On(const PeerAnswer& answer);
  void OpenData(const std::string& why_not_before);
  void Post(const PeerMessage& message);
  void Fail(const std::string& why);
  void Disconnect();
  std::chrono::milliseconds BackOff();

  const PeerAskerContext& context_;
  const PeerAddress address_;
  const Kind kind_;
  const std::string name_;
  Listener& listener_;

  State state_ = State::kIdle;
  LinkId link_;
  TimePoint connect_deadline_;
  std::optional<InstanceId> instance_;  // Of the last session.
  std::vector<PeerLookup> unsent_;      // Asked while connecting.
  std::map<std::uint64_t, Asked> asked_;
  std::set<LeaseId> leases_;
  std::chrono::milliseconds lease_time_{0};
  TimePoint ready_since_, renewed_at_;

  // The data link: planes are tried in turn.
  SessionToken token_{};
  std::vector<std::pair<DataPlane*, std::string>> offers_;  // Not tried yet, best last.
  DataPlane* plane_ = nullptr;
  DataLinkId data_link_;
  bool data_open_ = false;
  std::vector<ChunkRead> queued_;  // Until it is open.

  // Health.
  std::uint32_t failures_ = 0;  // In a row.
  TimePoint down_until_;
  std::minstd_rand jitter_;
  LogLimiter log_;
};

}  // namespace terrace
