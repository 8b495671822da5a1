#include "host/event_log.h"

#include <utility>

namespace terrace {

void EventLog::Add(CacheEvent::Kind kind, const ChunkKey& key) {
  if (lost_) return;
  if (events_.size() == 2 * std::size_t{capacity_}) Coalesce();
  if (lost_) return;
  events_.push_back({kind, key});
}

// Comings and goings of one key take turns, so an even number of them is no change, and of an odd
// number the last one is the change. A failure is one if nothing came after it.
void EventLog::Coalesce() {
  struct Seen {
    std::size_t last = 0;
    std::size_t last_turn = 0;
    std::size_t turns = 0;
  };
  FlatMap<ChunkKey, Seen, ByKey> seen;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    Seen* entry = seen.Find(events_[i].key);
    if (entry == nullptr) {
      seen.Insert(events_[i].key, {});
      entry = seen.Find(events_[i].key);
    }
    entry->last = i;
    if (events_[i].kind == CacheEvent::Kind::kFailed) continue;
    entry->last_turn = i;
    ++entry->turns;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Seen& entry = *seen.Find(events_[i].key);
    const bool is_change = events_[i].kind == CacheEvent::Kind::kFailed
                               ? entry.last == i
                               : entry.last_turn == i && entry.turns % 2 == 1;
    if (is_change) events_[kept++] = events_[i];
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
