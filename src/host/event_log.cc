#include "host/event_log.h"

#include <utility>

namespace terrace {

void EventLog::Add(CacheEvent::Kind kind, const ChunkKey& key) {
  if (lost_) return;
  if (events_.size() == 2 * std::size_t{capacity_}) Coalesce();
  if (lost_) return;
  events_.push_back({kind, key});
}

// Events of one key take turns, so an even number of them is no change, and of an odd number the
// last one is the change.
void EventLog::Coalesce() {
  struct Seen {
    std::size_t last = 0;
    std::size_t count = 0;
  };
  FlatMap<ChunkKey, Seen, ByKey> seen;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    Seen* const entry = seen.Find(events_[i].key);
    if (entry == nullptr) {
      seen.Insert(events_[i].key, {i, 1});
    } else {
      *entry = {i, entry->count + 1};
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Seen& entry = *seen.Find(events_[i].key);
    if (entry.last == i && entry.count % 2 == 1) events_[kept++] = events_[i];
  }
  events_.resize(kept);
  if (kept > capacity_) {
    lost_ = true;
    events_.clear();
  }
}

std::vector<CacheEvent> EventLog::Take() {
  if (!lost_ && events_.size() > 1) Coalesce();
  if (std::exchange(lost_, false)) return {CacheEvent{CacheEvent::Kind::kLost, ChunkKey()}};
  return std::exchange(events_, {});
}

}  // namespace terrace
