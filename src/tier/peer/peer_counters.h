// What a peer tier counts, for metrics and for people.
#pragma once

#include <cstdint>

namespace terrace {

// Guarded by the manager's lock, as the rest of the tier is.
struct PeerCounters {
  // As an asker.
  std::uint64_t lookups = 0;         // Questions sent.
  std::uint64_t asked_chunks = 0;    // In them.
  std::uint64_t found_chunks = 0;    // Of these, those that the holder had.
  std::uint64_t fetched_chunks = 0;  // Read, verified and ready.
  std::uint64_t gone_chunks = 0;     // Promised, and not there when they were read.
  std::uint64_t corrupt_chunks = 0;  // What came was not that chunk.
  std::uint64_t lost_chunks = 0;     // The link went in the middle.
  std::uint64_t failures = 0;        // Of a peer: it was silent, said nonsense, or went.
  std::uint64_t refusals = 0;        // A peer said no to our hello.
  std::uint64_t restarts = 0;        // A peer was another instance than before.
  std::uint64_t overdue_fetches = 0;
  // As a holder.
  std::uint64_t sessions_opened = 0;
  std::uint64_t sessions_refused = 0;
  std::uint64_t sessions_expired = 0;  // Not heard of, or their data link went.
  std::uint64_t sessions_silent = 0;   // Of these, the former.
  std::uint64_t bad_messages = 0;
  std::uint64_t stale_messages = 0;  // Of sessions that had ended.
  std::uint64_t served_lookups = 0;
  std::uint64_t served_chunks = 0;    // Promised to peers.
  std::uint64_t overdue_lookups = 0;  // Answered with what was known when their time was over.
  std::uint64_t expired_leases = 0;
  // Limits.
  std::uint64_t refused_lookups = 0;    // Too many of one asker were open.
  std::uint64_t deferred_lookups = 0;   // Their asker has its share of host memory already.
  std::uint64_t over_share_chunks = 0;  // Of questions for more than that share.
  std::uint64_t refused_transfers = 0;  // Too many were kept.
  std::uint64_t parked_chunks = 0;      // Kept for a decoder.
  std::uint64_t unclaimed_chunks = 0;   // Of these, those that nobody came for.
};

}  // namespace terrace
