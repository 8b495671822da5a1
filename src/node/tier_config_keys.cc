// The keys of each kind of tier.
#include <algorithm>
#include <limits>

#include "node/metrics_server.h"
#include "node/node_config_keys.h"

namespace terrace {
namespace {

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxThreads = 64;
constexpr std::uint64_t kMaxPeers = 1024;
constexpr std::uint64_t kMaxTimeoutMs = 3'600'000;

// Of somebody to connect to.
bool IsPeerAddress(std::string_view text) {
  const auto address = ParseListenAddress(text);
  return address.has_value() && address->port.find_first_not_of('0') != std::string::npos;
}

bool IsHost(std::string_view text) {
  return text.find_first_of("[]/ ") == text.npos &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

constexpr std::string_view kBackpressurePolicies[] = {"off", "throttle", "drop"};

// Of every kind of tier.
constexpr Key<TierConfig> kBackpressureKey = {
    {.name = "backpressure",
     .what =
         "what of the stores is left out while the tier is slower than backpressure_ms_per_mib: "
         "nothing, as much as it is too slow for, or all",
     .choices = kBackpressurePolicies,
     .example = R"("throttle")"},
    [](TierConfig& tier) -> Field { return &tier.backpressure; }};
constexpr Key<TierConfig> kBackpressureLimitKey = {
    {.name = "backpressure_ms_per_mib",
     .what = "how long the tier may take to store one MiB, if backpressure is not off",
     .unit = "milliseconds",
     .min = 1,
     .max = 1'000'000,
     .example = "10"},
    [](TierConfig& tier) -> Field { return &tier.backpressure_ms_per_mib; }};

constexpr Key<TierConfig> kCommonKeys[] = {kBackpressureKey, kBackpressureLimitKey};

constexpr Key<TierConfig> kMemoryKeys[] = {
    {{.name = "bytes",
      .what = "how much the tier holds before its oldest chunks go",
      .unit = "bytes",
      .required = true,
      .min = 1,
      .max = kMaxBytes,
      .example = R"("512MiB")"},
     [](TierConfig& tier) -> Field { return &tier.memory.bytes; }},
    kBackpressureKey,
    kBackpressureLimitKey,
};

constexpr std::string_view kFileLayouts[] = {"records", "vllm"};

constexpr Key<TierConfig> kFileKeys[] = {
    {{.name = "root_dir",
      .what = "a directory for chunks",
      .required = true,
      .min = 1,
      .example = R"("/var/cache/terrace")"},
     [](TierConfig& tier) -> Field { return &tier.file.root_dir; }},
    {{.name = "layout",
      .what = "what is in the directory: records, each of which is verified when it is loaded, or "
              "the files of vLLM's fs tier, of which only the length can be",
      .choices = kFileLayouts,
      .example = R"("vllm")"},
     [](TierConfig& tier) -> Field { return &tier.file.layout; }},
    {{.name = "n_read_threads",
      .what = "threads that do loads first, and stores when there are none",
      .min = 1,
      .max = kMaxThreads,
      .example = "2"},
     [](TierConfig& tier) -> Field { return &tier.file.n_read_threads; }},
    {{.name = "n_write_threads",
      .what = "threads that do stores first, and loads when there are none",
      .min = 1,
      .max = kMaxThreads,
      .example = "2"},
     [](TierConfig& tier) -> Field { return &tier.file.n_write_threads; }},
    {{.name = "direct_io",
      .what = "whether to go past the page cache (O_DIRECT) where the file system takes it",
      .example = "true"},
     [](TierConfig& tier) -> Field { return &tier.file.direct_io; }},
    kBackpressureKey,
    kBackpressureLimitKey,
};

constexpr std::string_view kDataPlanes[] = {"auto", "shared_memory", "ucx", "tcp"};

constexpr Key<TierConfig> kPeerKeys[] = {
    {{.name = "host",
      .what = "where the node listens for peers: an address of this machine, or 0.0.0.0 for all of "
              "them",
      .min = 1,
      .example = R"("127.0.0.1")",
      .form = "an address or a host's name, without a port",
      .pattern = R"(^[!-.0-Z\\^-~]+$)",
      .has_form = IsHost},
     [](TierConfig& tier) -> Field { return &tier.peer.host; }},
    {{.name = "port",
      .what = "the port on which it listens; 0 is any that is free",
      .max = 65535,
      .example = "5710"},
     [](TierConfig& tier) -> Field { return &tier.peer.port; }},
    {{.name = "data_port",
      .what = "the port of the TCP data plane; 0 is any that is free",
      .max = 65535,
      .example = "5711"},
     [](TierConfig& tier) -> Field { return &tier.peer.data_port; }},
    {{.name = "peers",
      .what = "the nodes that are asked for requests that name none, each as host:port",
      .max = kMaxPeers,
      .example = R"(["10.0.0.7:5710", "10.0.0.8:5710"])",
      .form = "host:port, with a port above 0",
      .pattern = R"(^(\[[0-9A-Fa-f:.]+\]|[!-9;-Z\\^-~]+):(?!0+$)[0-9]{1,5}$)",
      .has_form = IsPeerAddress},
     [](TierConfig& tier) -> Field { return &tier.peer.peers; }},
    {{.name = "data_plane",
      .what = "how the bytes of chunks travel: the best that both sides have, or only this one",
      .choices = kDataPlanes,
      .example = R"("tcp")"},
     [](TierConfig& tier) -> Field { return &tier.peer.data_plane; }},
    {{.name = "public_key",
      .what = "the public half of the group's pair of CURVE keys, as Z85; empty: peers are neither "
              "authenticated nor is what they say encrypted",
      .example = R"("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7")",
      .form = "40 characters of Z85",
      .pattern = R"(^$|^[-0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#]{40}$)"},
     [](TierConfig& tier) -> Field { return &tier.peer.public_key; }},
    {{.name = "secret_key_file",
      .what = "a file with the secret half, as Z85, that only this user can read",
      .example = R"("/etc/terrace/group.key")"},
     [](TierConfig& tier) -> Field { return &tier.peer.secret_key_file; }},
    {{.name = "allow_unauthenticated_network",
      .what = "whether it may listen on more than this machine without keys, so that anybody who "
              "can connect may read every chunk",
      .example = "true"},
     [](TierConfig& tier) -> Field { return &tier.peer.allow_unauthenticated_network; }},
    {{.name = "connect_timeout_ms",
      .what = "how long the connection to a peer and its greeting may take",
      .unit = "milliseconds",
      .min = 1,
      .max = kMaxTimeoutMs,
      .example = "1000"},
     [](TierConfig& tier) -> Field { return &tier.peer.connect_timeout_ms; }},
    {{.name = "lookup_timeout_ms",
      .what = "how long a peer may take to say what it has",
      .unit = "milliseconds",
      .min = 1,
      .max = kMaxTimeoutMs,
      .example = "1000"},
     [](TierConfig& tier) -> Field { return &tier.peer.lookup_timeout_ms; }},
    {{.name = "hedge_ms",
      .what = "how long one of several peers is waited for after another one has answered",
      .unit = "milliseconds",
      .min = 1,
      .max = kMaxTimeoutMs,
      .example = "20"},
     [](TierConfig& tier) -> Field { return &tier.peer.hedge_ms; }},
    {{.name = "fetch_timeout_ms",
      .what = "how long chunks may take from their request to the last one's arrival",
      .unit = "milliseconds",
      .min = 1,
      .max = kMaxTimeoutMs,
      .example = "10000"},
     [](TierConfig& tier) -> Field { return &tier.peer.fetch_timeout_ms; }},
    {{.name = "lease_ms",
      .what = "how long the node keeps what it has told a peer that it has, unless the peer asks "
              "for longer",
      .unit = "milliseconds",
      .min = 100,
      .max = 60'000,
      .example = "5000"},
     [](TierConfig& tier) -> Field { return &tier.peer.lease_ms; }},
    {{.name = "park_timeout_ms",
      .what = "how long chunks that were computed for another node are kept for it",
      .unit = "milliseconds",
      .min = 1,
      // The manager reports a job after 60 s, whoever still wants it.
      .max = 55'000,
      .example = "30000"},
     [](TierConfig& tier) -> Field { return &tier.peer.park_timeout_ms; }},
    {{.name = "max_peers",
      .what = "how many nodes are served at a time",
      .unit = "nodes",
      .min = 1,
      .max = kMaxPeers,
      .example = "64"},
     [](TierConfig& tier) -> Field { return &tier.peer.max_peers; }},
    kBackpressureKey,
    kBackpressureLimitKey,
};

constexpr Key<TierConfig> kPluginKeys[] = {
    {{.name = "library",
      .what =
          "the shared library with the tier: a path, or without a slash a name that the dynamic "
          "linker looks for",
      .required = true,
      .min = 1,
      .example = R"("/usr/lib/terrace/libmy_tier.so")"},
     [](TierConfig& tier) -> Field { return &tier.plugin.library; }},
    {{.name = "options",
      .what = "what the plug-in itself is told; its keys are its own",
      .example = R"({"max_chunks": 1000})"},
     [](TierConfig& tier) -> Field { return &tier.plugin.options; }},
    kBackpressureKey,
    kBackpressureLimitKey,
};

constexpr TierKind kTierKinds[] = {
    {.name = "memory",
     .alias = {},
     .type = TierConfig::Type::kMemory,
     .what = "keeps chunks in this process, outside the host tier; for tests",
     .keys = kMemoryKeys},
    {.name = "file",
     .alias = "fs",
     .type = TierConfig::Type::kFile,
     .what = "keeps each chunk in a file of its own under a directory",
     .keys = kFileKeys},
    {.name = "peer",
     .alias = "p2p",
     .type = TierConfig::Type::kPeer,
     .what = "fetches chunks from other nodes' host memory, and serves them this node's",
     .keys = kPeerKeys},
    {.name = "plugin",
     .alias = {},
     .type = TierConfig::Type::kPlugin,
     .what = "is made by a shared library",
     .keys = kPluginKeys},
};

}  // namespace

std::span<const Key<TierConfig>> CommonTierKeys() { return kCommonKeys; }
std::span<const TierKind> TierKinds() { return kTierKinds; }

}  // namespace terrace
