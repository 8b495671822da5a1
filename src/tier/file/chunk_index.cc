#include "tier/file/chunk_index.h"

#include <optional>

namespace terrace {

bool ChunkIndex::Contains(const ChunkKey& key) const {
  MutexLock lock(mutex_);
  return keys_.contains(key);
}

bool ChunkIndex::Offers(const ChunkKey& key) const {
  std::chrono::steady_clock::time_point until;
  {
    MutexLock lock(mutex_);
    if (!keys_.contains(key)) return false;
    const auto rest = rest_until_.find(key);
    if (rest == rest_until_.end()) return true;
    until = rest->second;
  }
  return now_() >= until;
}

void ChunkIndex::Insert(const ChunkKey& key) {
  MutexLock lock(mutex_);
  keys_.insert(key);
}

bool ChunkIndex::Erase(const ChunkKey& key) {
  MutexLock lock(mutex_);
  rest_until_.erase(key);
  return keys_.erase(key) == 1;
}

void ChunkIndex::Rest(const ChunkKey& key) {
  const auto now = now_();
  MutexLock lock(mutex_);
  if (now >= next_sweep_) {  // Not each time: a dying disk may let very many keys rest.
    std::erase_if(rest_until_, [now](const auto& rest) { return rest.second <= now; });
    next_sweep_ = now + kBackOff;
  }
  if (keys_.contains(key)) rest_until_[key] = now + kBackOff;
}

void ChunkIndex::Wake(const ChunkKey& key) {
  MutexLock lock(mutex_);
  rest_until_.erase(key);
}

std::size_t ChunkIndex::size() const {
  MutexLock lock(mutex_);
  return keys_.size();
}

}  // namespace terrace
