// A node's metrics, served over HTTP.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "node/metrics.h"
#include "node/metrics_server.h"
#include "terrace/cache_identity.h"
#include "terrace/connector.h"
#include "terrace/node_config.h"
#include "terrace/offloading_manager.h"
#include "terrace/result.h"

namespace terrace {

// What a node is, for its info metrics.
NodeFacts FactsOf(const NodeConfig& config, const CacheIdentity& identity);

// Thread-safe.
class NodeMetrics {
 public:
  // How long a scrape waits for the manager's lock, in the lane that gives way to the engine,
  // before it is refused. Less than the engine's own longest step, so that one more waiter is soon
  // gone.
  static constexpr std::chrono::milliseconds kLockPatience{250};

  // `manager` and `connector` outlive it; it must be gone before the manager is shut down.
  static Result<std::unique_ptr<NodeMetrics>> Start(const NodeConfig& config,
                                                    const CacheIdentity& identity,
                                                    OffloadingManager& manager,
                                                    const Connector& connector);

  const std::string& address() const { return server_->address(); }

 private:
  NodeMetrics(NodeFacts facts, OffloadingManager& manager, const Connector& connector)
      : facts_(std::move(facts)), manager_(manager), connector_(connector) {}

  // nullopt if the lock could not be had. Blocks for kLockPatience at most.
  std::optional<std::string> Render();

  const NodeFacts facts_;
  OffloadingManager& manager_;
  const Connector& connector_;
  std::uint64_t refused_scrapes_ = 0;      // The server's thread alone.
  std::unique_ptr<MetricsServer> server_;  // Last: its thread uses the others.
};

}  // namespace terrace
