// Which other node a request's chunks may be fetched from, and for whom they are kept.
//
// A router or the user says so, request by request; Terrace never picks among nodes that it was not
// told of. The words are those of vLLM's `kv_transfer_params`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "terrace/export.h"
#include "terrace/result.h"

namespace terrace {

// Where a node's peer tier listens.
struct PeerAddress {
  std::string host;
  std::uint16_t port = 0;
  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

// A plain value.
struct PeerRoute {
  enum class SourceKind : std::uint8_t {
    kHolder,     // It is asked what it has, and that is fetched.
    kPrefiller,  // It computes this very prompt: what it does not have yet is waited for.
  };
  struct Source {
    SourceKind kind = SourceKind::kHolder;
    PeerAddress address;
    // Names the hand-over on both nodes; needed by kPrefiller.
    std::string transfer_id;
  };
  std::optional<Source> source;
  // This node computes the prompt for another one, which will ask for it by this name: what the
  // request stores is kept until then, or for the tier's park_timeout_ms. Empty: it does not.
  std::string keep_for_transfer;
};

// Reads a JSON object in the words of vLLM's kv_transfer_params:
//   {"remote_kv_source": {"kv_request_id": "r1", "remote_host": "10.0.0.7", "remote_port": 5710}}
//   {"remote_prefiller": {... the same ...}}      wins if both are there
//   {"remote_decoder": {"kv_request_id": "r1"}}   together with remote_kv_source or alone
// Other keys are other people's and ignored. kInvalidArgument: every fault on a line of its own,
// with its path; a route that is half right is none.
TERRACE_API Result<PeerRoute> ParseTransferParams(std::string_view json);

}  // namespace terrace
