// What the chunk of each slot hashes to, where somebody has hashed it since it came: whoever sends
// or verifies it later need not.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/types.h"

namespace terrace {

// Thread-safe. Relaxed: who may read a slot's bytes has synchronized with who wrote them, and with
// them this; two who hash the same bytes note the same.
class SlotChecksums {
 public:
  explicit SlotChecksums(std::uint32_t slot_count) : values_(slot_count) {}

  // XXH3-64 of the slot's chunk.
  // Pre: the caller may read it.
  std::optional<std::uint64_t> Known(SlotId slot) const {
    const std::uint64_t value = values_[slot.value].load(std::memory_order_relaxed);
    if (value == kUnknown) return std::nullopt;
    return value;
  }
  // Pre: the caller may read or write the slot's chunk, and `checksum` is of its bytes as they are.
  void Note(SlotId slot, std::uint64_t checksum) {
    values_[slot.value].store(checksum, std::memory_order_relaxed);
  }
  // The slot is to hold another chunk.
  void Forget(SlotId slot) { Note(slot, kUnknown); }

  // For HostSlots::checksums.
  std::atomic<std::uint64_t>* values() { return values_.data(); }

 private:
  static constexpr std::uint64_t kUnknown = 0;  // One chunk in 2^64 is hashed each time.

  std::vector<std::atomic<std::uint64_t>> values_;
};

}  // namespace terrace
