// Which ready chunks go first when host memory is full, and how to add a way of one's own.
//
// A policy orders slots; the host tier owns them, knows keys, pins and requests, and tells the
// policy what happens to each. `eviction_policy` in the configuration names the policy:
//
//   lru     least recently used
//   arc     Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003
//   s3fifo  Yang, Zhang, Qiu, Yue, Rashmi, "FIFO Queues are All You Need for Cache Eviction",
//           SOSP 2023
//   sieve   Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is Simpler than LRU", NSDI 2024
//   others  what the program registered
//
// A chunk is useless without the chunks before it in its prefix, so every policy is told which
// chunk comes before which, and keeps the early ones longer than the late ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace {

// A 64-bit hash of a chunk's key: how a policy recognises a chunk that it saw before. Two chunks
// share one about never; a policy must survive it.
using Fingerprint = std::uint64_t;

// What the host tier allows to go: no chunk that is pinned, being written or protected.
class EvictionFilter {
 public:
  virtual ~EvictionFilter() = default;
  virtual bool MayEvict(SlotId slot) const = 0;
};

// One chunk that a request used.
struct ChunkAccess {
  enum class Kind : std::uint8_t {
    kReuse,   // Another request (or an earlier one) stored it. Told once per request and chunk.
    kRepeat,  // As kReuse, told before: the request goes on, or has ended.
    kOwn,     // The request stored it, or had it brought from a tier. May be told many times.
  };
  SlotId slot;
  Kind kind;
};

// Thread-compatible: the manager's lock serialises all calls. Memory is taken when the policy is
// made, for the capacity; no call allocates.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A slot was taken for a chunk, to be written. `parent` is the slot of the chunk before it in the
  // request's prefix, if there is one that the policy knows.
  // Cost: O(1).
  virtual void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) = 0;

  enum class Removal : std::uint8_t {
    kEvicted,  // Chosen by ChooseVictims().
    kDropped,  // Never became ready. Leaves no trace.
  };
  // Cost: O(1).
  virtual void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) = 0;

  // A request used these chunks, in prefix order, each once. With `parent` they continue behind
  // that chunk. Without, they are the first of the request's chunks or all of them.
  // Cost: O(accesses).
  virtual void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) = 0;

  // A request offers these chunks, in prefix order, and they are absent. Told once per request and
  // chunk, before OnInsert(), also if no room is found.
  // Cost: O(fingerprints).
  virtual void OnMiss(std::span<const Fingerprint> /*fingerprints*/) {}

  // Appends the `count` slots that should go first among those that `filter` lets go, in that
  // order, and OnRemove() follows for each of them; or appends nothing, changes nothing and returns
  // false if there are not as many.
  // Cost: O(count + slots passed over).
  [[nodiscard]] virtual bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                                           std::vector<SlotId>& victims) = 0;

  // Forgets everything.
  virtual void Clear() = 0;

  // After how many insertions and reuses by others a request that goes on tells all its chunks
  // again, so that a long-running request does not age. >= 1.
  virtual std::uint32_t refresh_interval() const = 0;

  // Of the policy's tables, for metrics and sizing.
  virtual std::size_t memory_bytes() const = 0;
};

// Makes a policy for slots 0 to slot_count - 1.
using EvictionPolicyFactory =
    std::function<std::unique_ptr<EvictionPolicy>(std::uint32_t slot_count)>;

// Makes `name` a policy that a configuration may name, from now on. kInvalidArgument if the name is
// empty or taken, or there is no factory. Thread-safe.
TERRACE_API Result<void> RegisterEvictionPolicy(std::string_view name,
                                                EvictionPolicyFactory factory);

// The names there are: those built in, then those registered. Thread-safe.
TERRACE_API std::vector<std::string> EvictionPolicyNames();

// kInvalidArgument names the policies there are. Thread-safe.
TERRACE_API Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                                       std::uint32_t slot_count);

}  // namespace terrace
