// A tier whose chunks are in other nodes' host memory, and that serves them this node's.
//
// Everything but the bytes of chunks goes through here, under the manager's lock: messages are read
// and answered by whoever holds it, the control thread between the engine's steps above all. The
// bytes are moved by the data planes' own threads and never wait for a lock: once a look-up has
// been answered, a busy holder is not needed any more.
//
//   PeerAsker   our requests, what we asked, what we fetch       RemotePeer   one node that we ask
//   PeerHolder  who asks us, what we promised                    LeaseTable   the promises
//   ControlNetwork, DataPlane: where messages and bytes pass; a simulation has its own
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/secondary_tier.h"
#include "terrace/tier_config.h"
#include "terrace/tier_host.h"
#include "tier/peer/control_network.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/lease_table.h"
#include "tier/peer/peer_asker.h"
#include "tier/peer/peer_counters.h"
#include "tier/peer/peer_holder.h"

namespace terrace {

// What a tier is made of besides its configuration.
struct PeerTierParts {
  // The planes use it, so that it is made first and dies last.
  std::unique_ptr<LeaseTable> leases;
  std::unique_ptr<ControlNetwork> network;
  std::vector<std::unique_ptr<DataPlane>> planes;  // In order of preference, at least one.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  std::function<std::uint64_t()>
      random;  // Never the same twice, and hard to guess: tokens are made of it.
};

class PeerTier final : public SecondaryTier {
 public:
  // Listens, and opens the planes. kInvalidArgument: the configuration is wrong (peer_options.h),
  // or asks for a plane that this build has not; kPermissionDenied, kNotFound: the key file;
  // kUnavailable: the port is taken.
  static Result<std::unique_ptr<PeerTier>> Create(const PeerTierConfig& config, TierHost& host);
  // Of these parts. Pre: the configuration is right.
  static std::unique_ptr<PeerTier> Make(const PeerTierConfig& config, TierHost& host,
                                        PeerTierParts parts);
  ~PeerTier() override;

  // Where it listens for others: the configuration's port, or the one that was free.
  std::uint16_t port() const { return parts_.network->port(); }

  std::string_view type() const override { return "peer"; }
  LoadSource load_source() const override { return LoadSource::kPeer; }
  TierLookup Lookup(const ChunkKey& key, const Request& request) override;
  void SubmitStore(TransferJob job) override;
  void SubmitLoad(TransferJob job) override;
  // Also reads what has arrived: its cost is that of looking into some queues.
  void TakeFinished(std::vector<JobResult>& results) override;
  StoreInterest OnNewRequest(const Request& request) override;
  void OnRequestFinished(const Request& request) override;
  void OnScheduleEnd() override;
  bool serves_external_requests() const override { return true; }
  void ServeExternalRequests(TierServer& server) override;
  int event_descriptor() const override { return parts_.network->descriptor(); }
  std::vector<CounterValue> Counters() const override;
  bool Drain(std::chrono::milliseconds timeout) override;
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds timeout) override;

 private:
  PeerTier(const PeerTierConfig& config, TierHost& host, PeerTierParts parts);
  void ReadNetwork(const TierServer* server);
  void ReadPlanes();
  void Tick();
  void TellEngine();

  const PeerTierConfig config_;
  TierHost& host_;
  PeerTierParts parts_;
  PeerCounters counters_;
  PeerAskerContext asker_context_;
  PeerHolderContext holder_context_;
  PeerAsker asker_;
  PeerHolder holder_;
  std::vector<DataEvent> events_;  // Reused.
  std::chrono::steady_clock::time_point ticked_at_{};
  bool shut_down_ = false;
  bool planes_ended_ = false;
  // Loads that are not reported. Relaxed: Drain() reads it without the lock and only waits.
  std::atomic<std::size_t> loads_under_way_{0};
};

}  // namespace terrace
