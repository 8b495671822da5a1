// What a secondary tier may use of the node it lives in.
//
// A tier sees nothing else of the manager. The memory is the host tier's: a tier reads and writes
// only the slots that a job names, and only until it has reported that job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "terrace/cache_identity.h"
#include "terrace/types.h"

namespace terrace {

// All slots as one mapping, the first one at its front.
struct TierMemory {
  std::span<std::byte> bytes;
  // A memfd of at least these bytes, sealed against a change of size; -1: there is none. The
  // node's: duplicate it to keep it.
  int descriptor = -1;
};

// Outlives every tier. All methods may be called from any thread.
class TierHost {
 public:
  virtual ~TierHost() = default;

  // The chunk of a slot: exactly identity().fields().chunk_bytes bytes, followed in memory by
  // padding up to slot_stride_bytes(), which may be read and overwritten too. Aligned to 4096
  // bytes.
  // Pre: a job that the caller has not yet reported names `slot` (not checked).
  virtual std::span<std::byte> Slot(SlotId slot) = 0;

  // For a tier that registers memory with a device, or lets another process map it. Which slots it
  // may touch is said by its jobs alone. Constant.
  virtual TierMemory Memory() = 0;

  // Distance between two slots, a multiple of 4096.
  virtual std::size_t slot_stride_bytes() const = 0;

  virtual const CacheIdentity& identity() const = 0;

  // XXH3-64 of the slot's chunk, if somebody has hashed it since it came.
  // Pre: as Slot(). Cost: one load.
  virtual std::optional<std::uint64_t> KnownChecksum(SlotId slot) const = 0;
  // The caller has hashed the chunk, or has written what hashes to `checksum`.
  // Pre: as Slot(); nobody else writes it.
  virtual void NoteChecksum(SlotId slot, std::uint64_t checksum) = 0;

  // Tells the engine's thread that TakeFinished() has something new. Cheap, never blocks for long,
  // and must not be called while holding a lock that a method of the tier takes.
  virtual void NotifyProgress() = 0;
};

}  // namespace terrace
