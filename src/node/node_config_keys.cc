#include "node/node_config_keys.h"

#include <limits>

#include "node/metrics_server.h"
#include "terrace/eviction_policy.h"

namespace terrace {
namespace {

// What a file offset or a mapping's length can be.
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxTiers = 16;
constexpr std::uint64_t kMaxThreads = 64;

bool IsListenAddressOrEmpty(std::string_view text) {
  return text.empty() || ParseListenAddress(text).has_value();
}

constexpr std::string_view kEvictionPolicies[] = {"lru", "arc", "s3fifo", "sieve"};

constexpr std::string_view kHugePages[] = {"off", "transparent", "explicit"};

constexpr Key<NodeConfig> kNodeKeys[] = {
    {{.name = "cpu_bytes_to_use",
      .what = "the size of the host tier, for all ranks together",
      .unit = "bytes",
      .required = true,
      .min = 1,
      .max = kMaxBytes,
      .example = R"("8GiB")"},
     [](NodeConfig& config) -> Field { return &config.cpu_bytes_to_use; }},
    {{.name = "huge_pages",
      .what =
          "the pages of the host tier: ordinary ones, huge ones where the kernel finds them, or "
          "huge ones reserved for it",
      .choices = kHugePages,
      .example = R"("transparent")"},
     [](NodeConfig& config) -> Field { return &config.huge_pages; }},
    {{.name = "prefault_threads",
      .what = "threads that touch the host tier's memory in the background from the start; with 0 "
              "each page is taken at its first use",
      .max = kMaxThreads,
      .example = "4"},
     [](NodeConfig& config) -> Field { return &config.prefault_threads; }},
    {{.name = "lock_memory",
      .what = "whether the host tier's memory is never swapped out",
      .example = "true"},
     [](NodeConfig& config) -> Field { return &config.lock_memory; }},
    {{.name = "eviction_policy",
      .what = "which chunk leaves the host tier when room is needed",
      .choices = kEvictionPolicies,
      .more_choices = EvictionPolicyNames,
      .example = R"("lru")"},
     [](NodeConfig& config) -> Field { return &config.eviction_policy; }},
    {{.name = "store_threshold",
      .what = "from which offer on a chunk is stored: 2 keeps out what is never asked for twice; "
              "0 and 1 store everything",
      .unit = "offers",
      .max = 1'000'000,
      .example = "2"},
     [](NodeConfig& config) -> Field { return &config.store_threshold; }},
    {{.name = "max_tracker_size",
      .what = "how many chunks' offers are counted, if store_threshold is at least 2",
      .unit = "chunks",
      .min = 1,
      .max = 1'000'000'000,
      .example = "64000"},
     [](NodeConfig& config) -> Field { return &config.max_tracker_size; }},
    {{.name = "tokens_per_chunk",
      .what = "how much of a prompt one chunk holds, for engines that leave the choice to Terrace",
      .unit = "tokens",
      .min = 1,
      .max = 65536,
      .example = "64"},
     [](NodeConfig& config) -> Field { return &config.tokens_per_chunk; }},
    {{.name = "offload_prompt_only",
      .what = "whether only chunks of prompts are kept, and none of what the model generates",
      .example = "true"},
     [](NodeConfig& config) -> Field { return &config.offload_prompt_only; }},
    {{.name = "promotion_timeout_ms",
      .what = "how long a request waits for a chunk on its way from a tier before it computes it "
              "instead",
      .unit = "milliseconds",
      .min = 1,
      .max = 3'600'000,
      .example = "10000"},
     [](NodeConfig& config) -> Field { return &config.promotion_timeout_ms; }},
    {{.name = "lookup_timeout_ms",
      .what = "how long a request is told to wait, for whatever reason, before it computes",
      .unit = "milliseconds",
      .min = 1,
      .max = 3'600'000,
      .example = "30000"},
     [](NodeConfig& config) -> Field { return &config.lookup_timeout_ms; }},
    {{.name = "promoting_slots_percent",
      .what = "how much of the host tier chunks on their way from tiers may take at a time; other "
              "requests wait for theirs",
      .unit = "percent",
      .min = 1,
      .max = 100,
      .example = "50"},
     [](NodeConfig& config) -> Field { return &config.promoting_slots_percent; }},
    {{.name = "cascading_slots_percent",
      .what =
          "how much of the host tier one tier may be reading at a time; further chunks wait for "
          "their turn, and can be evicted meanwhile",
      .unit = "percent",
      .min = 1,
      .max = 100,
      .example = "50"},
     [](NodeConfig& config) -> Field { return &config.cascading_slots_percent; }},
    {{.name = "tier_poll_interval_s",
      .what = "how often the control thread looks at tiers that serve peers, if nothing wakes it "
              "sooner, or up to 0.02 once nothing has happened for a while; with 0 there is no "
              "such thread, and peers are served once a step",
      .unit = "seconds",
      .max = 60,
      .example = "0.001"},
     [](NodeConfig& config) -> Field { return &config.tier_poll_interval_s; }},
    {{.name = "control_thread",
      .what = "the control thread, which serves peers between the engine's steps",
      .example = R"({"priority": "realtime"})"},
     [](NodeConfig& config) -> Field { return &config.control_thread; }},
    {{.name = "enable_kv_events",
      .what = "whether events of stored and removed chunks are recorded; they pile up if the "
              "engine never takes them",
      .example = "false"},
     [](NodeConfig& config) -> Field { return &config.enable_kv_events; }},
    {{.name = "metrics_listen",
      .what =
          "where metrics are served over HTTP, to anybody who can connect there; empty: nowhere",
      .example = R"("127.0.0.1:9464")",
      .form = "host:port",
      .pattern = R"(^$|^(\[[0-9A-Fa-f:.]+\]|[!-9;-Z\\^-~]+):[0-9]{1,5}$)",
      .has_form = IsListenAddressOrEmpty},
     [](NodeConfig& config) -> Field { return &config.metrics_listen; }},
    {{.name = "secondary_tiers",
      .what = "the tiers behind the host tier, first asked first; each file tier has a directory "
              "of its own",
      .max = kMaxTiers,
      .example = R"([{"type": "file", "root_dir": "/var/cache/terrace"}])"},
     [](NodeConfig& config) -> Field { return &config.secondary_tiers; }},
};

constexpr std::string_view kPriorities[] = {"normal", "high", "realtime"};

constexpr Key<ControlThreadConfig> kControlThreadKeys[] = {
    {{.name = "priority",
      .what = "what it is given before the engine's threads, if the system allows it: nothing, the "
              "first turn (nice -10), or every turn (SCHED_RR)",
      .choices = kPriorities,
      .example = R"("high")"},
     [](ControlThreadConfig& control) -> Field { return &control.priority; }},
};

}  // namespace

std::span<const Key<NodeConfig>> NodeKeys() { return kNodeKeys; }
std::span<const Key<ControlThreadConfig>> ControlThreadKeys() { return kControlThreadKeys; }

}  // namespace terrace
