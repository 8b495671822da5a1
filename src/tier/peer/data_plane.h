// How the bytes of chunks come from a peer.
//
// The asker reads, and only the asker writes into its memory. No peer is ever told an address of
// ours, so a late or hostile one cannot write into a slot that has another chunk by now; there is
// nothing to quarantine on its behalf. The holder only pins (lease_table.h). What the asker reads
// too late is another chunk's bytes, which the record's key and checksum tell.
//
// A link is one asker's connection to one holder's plane. Both sides of a plane live in one object;
// a node has one of each kind that its build and its configuration allow.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_host.h"
#include "terrace/types.h"
#include "tier/peer/lease_table.h"

namespace terrace {

// In order of preference.
enum class PlaneKind : std::uint8_t { kSharedMemory, kUcx, kTcp };
inline constexpr std::size_t kPlaneKindCount = 3;

constexpr std::string_view PlaneName(PlaneKind plane) {
  switch (plane) {
    case PlaneKind::kSharedMemory:
      return "shared_memory";
    case PlaneKind::kUcx:
      return "ucx";
    case PlaneKind::kTcp:
      return "tcp";
  }
  return "?";
}

// The asker's name for a link; never used twice.
using DataLinkId = StrongId<struct DataLinkIdTag, std::uint64_t>;

struct ChunkRead {
  std::uint64_t tag = 0;  // The caller's; unique among the link's reads under way.
  LeaseId lease;
  std::uint32_t index = 0;  // Of the chunk in the lease.
  ChunkKey key;             // What must come.
  SlotId slot;              // Where it goes. The plane's to write until the read has ended.
};

enum class ReadEnd : std::uint8_t {
  kOk,       // Every byte is in the slot and was verified: identity, key, size, checksum.
  kGone,     // The holder has it no more, or the lease has ended.
  kCorrupt,  // What came is not that chunk.
  kLost,     // The link was closed or is lost.
};

struct DataEvent {
  enum class Kind : std::uint8_t { kOpened, kLost, kRead };
  DataLinkId link;
  Kind kind = Kind::kOpened;
  std::uint64_t tag = 0;       // If kRead.
  ReadEnd end = ReadEnd::kOk;  // If kRead.
  std::string why;             // If kLost, for a person.
};

// Thread-safe. Nothing here blocks but Shutdown(): threads of the plane's own do the work, or, in a
// simulation, whoever moves the clock.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual PlaneKind kind() const = 0;

  // Holder: what an asker needs to open a link, at most 4096 bytes; for Open() of the other side.
  // Constant.
  virtual std::string Offer() const = 0;

  // Asker. Opens a link to the holder at `host`, showing `token`. Ends with one kOpened or one
  // kLost, at `deadline` at the latest. `offer` comes from the network: what is wrong with it is a
  // kLost.
  virtual void Open(DataLinkId link, const std::string& host, const std::string& offer,
                    const SessionToken& token, std::chrono::steady_clock::time_point deadline) = 0;
  // Each read ends with exactly one kRead, also when the link is lost or closed (its kLost comes
  // last). There is no deadline here: the caller closes the link, and then all of them end
  // promptly, however the holder behaves.
  // Pre: the link was opened and is not closed.
  virtual void Read(DataLinkId link, std::span<const ChunkRead> reads) = 0;
  // Ends the link. A kLost follows if there was none, behind the ends of its reads.
  virtual void Close(DataLinkId link) = 0;
  // Appends what happened since the last call. Cost when there is nothing: one atomic load.
  virtual void Take(std::vector<DataEvent>& events) = 0;
  // Holder: connections that did not become a link, since it began.
  virtual std::uint64_t refused_connections() const { return 0; }

  // Closes all links of both sides, joins the threads. Idempotent. False if something still runs at
  // the end of `timeout`.
  [[nodiscard]] virtual bool Shutdown(std::chrono::milliseconds timeout) = 0;
};

struct DataPlaneContext {
  TierHost* host = nullptr;      // Outlives the plane.
  LeaseTable* leases = nullptr;  // The holder's side; outlives the plane.
  std::string listen_host = "127.0.0.1";
  std::uint16_t listen_port = 0;  // Of the TCP plane; 0: any.
  std::uint32_t links_max = 64;   // That are served at a time; more are refused.
  // After an event was queued, and after the holder's side ended a read or lost a link. From any
  // thread; without a lock held.
  std::function<void()> on_event;
};

}  // namespace terrace
