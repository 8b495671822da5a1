#include "terrace/peer_keys.h"

#include <zmq.h>

#include <array>

#include "base/check.h"

namespace terrace {

PeerKeyPair MakePeerKeyPair() {
  std::array<char, 41> public_key, secret_key;  // With the NUL behind it.
  TERRACE_CHECK(zmq_curve_keypair(public_key.data(), secret_key.data()) == 0,
                "libzmq was built without CURVE");
  return {public_key.data(), secret_key.data()};
}

}  // namespace terrace
