// The memory of the host tier: rows of one chunk each, of one process or shared by several.
//
// A node makes its own (Node::Create()). An engine whose ranks are processes of their own gives
// each of them a HostMemory over the same rows, and the node that of its scheduler: one process
// creates it, the others join it by name. Nothing of it has a name in a file system, so that
// whoever is killed, whenever, leaves nothing behind. They need one network namespace and one user.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "terrace/cache_identity.h"
#include "terrace/export.h"
#include "terrace/node_config.h"
#include "terrace/result.h"
#include "terrace/worker.h"

namespace terrace {

class HostRegion;

// Who shares it. Equal in all processes but for `rank`.
struct HostSharing {
  std::string name;  // Of this start of the engine, different for each; 1 to 80 characters.
  std::uint32_t rank_count = 1;       // Each has an equal part of every row.
  std::uint32_t process_count = 1;    // Ranks, and processes without one such as a scheduler's.
  std::optional<std::uint32_t> rank;  // This process's; nullopt: it has none.
  std::chrono::milliseconds timeout{60'000};  // From the first call until all have mapped it.
  // Which start of which engine a rank is of, where `name` may be another's too: a rank that says
  // another one than the creator is refused, and does the set-up no harm. Empty: not said.
  std::string instance = {};
};

// Thread-compatible. What a slot holds belongs to whoever the manager lets read or write it.
class TERRACE_API HostMemory {
 public:
  // As many rows of `identity`'s chunk_bytes as fit into config.cpu_bytes_to_use, for this process
  // alone. kInvalidArgument if not even one does; kResourceExhausted, with need and available, if
  // the machine or a cgroup has less memory than that.
  // Cost: a few system calls, and config.prefault_threads that touch the memory in the background.
  static Result<std::unique_ptr<HostMemory>> Create(const NodeConfig& config,
                                                    const CacheIdentity& identity);

  // The same for several processes. Waits for nobody; joiners are served on a thread of its own.
  // kUnavailable if a process is setting up memory of that name already.
  static Result<std::unique_ptr<HostMemory>> CreateShared(const NodeConfig& config,
                                                          const CacheIdentity& identity,
                                                          const HostSharing& sharing);
  // Blocks until the creator is there, at most sharing.timeout. kIncompatible names each size or
  // identity that differs.
  static Result<std::unique_ptr<HostMemory>> Join(const NodeConfig& config,
                                                  const CacheIdentity& identity,
                                                  const HostSharing& sharing);

  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Blocks until all processes have mapped it, at most the rest of the timeout; ok at once if there
  // are no others. kUnavailable names the process that failed, died or did not come. The same
  // answer each time.
  Result<void> AwaitAll();

  // Whole rows, and the part of each that is one rank's (not aligned beyond its own size).
  HostSlots slots() const;
  // Pre: rank < rank_count().
  HostSlots rank_slots(std::uint32_t rank) const;
  std::uint32_t rank_count() const;

 private:
  friend class Node;
  explicit HostMemory(std::unique_ptr<HostRegion> region);
  std::unique_ptr<HostRegion> region_;
};

}  // namespace terrace
