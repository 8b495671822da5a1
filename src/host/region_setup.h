// How several processes come to share one host region.
//
// The creator makes the memory and listens on a socket in Linux's abstract namespace; each joiner
// connects, is handed the memory as a descriptor, checks its header, maps it and says so. When all
// have, the creator tells them and closes the socket. Nothing of this has a name in a file system:
// whoever is killed, whenever, leaves nothing behind, and its sockets close, which tells the others
// at once. A name is free again when its creator is done or dead, so nothing stale can be joined.
//
// The processes need one network namespace (containers of one pod have that) and one user.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/fd.h"
#include "host/region_header.h"
#include "terrace/result.h"

namespace terrace {

// Points of a set-up at which a process may die.
enum class RegionStage : std::uint8_t {
  kListening,   // Creator: joiners may come.
  kOffering,    // Creator: about to hand out the memory.
  kCompleting,  // Creator: all have mapped, none was told.
  kConnected,   // Joiner: about to ask.
  kOffered,     // Joiner: has the memory, not mapped.
  kMapped,      // Joiner: has mapped, has not said so.
  kReported,    // Joiner: has said so.
};

struct RegionSharing {
  // The same for all processes of one start of the engine, and different for each start.
  std::string name;  // 1 to kRegionNameSizeMax characters.
  Digest identity{};
  std::uint32_t rank_count = 1;
  // Ranks, each in one process, and processes without one such as a scheduler of its own.
  std::uint32_t process_count = 1;
  // This process's; nullopt if it has none. The creator may be any process.
  std::optional<std::uint32_t> rank;
  // From this process's call until all have mapped.
  std::chrono::milliseconds timeout{60'000};
  // As HostSharing's; of at most 255 characters.
  std::string instance;
  // Seam for tests: called on the thread that reaches the stage. May be empty.
  std::function<void(RegionStage)> at_stage;
};

inline constexpr std::size_t kRegionNameSizeMax = 80;

// kInvalidArgument names everything in it that can't be.
Result<void> CheckRegionSharing(const RegionSharing& sharing);

// One process's part. Destroying it before all have mapped ends the set-up for all.
class RegionSetup {
 public:
  virtual ~RegionSetup() = default;

  // Waits until all processes have mapped the region, or one has failed, died or not come in time:
  // an error that names it. kUnavailable if time or a process was lost. The same answer each time.
  // Thread-compatible. Blocks for at most the rest of `timeout`.
  virtual Result<void> AwaitAll() = 0;
};

// The creator's part: serves joiners on a thread of its own. `memory_fd` must outlive it.
// kUnavailable if another process is setting up a region of that name.
Result<std::unique_ptr<RegionSetup>> StartRegionSetup(const RegionSharing& sharing,
                                                      const RegionHeader& header, int memory_fd);

// A joiner's part. Confined to one thread at a time.
class RegionJoiner : public RegionSetup {
 public:
  // Waits for the creator and its offer, at most `timeout`. kIncompatible if it is not what
  // `expected` says; the creator is told.
  static Result<std::unique_ptr<RegionJoiner>> Connect(const RegionSharing& sharing,
                                                       const RegionHeader& expected);

  virtual const RegionHeader& header() const = 0;
  // Once.
  virtual UniqueFd TakeMemory() = 0;
  // Exactly one of these two, before AwaitAll().
  virtual Result<void> ReportMapped() = 0;
  virtual void ReportFailure(const std::string& why) = 0;
};

}  // namespace terrace
