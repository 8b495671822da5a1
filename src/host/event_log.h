// Which chunks came and went since somebody last asked.
#pragma once

#include <cstdint>
#include <vector>

#include "host/flat_map.h"
#include "host/key_hash.h"
#include "terrace/offloading_manager.h"

namespace terrace {

// What is taken is true when it is taken: a chunk that came and went in between is not in it, one
// that went and came back neither, nor one that failed to come and came later. Bounded: see Take().
//
// Thread-compatible.
class EventLog {
 public:
  // Pre: capacity >= 1.
  explicit EventLog(std::uint32_t capacity) : capacity_(capacity) {}

  // Of one key, kStored and kRemoved take turns; kFailed is only of a key that is absent.
  // Cost: O(1), amortised.
  void Add(CacheEvent::Kind kind, const ChunkKey& key);

  // Net changes since the last call, in the order in which they became so; or kLost alone if there
  // were more than fit: who reads them must begin anew, with what is there now.
  std::vector<CacheEvent> Take();

 private:
  struct ByKey {
    std::size_t operator()(const ChunkKey& key) const { return KeyHash(key); }
  };
  // Leaves net changes only.
  void Coalesce();

  const std::uint32_t capacity_;
  std::vector<CacheEvent> events_;
  bool lost_ = false;
};

}  // namespace terrace
