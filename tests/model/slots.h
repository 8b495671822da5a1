// Host memory of the model: what every slot holds, and who copies from or into it.
//
// Bytes are a number here: which key's they are. Beside it stands how many resets there had been
// when their writing began, so that a chunk of before a reset is known when it is found after it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/types.h"

namespace terrace::model {

inline std::uint64_t NumberOf(const ChunkKey& key) {
  std::uint64_t n = 0;
  std::memcpy(&n, key.hash().data(), sizeof n);
  return n;
}

class Slots {
 public:
  enum class Writer : std::uint8_t { kNone, kEngine, kTier };
  static constexpr std::uint64_t kGarbage = ~std::uint64_t{0};

  explicit Slots(std::uint32_t count) : slots_(count) {}

  // Half-written bytes are nobody's.
  void BeginWrite(SlotId id, Writer writer) {
    Slot& slot = slots_.at(id.value);
    EXPECT_FALSE(InUse(slot)) << "slot " << id.value << " is reused while somebody copies";
    slot = {kGarbage, resets_, writer, 0, false};
  }
  void Write(SlotId id, std::uint64_t number) { slots_.at(id.value).bytes = number; }
  void EndWrite(SlotId id, Writer writer) {
    Slot& slot = slots_.at(id.value);
    EXPECT_EQ(slot.writer, writer) << "slot " << id.value;
    slot.writer = Writer::kNone;
    slot.orphan = false;
  }

  void BeginRead(SlotId id, const ChunkKey& key) {
    Slot& slot = slots_.at(id.value);
    EXPECT_EQ(slot.writer, Writer::kNone)
        << "slot " << id.value << " is served while it is written";
    EXPECT_EQ(slot.resets, resets_) << "a chunk of before the reset was found";
    CheckBytes(id, key);
    ++slot.readers;
  }
  // Whoever reads may do so until it says that it has ended.
  void CheckBytes(SlotId id, const ChunkKey& key) const {
    EXPECT_EQ(slots_.at(id.value).bytes, NumberOf(key)) << "wrong bytes in slot " << id.value;
  }
  void EndRead(SlotId id) {
    Slot& slot = slots_.at(id.value);
    EXPECT_GT(slot.readers, 0u);
    if (--slot.readers == 0) slot.orphan = false;
  }

  void Reset() {
    ++resets_;
    for (Slot& slot : slots_) slot.orphan = InUse(slot);
  }

  Writer writer(SlotId id) const { return slots_.at(id.value).writer; }
  bool orphan(SlotId id) const { return slots_.at(id.value).orphan; }

  struct Counts {
    std::uint32_t written = 0, read = 0, orphans = 0;
  };
  Counts Count() const {
    Counts counts;
    for (const Slot& slot : slots_) {
      counts.orphans += slot.orphan;
      if (slot.orphan) continue;
      counts.written += slot.writer != Writer::kNone;
      counts.read += slot.readers > 0;
    }
    return counts;
  }

 private:
  struct Slot {
    std::uint64_t bytes = kGarbage;
    std::uint64_t resets = 0;  // When its writing began.
    Writer writer = Writer::kNone;
    std::uint32_t readers = 0;
    bool orphan = false;  // In use across a reset.
  };
  static bool InUse(const Slot& slot) { return slot.writer != Writer::kNone || slot.readers > 0; }

  std::vector<Slot> slots_;
  std::uint64_t resets_ = 0;
};

}  // namespace terrace::model
