// What this node has promised to peers, and what of it they are reading.
//
// A lease is a set of chunks that a session of a peer may read: each is pinned by one of the
// manager's jobs until the lease has ended. It ends when the peer releases it, when it was not
// renewed in time, when its whole life is over, or with its session. Whoever copies out of a slot
// on this node says so (BeginRead, EndRead): a job is reported only when nobody does any more.
// What a peer reads by itself, out of a mapping or over a network card, is not waited for: if its
// lease has ended, the checksum tells it that the bytes are another chunk's.
//
//   Add --> live --Release, deadline, session's end--> revoked --last EndRead--> its jobs are in
//   TakeEnded
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "terrace/chunk_key.h"
#include "terrace/secondary_tier.h"
#include "terrace/types.h"

namespace terrace {

// One asker's conversation with this node.
using SessionId = StrongId<struct SessionIdTag, std::uint64_t>;
using LeaseId = StrongId<struct LeaseIdTag, std::uint64_t>;
// What an asker shows to open a data link: drawn by the holder, handed over in its hello.
using SessionToken = std::array<std::uint8_t, 16>;

// Thread-safe. A leaf: it calls nobody while locked.
class LeaseTable {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Options {
    std::chrono::milliseconds lease_time{5'000};  // Between renewals.
    std::chrono::milliseconds life_max{50'000};   // Of a lease, however often it is renewed.
  };
  explicit LeaseTable(const Options& options) : options_(options) {}

  // --- The tier, under the manager's lock.

  void AddSession(SessionId session, const SessionToken& token);
  // Ends all its leases. Its data link learns of it by IsOpen().
  void RemoveSession(SessionId session);
  // `keys` are what the peer asked for, in its order; a chunk's index in that is its name in the
  // lease.
  // Pre: the session is there; the chunks of `jobs` are some of `keys`.
  LeaseId Add(SessionId session, std::span<const ChunkKey> keys, std::span<const TransferJob> jobs,
              TimePoint now);
  // False if there is no such lease (any more).
  bool Renew(SessionId session, LeaseId lease, TimePoint now);
  bool Release(SessionId session, LeaseId lease);
  // Ends what was not renewed in time; how many.
  std::uint32_t Expire(TimePoint now);
  // Ends all. BeginRead() refuses from then on.
  void Close();
  // Appends the jobs of leases that have ended and that nobody reads: as results, all kOk.
  void TakeEnded(std::vector<JobResult>& results);
  struct Counts {
    std::uint32_t sessions = 0, leases = 0, chunks = 0, reads = 0;
  };
  Counts counts() const;  // Of leases that have not ended, or are still read.
  // Of these, the chunks of one session.
  std::uint32_t ChunksOf(SessionId session) const;

  // --- Data planes, from any thread.

  // The session with this token, if no other data link has it. One link at a time.
  std::optional<SessionId> OpenLink(const SessionToken& token);
  // The link is gone: the peer is dead, or has hung up. Ends the session's leases; the tier finds
  // the session in TakeLost().
  void CloseLink(SessionId session);
  // Whether the session is still there; if not, the link should be closed.
  bool IsOpen(SessionId session) const;
  struct Chunk {
    ChunkKey key;
    SlotId slot;
  };
  // From then until EndRead() the slot keeps this chunk. nullopt if the lease has ended or has no
  // such chunk.
  std::optional<Chunk> BeginRead(SessionId session, LeaseId lease, std::uint32_t index);
  // Whether a read that has begun should be given up soon: its lease has ended.
  bool IsRevoked(LeaseId lease) const;
  void EndRead(LeaseId lease);

  // --- The tier again.
  // Sessions whose link is gone since the last call.
  std::vector<SessionId> TakeLost();

 private:
  struct Session {
    SessionToken token{};
    bool linked = false;
    std::vector<LeaseId> leases;
  };
  struct Lease {
    SessionId session;
    std::vector<JobResult> results;                   // To be reported at the end.
    std::unordered_map<std::uint32_t, Chunk> chunks;  // By index.
    TimePoint expires_at, dies_at;
    std::uint32_t reads = 0;
    bool revoked = false;
  };
  using Leases = std::unordered_map<LeaseId, Lease>;
  void Revoke(Leases::iterator lease) TERRACE_REQUIRES(mutex_);
  void RevokeAll(Session& session) TERRACE_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::unordered_map<SessionId, Session> sessions_ TERRACE_GUARDED_BY(mutex_);
  std::map<SessionToken, SessionId> by_token_ TERRACE_GUARDED_BY(mutex_);
  Leases leases_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_map<SessionId, std::uint32_t> chunks_of_ TERRACE_GUARDED_BY(mutex_);  // None if 0.
  std::vector<JobResult> ended_ TERRACE_GUARDED_BY(mutex_);
  std::vector<SessionId> lost_ TERRACE_GUARDED_BY(mutex_);
  std::uint64_t next_lease_ TERRACE_GUARDED_BY(mutex_) = 1;
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
