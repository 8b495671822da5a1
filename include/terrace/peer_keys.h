// The keys of a group of peers.
#pragma once

#include <string>

#include "terrace/export.h"

namespace terrace {

// One pair for all nodes of a group (CURVE, as Z85 text of 40 characters): `public_key` stands in
// their configurations, the secret one in the file that secret_key_file names. Who has the secret
// key may read every chunk of the group.
struct PeerKeyPair {
  std::string public_key;
  std::string secret_key;
};

// A new pair, of the system's random numbers.
TERRACE_API PeerKeyPair MakePeerKeyPair();

}  // namespace terrace
