// A node of a simulation: host memory, manager and peer tier as they are, and an engine that only
// looks up, loads, checks and stores.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "manager/tiering_manager.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/sim/sim_plane.h"
#include "tier/peer/peer_tier.h"

namespace terrace::sim {

inline constexpr std::uint64_t kChunkBytes = 200;
inline constexpr std::uint32_t kChunksPerPrompt = 12;

// Where all nodes of a simulation meet.
struct Internet {
  explicit Internet(World& world) : hub(world) {}
  Hub hub;
  std::map<std::string, SimPlane*> planes;
};

class SimNode {
 public:
  SimNode(Internet& internet, std::string host, std::vector<std::string> peers,
          std::string dtype = "f16", const std::function<void(PeerTierConfig&)>& change = {});
  ~SimNode();

  const std::string& host() const { return host_; }
  // A prompt's chunks are the same on every node.
  void Submit(std::uint32_t prompt, std::shared_ptr<const PeerRoute> route);
  // The request that was submitted last goes away before it began.
  void Abort();
  // What one step computes of a prompt at most.
  void set_chunks_per_step(std::size_t chunks) { chunks_per_step_ = chunks; }
  // One step of the engine. Aborts the test if a byte is wrong.
  void Step();
  // One round of the control thread.
  void Round();
  void ResetCache();

  bool idle() const { return requests_.empty(); }
  // Of the request that has waited longest; while it was stopped nobody waits.
  Duration LongestWait() const;
  void OnContinued();
  std::uint64_t chunks_loaded() const { return chunks_loaded_; }
  ManagerStats Stats();
  std::uint64_t Counter(const std::string& name);
  // What of it is still held for others, or under way: empty if nothing is.
  std::string Leftovers();

 private:
  struct Work {
    Request request;
    std::vector<ChunkKey> keys;
    TimePoint submitted;
    bool started = false;
    std::size_t computed = 0;  // Chunks in the engine's memory, once started.
  };

  bool GoOn(Work& work);
  bool TryStart(Work& work);
  void CheckLoaded(std::span<const ChunkKey> keys, std::span<const SlotId> slots);

  World& world_;
  const std::string host_;
  testing::FakeTierHost memory_;
  std::unique_ptr<TieringManager> manager_;
  std::deque<Work> requests_;
  std::uint64_t next_request_ = 1;
  std::uint64_t chunks_loaded_ = 0;
  std::size_t chunks_per_step_ = kChunksPerPrompt;
};

}  // namespace terrace::sim
