// What each kind of tier can be told. Part of a node's configuration (node_config.h), which checks
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace {

class SecondaryTier;
class TierHost;

// A tier that keeps chunks in this process, outside the host tier. For tests and for tier authors
// to read.
struct MemoryTierConfig {
  std::uint64_t bytes = 0;  // >= 1; oldest chunks go first.
};

// A tier on a file system: one chunk per file under `root_dir`.
struct FileTierConfig {
  std::string root_dir;
  // "records": our own, each verified when it is loaded. "vllm": root_dir is a directory that
  // vLLM's `fs` tier made for one model and rank ("<base path>_r<rank>"), to share it; of a chunk
  // there only the length can be verified.
  std::string layout = "records";
  std::uint32_t n_read_threads = 2;   // >= 1; loads first, then stores.
  std::uint32_t n_write_threads = 2;  // >= 1; stores first, then loads.
  bool direct_io = true;  // O_DIRECT where the file system takes it; else through the page cache.
};

// A tier whose chunks are in other nodes' host memory, and that serves them this node's.
struct PeerTierConfig {
  std::string host = "127.0.0.1";  // Where it listens: an address, or 0.0.0.0 for all of them.
  std::uint32_t port = 5710;       // 0: any that is free, for tests.
  std::uint32_t data_port = 0;     // Of the TCP data plane; 0: any that is free.
  // host:port of nodes to ask for requests that name none.
  std::vector<std::string> peers;
  std::string data_plane = "auto";  // "auto", "shared_memory", "ucx" or "tcp".
  // CURVE, as Z85 text: one pair for the whole group. Both or neither.
  std::string public_key;
  std::string secret_key_file;
  // Listen on more than loopback without keys: anybody who can connect may read every chunk.
  bool allow_unauthenticated_network = false;
  std::uint32_t connect_timeout_ms = 1'000;  // For connection and hello.
  std::uint32_t lookup_timeout_ms = 1'000;   // From question to answer.
  std::uint32_t hedge_ms =
      20;  // How long an answer of one of several peers is waited for after another's.
  std::uint32_t fetch_timeout_ms =
      10'000;                      // From the first chunk's request to the last one's bytes.
  std::uint32_t lease_ms = 5'000;  // How long this node keeps what it promised, unless renewed.
  std::uint32_t park_timeout_ms =
      30'000;                    // How long chunks are kept for a decoder that does not come.
  std::uint32_t max_peers = 64;  // Nodes that are served at a time.
};

// A JSON object as text.
struct JsonObject {
  std::string text = "{}";
};

// A tier whose code is in a shared library (tier_plugin.h).
struct PluginTierConfig {
  std::string library;  // A path; without a slash, a name that the dynamic linker looks for.
  JsonObject options;   // The plug-in's own.
};

// A tier that the program itself makes; no file can ask for one.
struct CustomTierConfig {
  std::string type;                             // As its SecondaryTier::type(): for metrics.
  LoadSource load_source = LoadSource::kOther;  // As its SecondaryTier::load_source().
  // Called once, when the node starts. The host outlives the tier.
  std::function<Result<std::unique_ptr<SecondaryTier>>(TierHost& host)> make;
};

}  // namespace terrace
