// The configuration of a node: one JSON schema for C++, command line, Python and vLLM.
//
// Key names are those that vLLM's offloading connector uses, where it has the same thing. An
// unknown or wrong key is an error that names it; all faults are reported at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/result.h"
#include "terrace/tier_config.h"

namespace terrace {

struct TierConfig {
  enum class Type : std::uint8_t { kMemory, kFile, kPeer, kPlugin, kCustom };
  Type type = Type::kFile;
  MemoryTierConfig memory;  // If kMemory.
  FileTierConfig file;      // If kFile.
  PeerTierConfig peer;      // If kPeer.
  PluginTierConfig plugin;  // If kPlugin.
  CustomTierConfig custom;  // If kCustom.
  // Of every type. Stores that are left out are lost to this tier alone.
  std::string backpressure = "off";  // "off", "throttle" or "drop".
  std::uint32_t backpressure_ms_per_mib = 10;
};

// The thread that serves peers between the engine's steps.
struct ControlThreadConfig {
  // "normal", "high" or "realtime": what it is given if the system allows it; if not, the node
  // starts all the same and says so in the log. See ThreadPriority.
  std::string priority = "high";
};

struct NodeConfig {
  std::uint64_t cpu_bytes_to_use = 0;   // Size of the host tier; required.
  std::string huge_pages = "off";       // Of the host tier: "off", "transparent" or "explicit".
  std::uint32_t prefault_threads = 1;   // That touch host memory in the background; 0: first use.
  bool lock_memory = false;             // Never swap out host memory.
  std::string eviction_policy = "lru";  // See eviction_policy.h.
  std::uint32_t store_threshold = 0;    // Store a chunk from its n-th offer on.
  std::uint32_t max_tracker_size = 64'000;
  std::uint32_t tokens_per_chunk = 64;  // For engines that leave the choice to Terrace.
  bool offload_prompt_only = true;
  std::uint32_t promotion_timeout_ms =
      10'000;                                // After that a chunk on its way from a tier is a miss.
  std::uint32_t lookup_timeout_ms = 30'000;  // A request that waited that long computes.
  // Of the host tier's slots: reserved for promotions, and read by the cascades to one tier.
  std::uint32_t promoting_slots_percent = 50;
  std::uint32_t cascading_slots_percent = 50;
  double tier_poll_interval_s = 0.001;  // Of the control thread; 0: none.
  ControlThreadConfig control_thread;
  bool enable_kv_events =
      false;  // Record events for OffloadingManager::TakeEvents(), which somebody must then call.
  std::string metrics_listen;  // host:port of /metrics, see docs/metrics.md; empty: none.
  std::vector<TierConfig> secondary_tiers;  // In order of priority.
};

// kInvalidArgument: every fault on a line of its own, each with its path
// (`secondary_tiers[0].root_dir`).
TERRACE_API Result<NodeConfig> ParseNodeConfig(std::string_view json);
// The same for a file; kNotFound or kPermissionDenied if it cannot be read.
TERRACE_API Result<NodeConfig> LoadNodeConfig(const std::string& path);

// The JSON Schema (draft 2020-12) of what ParseNodeConfig() takes, indented.
TERRACE_API std::string NodeConfigSchema();

}  // namespace terrace
