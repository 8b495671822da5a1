// Which chunks a directory holds, as far as this process knows, in memory, so that a look-up
// touches no disk.
#pragma once

#include <chrono>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "base/mutex.h"
#include "terrace/chunk_key.h"

namespace terrace {

using SteadyNow = std::function<std::chrono::steady_clock::time_point()>;

// Thread-safe.
class ChunkIndex {
 public:
  // How long a chunk is not offered after its file could not be read: else a request whose disk
  // answers EIO would promote the same chunk for ever.
  static constexpr std::chrono::seconds kBackOff{5};

  explicit ChunkIndex(SteadyNow now) : now_(std::move(now)) {}

  // Is in the index, rested or not.
  bool Contains(const ChunkKey& key) const;
  // Is in the index and not resting. Cost: one hash look-up; asks the clock only for keys that
  // rest.
  bool Offers(const ChunkKey& key) const;

  // Does not end a rest.
  void Insert(const ChunkKey& key);
  // Forgets the key and its rest. False if it was not there.
  bool Erase(const ChunkKey& key);
  // Offers() is false for kBackOff from now.
  void Rest(const ChunkKey& key);
  // Offers() is true again.
  void Wake(const ChunkKey& key);

  std::size_t size() const;

 private:
  const SteadyNow now_;
  mutable Mutex mutex_;
  std::unordered_set<ChunkKey> keys_ TERRACE_GUARDED_BY(mutex_);
  // Only keys that are in keys_; entries whose time has passed stay until the next sweep.
  std::unordered_map<ChunkKey, std::chrono::steady_clock::time_point> rest_until_
      TERRACE_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point next_sweep_ TERRACE_GUARDED_BY(mutex_){};
};

}  // namespace terrace
