#include "tier/peer/lease_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

void LeaseTable::AddSession(SessionId session, const SessionToken& token) {
  MutexLock lock(mutex_);
  const bool added = sessions_.try_emplace(session, Session{token, false, {}}).second &&
                     by_token_.try_emplace(token, session).second;
  TERRACE_CHECK(added, "a session is added twice");
}

void LeaseTable::RemoveSession(SessionId session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  RevokeAll(found->second);
  by_token_.erase(found->second.token);
  sessions_.erase(found);
}

LeaseId LeaseTable::Add(SessionId session, std::span<const ChunkKey> keys,
                        std::span<const TransferJob> jobs, TimePoint now) {
  Lease lease;
  lease.session = session;
  lease.expires_at = now + options_.lease_time;
  lease.dies_at = now + options_.life_max;
  for (const TransferJob& job : jobs) {
    JobResult result{job.id, std::vector<CopyOutcome>(job.keys.size(), CopyOutcome::kOk), 0};
    result.started_at = job.submitted_at;
    lease.results.push_back(std::move(result));
    for (std::size_t i = 0; i < job.keys.size(); ++i) {
      const auto key = std::find(keys.begin(), keys.end(), job.keys[i]);
      TERRACE_CHECK(key != keys.end(), "a lease of a chunk that nobody asked for");
      lease.chunks.emplace(static_cast<std::uint32_t>(key - keys.begin()),
                           Chunk{job.keys[i], job.slots[i]});
    }
  }
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  TERRACE_CHECK(found != sessions_.end(), "a lease for no session");
  const LeaseId id(next_lease_++);
  const auto added = leases_.emplace(id, std::move(lease)).first;
  chunks_of_[session] += static_cast<std::uint32_t>(added->second.chunks.size());
  found->second.leases.push_back(id);
  if (closed_) Revoke(added);
  return id;
}

bool LeaseTable::Renew(SessionId session, LeaseId lease, TimePoint now) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session || found->second.revoked) {
    return false;
  }
  found->second.expires_at = std::min(now + options_.lease_time, found->second.dies_at);
  return true;
}

bool LeaseTable::Release(SessionId session, LeaseId lease) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session || found->second.revoked) {
    return false;
  }
  Revoke(found);
  return true;
}

std::uint32_t LeaseTable::Expire(TimePoint now) {
  MutexLock lock(mutex_);
  std::uint32_t expired = 0;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    const auto next = std::next(lease);
    if (!lease->second.revoked && now >= lease->second.expires_at) {
      Revoke(lease);
      ++expired;
    }
    lease = next;
  }
  return expired;
}

void LeaseTable::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (auto& [id, session] : sessions_) RevokeAll(session);
}

void LeaseTable::TakeEnded(std::vector<JobResult>& results) {
  MutexLock lock(mutex_);
  std::move(ended_.begin(), ended_.end(), std::back_inserter(results));
  ended_.clear();
}

LeaseTable::Counts LeaseTable::counts() const {
  MutexLock lock(mutex_);
  Counts counts;
  counts.sessions = static_cast<std::uint32_t>(sessions_.size());
  counts.leases = static_cast<std::uint32_t>(leases_.size());
  for (const auto& [id, lease] : leases_) {
    counts.chunks += static_cast<std::uint32_t>(lease.chunks.size());
    counts.reads += lease.reads;
  }
  return counts;
}

std::uint32_t LeaseTable::ChunksOf(SessionId session) const {
  MutexLock lock(mutex_);
  const auto found = chunks_of_.find(session);
  return found == chunks_of_.end() ? 0 : found->second;
}

std::optional<SessionId> LeaseTable::OpenLink(const SessionToken& token) {
  MutexLock lock(mutex_);
  const auto found = by_token_.find(token);
  if (found == by_token_.end() || closed_) return std::nullopt;
  Session& session = sessions_.at(found->second);
  if (std::exchange(session.linked, true)) return std::nullopt;
  return found->second;
}

void LeaseTable::CloseLink(SessionId session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  found->second.linked = false;
  RevokeAll(found->second);
  lost_.push_back(session);
}

bool LeaseTable::IsOpen(SessionId session) const {
  MutexLock lock(mutex_);
  return !closed_ && sessions_.contains(session);
}

std::optional<LeaseTable::Chunk> LeaseTable::BeginRead(SessionId session, LeaseId lease,
                                                       std::uint32_t index) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session || found->second.revoked) {
    return std::nullopt;
  }
  const auto chunk = found->second.chunks.find(index);
  if (chunk == found->second.chunks.end()) return std::nullopt;
  ++found->second.reads;
  return chunk->second;
}

bool LeaseTable::IsRevoked(LeaseId lease) const {
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  return found == leases_.end() || found->second.revoked;
}

void LeaseTable::EndRead(LeaseId lease) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  TERRACE_CHECK(found != leases_.end() && found->second.reads > 0,
                "a read ends that did not begin");
  --found->second.reads;
  if (found->second.revoked) Revoke(found);
}

std::vector<SessionId> LeaseTable::TakeLost() {
  MutexLock lock(mutex_);
  return std::exchange(lost_, {});
}

// Marks it, and reports its jobs once nobody reads; called again by the last reader.
void LeaseTable::Revoke(Leases::iterator lease) {
  if (!std::exchange(lease->second.revoked, true)) {
    if (const auto session = sessions_.find(lease->second.session); session != sessions_.end()) {
      std::erase(session->second.leases, lease->first);
    }
  }
  if (lease->second.reads > 0) return;
  std::move(lease->second.results.begin(), lease->second.results.end(), std::back_inserter(ended_));
  if (const auto of = chunks_of_.find(lease->second.session);
      (of->second -= static_cast<std::uint32_t>(lease->second.chunks.size())) == 0) {
    chunks_of_.erase(of);
  }
  leases_.erase(lease);
}

void LeaseTable::RevokeAll(Session& session) {
  for (const LeaseId lease : std::vector<LeaseId>(session.leases)) Revoke(leases_.find(lease));
}

}  // namespace terrace
