// Where messages to and from other nodes pass. It knows bytes, links and who called; what they mean
// is its user's.
//
// Two ways, each with one side that dialled: to a holder that we dialled (a link), and to an asker
// that called us (a caller). Nothing blocks and nothing is promised: a message may be lost with its
// link, and its user has a deadline for each answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/peer_route.h"
#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace {

// A connection that we asked for; never used twice.
using LinkId = StrongId<struct LinkIdTag, std::uint64_t>;

struct StrangerCounts {
  // Silent, too slow, of another protocol; without keys where they are wanted, or the reverse.
  std::uint64_t unknown = 0;
  std::uint64_t wrong_keys = 0;
};

// Thread-compatible: used under the manager's lock.
class ControlNetwork {
 public:
  struct Event {
    enum class Kind : std::uint8_t {
      kMessage,   // From the holder of `link`.
      kLinkLost,  // It will carry nothing more; `why` for a person. Hang up.
      kCall,      // A message from `caller`.
    };
    Kind kind = Kind::kMessage;
    LinkId link;
    std::string caller;  // Opaque bytes; what calls again after a cut is another caller.
    std::vector<std::uint8_t> bytes;
    std::string why;
  };

  virtual ~ControlNetwork() = default;

  // The port that it listens on.
  virtual std::uint16_t port() const = 0;
  // Readable (poll(2)) while there may be an event; -1: look again by a timer. Constant.
  virtual int descriptor() const = 0;

  // A link to the holder there; it connects by itself. An error only if that can never be.
  virtual Result<LinkId> Dial(const PeerAddress& address) = 0;
  virtual void HangUp(LinkId link) = 0;

  // False if it cannot be sent (now): the other side does not read, or is gone.
  [[nodiscard]] virtual bool Send(LinkId link, std::span<const std::uint8_t> bytes) = 0;
  [[nodiscard]] virtual bool Reply(const std::string& caller,
                                   std::span<const std::uint8_t> bytes) = 0;

  // The next thing that happened; nullopt if there is nothing (more).
  virtual std::optional<Event> Next() = 0;
  // There may be more, and the caller stops here: the descriptor stays readable.
  virtual void KeepReady() = 0;

  // How often it let nobody in for a while, since too many were there.
  virtual std::uint64_t times_deaf() const { return 0; }
  // Those that came by its port and got no further, since it began.
  virtual StrangerCounts strangers() const { return {}; }
};

}  // namespace terrace
