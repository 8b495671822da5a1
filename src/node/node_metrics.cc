#include "node/node_metrics.h"

#include <utility>

#include "base/log.h"
#include "node/build_labels.h"

namespace terrace {
namespace {

struct TierFacts {
  std::string_view type;
  std::string_view source;
  std::string capacity_bytes;  // Empty if it has no limit.
};

TierFacts FactsOf(const TierConfig& tier) {
  switch (tier.type) {
    case TierConfig::Type::kMemory:
      return {"memory", LoadSourceName(LoadSource::kMemory), std::to_string(tier.memory.bytes)};
    case TierConfig::Type::kFile:
      return {"file", LoadSourceName(LoadSource::kDisk), ""};
    case TierConfig::Type::kPeer:
      return {"peer", LoadSourceName(LoadSource::kPeer), ""};
    case TierConfig::Type::kPlugin:
      return {"plugin", LoadSourceName(LoadSource::kOther), ""};
    case TierConfig::Type::kCustom:
      return {tier.custom.type, LoadSourceName(tier.custom.load_source), ""};
  }
  return {};
}

}  // namespace

NodeFacts FactsOf(const NodeConfig& config, const CacheIdentity& identity) {
  NodeFacts facts;
  facts.start_time_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  facts.build = BuildLabels();
  const auto add = [&](std::size_t number, const TierFacts& tier, const std::string& policy,
                       const std::string& threshold) {
    const CacheIdentityFields& fields = identity.fields();
    facts.tiers.push_back({{"tier", TierLabel(number, tier.type)},
                           {"source", std::string(tier.source)},
                           {"capacity_bytes", tier.capacity_bytes},
                           {"chunk_bytes", std::to_string(fields.chunk_bytes)},
                           {"tokens_per_chunk", std::to_string(fields.tokens_per_chunk)},
                           {"eviction_policy", policy},
                           {"store_threshold", threshold},
                           {"model", fields.model},
                           {"identity", identity.ToHex()}});
  };
  const std::string host_bytes = std::to_string(config.cpu_bytes_to_use);
  add(0, {"host", LoadSourceName(LoadSource::kHost), host_bytes}, config.eviction_policy,
      std::to_string(config.store_threshold));
  for (std::size_t i = 0; i < config.secondary_tiers.size(); ++i) {
    add(i + 1, FactsOf(config.secondary_tiers[i]), "", "");
  }
  return facts;
}

Result<std::unique_ptr<NodeMetrics>> NodeMetrics::Start(const NodeConfig& config,
                                                        const CacheIdentity& identity,
                                                        OffloadingManager& manager,
                                                        const Connector& connector) {
  std::unique_ptr<NodeMetrics> metrics(
      new NodeMetrics(FactsOf(config, identity), manager, connector));
  auto server = MetricsServer::Start(config.metrics_listen,
                                     [node = metrics.get()] { return node->Render(); });
  if (!server.ok()) return std::move(server).error();
  metrics->server_ = std::move(server).value();
  TERRACE_LOG_INFO("metrics: http://{}/metrics", metrics->address());
  return metrics;
}

std::optional<std::string> NodeMetrics::Render() {
  MetricsSnapshot now;
  if (!manager_.TryLockFor(kLockPatience, Lane::kControl, "metrics")) {
    ++refused_scrapes_;
    return std::nullopt;
  }
  now.manager = manager_.Stats();
  now.connector = connector_.Stats();
  manager_.Unlock();
  now.refused_scrapes = refused_scrapes_;
  return RenderMetrics(facts_, now);
}

}  // namespace terrace
