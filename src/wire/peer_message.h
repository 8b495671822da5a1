// What two nodes say to each other about chunks, as bytes: msgpack maps of named fields.
//
// The asker connects and says Hello; the holder answers Welcome or Refusal. Then the asker asks
// (Lookup, answered by Answer), keeps what it was promised (Renew) and gives it back (Release). The
// bytes of chunks go another way (peer_data.h). docs/formats.md has the fields.
//
// Pure functions, no I/O, thread-safe. What comes from the network is bounded before anything is
// allocated for it: a message by kPeerMessageBytesMax, its lists by the constants below, its
// nesting by its form.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "terrace/cache_identity.h"
#include "terrace/chunk_key.h"
#include "terrace/result.h"

namespace terrace {

// Changes when an old node would misunderstand a new one. New fields that may be ignored change
// nothing.
inline constexpr std::uint32_t kPeerProtocolVersion = 1;

inline constexpr std::size_t kPeerMessageBytesMax = 64 << 10;
inline constexpr std::size_t kPeerKeysMax = 256;     // Of a Lookup.
inline constexpr std::size_t kPeerLeasesMax = 1024;  // Of a Renew or Release.
inline constexpr std::size_t kPeerTextMax = 256;     // Bytes of a text.
inline constexpr std::size_t kPeerOfferMax = 4096;   // Bytes of a data plane's offer.

// Drawn at each start of a node: what was said to another instance is void.
using InstanceId = std::array<std::uint8_t, 16>;

// Asker: who it is, and whose chunks it can use.
struct PeerHello {
  std::uint32_t version = kPeerProtocolVersion;
  InstanceId instance{};
  Digest identity{};           // Decides.
  CacheIdentityFields fields;  // To name what differs.
};

// Holder: yes.
struct PeerWelcome {
  struct Plane {
    std::uint8_t kind = 0;  // PlaneKind; unknown ones are ignored.
    std::string offer;      // For that plane's Open().
  };
  std::uint32_t version = kPeerProtocolVersion;
  InstanceId instance{};
  std::array<std::uint8_t, 16> token{};  // Opens a data link.
  std::uint32_t lease_ms = 0;            // >= 1
  std::vector<Plane> planes;             // At most 8.
};

// Holder: no, and the conversation is over. Also an answer to what is no Hello but should be: then
// `field` is "session".
struct PeerRefusal {
  InstanceId instance{};
  std::string field;   // Of the hello: "version", "model", ..., "sessions".
  std::string theirs;  // The holder's value.
  std::string yours;   // The asker's.
};

// Asker: do you have these?
struct PeerLookup {
  std::uint64_t id = 0;          // Of the asker's choice, new for each.
  std::string transfer_id;       // A hand-over that they belong to; may be empty.
  bool wait = false;             // For the one who computes them under that transfer_id.
  std::uint32_t timeout_ms = 0;  // When the asker stops waiting.
  std::vector<ChunkKey> keys;    // 1 to kPeerKeysMax
};

// Asker: the answer does not matter any more.
struct PeerCancel {
  std::uint64_t id = 0;
};

// Holder: those with a bit are pinned under the lease, by their index in the question.
struct PeerAnswer {
  std::uint64_t id = 0;
  std::uint64_t lease = 0;            // 0: none is there.
  std::vector<std::uint8_t> present;  // A bit each, lowest first; (keys + 7) / 8 bytes.

  bool Has(std::size_t index) const {
    return index / 8 < present.size() && (present[index / 8] >> index % 8 & 1) != 0;
  }
};

// Asker: still alive, and still wants these.
struct PeerRenew {
  std::vector<std::uint64_t> leases;
};
// Asker: does not need these any more.
struct PeerRelease {
  std::vector<std::uint64_t> leases;
};
// Either: the conversation ends here.
struct PeerBye {
  std::string why;
};

using PeerMessage = std::variant<PeerHello, PeerWelcome, PeerRefusal, PeerLookup, PeerCancel,
                                 PeerAnswer, PeerRenew, PeerRelease, PeerBye>;

// Pre: within the bounds above.
std::vector<std::uint8_t> EncodePeerMessage(const PeerMessage& message);

// kCorrupt: not a message; says which field is wrong. kIncompatible: a kind of message that this
// version does not know.
Result<PeerMessage> DecodePeerMessage(std::span<const std::uint8_t> bytes);

}  // namespace terrace
