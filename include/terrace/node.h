// A running node: host memory, manager and tiers, made from one configuration.
//
// The engine makes one node for each model it serves, talks to connector() and worker-copies
// through host_slots(). See examples/embed.cc.
//
// Threads: manager() may be used from any thread under its own lock; WaitForProgress() from any one
// at a time; all else belongs to the engine's thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "terrace/cache_identity.h"
#include "terrace/connector.h"
#include "terrace/export.h"
#include "terrace/host_memory.h"
#include "terrace/node_config.h"
#include "terrace/offloading_manager.h"
#include "terrace/result.h"
#include "terrace/worker.h"

namespace terrace {

class TERRACE_API Node {
 public:
  // Maps host memory, starts the tiers in order and opens what they have. Blocks for the tiers'
  // start (the file tier reads its directory). On failure everything started is stopped again, in
  // reverse order.
  static Result<std::unique_ptr<Node>> Create(const NodeConfig& config,
                                              const CacheIdentity& identity);
  // The same over host memory that others use too. kInvalidArgument if it was not made for this
  // identity's chunk_bytes.
  static Result<std::unique_ptr<Node>> Create(const NodeConfig& config,
                                              const CacheIdentity& identity,
                                              std::shared_ptr<HostMemory> memory);
  // Shuts down if nobody did.
  ~Node();

  OffloadingManager& manager();
  // Confined to the engine's thread, as connector.h says.
  Connector& connector();
  HostSlots host_slots() const;

  // Where /metrics is answered: "127.0.0.1:43211". Empty if NodeConfig::metrics_listen is. Any
  // thread; constant.
  const std::string& metrics_address() const;

  // Blocks until a tier finished something since the last call, something arrived for a tier that
  // talks to others, or `timeout` passed. True if not the last. For an engine that has nothing to
  // compute but waits for a promotion. Any one thread at a time.
  bool WaitForProgress(std::chrono::milliseconds timeout);

  // Blocks until everything stored has reached the secondary tiers, or `timeout` passed; true if it
  // has. Call it without the manager's lock, while no step is under way.
  bool Drain(std::chrono::milliseconds timeout);

  // Gives up an open step and stops the tiers, at most after the I/O that is running: what is
  // queued is dropped. To keep all of it, Drain() first. Idempotent.
  void Shutdown();

 private:
  struct Impl;
  explicit Node(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
