// Any bytes as a configuration: the parser neither crashes nor takes what its header forbids, and
// what it says of a fault can be printed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "terrace/eviction_policy.h"
#include "terrace/node_config.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireBounds(const terrace::NodeConfig& config) {
  Require(config.cpu_bytes_to_use >= 1);
  Require(config.tokens_per_chunk >= 1 && config.tokens_per_chunk <= 65536);
  Require(terrace::MakeEvictionPolicy(config.eviction_policy, 1).ok());
  Require(config.secondary_tiers.size() <= 16);
  for (const terrace::TierConfig& tier : config.secondary_tiers) {
    if (tier.type == terrace::TierConfig::Type::kMemory) {
      Require(tier.memory.bytes >= 1);
      continue;
    }
    if (tier.type == terrace::TierConfig::Type::kPlugin) {
      Require(!tier.plugin.library.empty());
      Require(tier.plugin.options.text.starts_with('{'));
      continue;
    }
    Require(!tier.file.root_dir.empty());
    Require(tier.file.root_dir.find('\0') == std::string::npos);
    Require(tier.file.layout == "records" || tier.file.layout == "vllm");
    Require(tier.file.n_read_threads >= 1 && tier.file.n_read_threads <= 64);
    Require(tier.file.n_write_threads >= 1 && tier.file.n_write_threads <= 64);
  }
}

void RequirePrintable(std::string_view message) {
  Require(!message.empty() && !message.starts_with('\n') && !message.ends_with('\n'));
  for (const char c : message) Require(c == '\n' || (c >= ' ' && c <= '~'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config =
      terrace::ParseNodeConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  if (config.ok()) {
    RequireBounds(config.value());
  } else {
    Require(config.error().code == terrace::ErrorCode::kInvalidArgument);
    RequirePrintable(config.error().message);
  }
  return 0;
}
