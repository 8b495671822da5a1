// HostTier: making room, and who used what.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "host/host_tier.h"

namespace terrace {

using SlotState = SlotTable::State;

class HostTier::Evictable final : public EvictionFilter {
 public:
  Evictable(const HostTier& tier, const Reservation& reservation, AccessLog& own)
      : tier_(tier), reservation_(reservation), own_(own) {}

  bool MayEvict(SlotId id) const override {
    const SlotTable::Slot& slot = tier_.table_[id];
    if (slot.state != SlotState::kReady || slot.pins != 0) return false;
    if (slot.spared_in == tier_.offer_number_ || slot.used_in_hold == reservation_.hold) {
      return false;
    }
    if (!reservation_.is_sequence) return true;
    // A request's suffix is useless without its prefix.
    const AccessLog::Entry* const entry = own_.Find(KeyHash(slot.key));
    return entry == nullptr || entry->chunk.slot != id ||
           entry->chunk.generation != slot.generation;
  }

 private:
  const HostTier& tier_;
  const Reservation& reservation_;
  AccessLog& own_;
};

bool HostTier::Reserve(std::span<const ChunkKey> keys, const Reservation& reservation,
                       StorePlan& plan) {
  plan.keys.clear();
  plan.slots.clear();
  plan.evicted.clear();
  TERRACE_CHECK(reservation.ends.empty() || reservation.ends.size() == keys.size(),
                "as many ends as keys");
  AccessLog& log = LogOf(reservation.request);
  log.is_sequence = reservation.is_sequence;
  const SlotRef tail = log.tail;
  const SlotRef placed_tail = log.placed_tail;
  LookUpOffer(keys);
  ChooseWanted(keys, reservation, log, plan);
  if (reservation.ends.empty()) {
    ApplyAccesses(Parent(placed_tail));
  } else {
    ApplyAccessesByEnd(log);
  }
  if (!misses_.empty()) policy_->OnMiss(misses_);
  plan.wanted = plan.keys.size();
  if (plan.keys.empty()) return true;

  const auto wanted = static_cast<std::uint32_t>(plan.keys.size());
  CountAllocation(wanted);
  if (wanted > table_.free_count() &&
      !MakeRoom(wanted - table_.free_count(), reservation, log, plan)) {
    plan.keys.clear();
    return false;
  }
  TakeSlots(keys, reservation, tail, log, plan);
  writing_count_ += wanted;
  clock_ += wanted;
  RefreshIfAged(log);
  return true;
}

// The keys of an offer are looked up side by side: what one waits for from memory arrives while the
// others are asked for.
void HostTier::LookUpOffer(std::span<const ChunkKey> keys) {
  offer_.clear();
  for (const ChunkKey& key : keys) {
    const Fingerprint fingerprint = KeyHash(key);
    table_.Prefetch(fingerprint);
    offer_.push_back({fingerprint, {}, false, false});
  }
  if (keys.size() > 1) {
    for (const Offered& offered : offer_) table_.PrefetchSlot(offered.fingerprint);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (const auto slot = table_.Find(offer_[i].fingerprint, keys[i]))
      offer_[i].found = RefTo(*slot);
  }
}

void HostTier::ChooseWanted(std::span<const ChunkKey> keys, const Reservation& reservation,
                            AccessLog& log, StorePlan& plan) {
  accesses_.clear();
  misses_.clear();
  if (reservation.purpose == Purpose::kStore && tracker_) {
    fingerprints_.clear();
    for (const Offered& offered : offer_) fingerprints_.push_back(offered.fingerprint);
    tracker_->Count(fingerprints_, offer_counts_);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Offered& offered = offer_[i];
    if (offered.found.generation != 0) continue;
    if (reservation.purpose == Purpose::kStore && tracker_ && offer_counts_[i] < store_threshold_) {
      ++skipped_total_;
      continue;
    }
    offered.wanted = true;
    plan.keys.push_back(keys[i]);
  }
  if (reservation.ends.empty()) {
    for (Offered& offered : offer_) NoteOffered(offered, reservation, std::nullopt, log);
  } else if (!SortByEnd(reservation.ends)) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      NoteOffered(offer_[i], reservation, reservation.ends[i], log);
    }
  } else {
    for (const std::uint32_t i : by_end_) {
      NoteOffered(offer_[i], reservation, reservation.ends[i], log);
    }
  }
}

void HostTier::NoteOffered(Offered& offered, const Reservation& reservation,
                           std::optional<std::uint32_t> end, AccessLog& log) {
  const bool is_store = reservation.purpose == Purpose::kStore;
  if (offered.found.generation != 0) {
    if (is_store) NoteAccess(log, offered.fingerprint, offered.found.slot, end);
    return;
  }
  if (!offered.wanted) return;
  AccessLog::Entry* entry = log.Find(offered.fingerprint);
  if (entry == nullptr) {
    entry = log.Add(offered.fingerprint, AccessLog::Kind::kMissed, {});
    misses_.push_back(offered.fingerprint);
  }
  offered.was_placed = entry->placed;
  if (!is_store) return;
  log.Place(entry, end);
}

bool HostTier::SortByEnd(ChunkEnds ends) {
  if (std::is_sorted(ends.begin(), ends.end())) return false;
  by_end_.resize(ends.size());
  std::iota(by_end_.begin(), by_end_.end(), 0);
  // Places break ties: as std::stable_sort(), which takes memory.
  std::sort(by_end_.begin(), by_end_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return ends[a] != ends[b] ? ends[a] < ends[b] : a < b;
  });
  return true;
}

void HostTier::CountAllocation(std::uint64_t chunks) {
  std::size_t bucket = 0;
  for (std::uint64_t bound = 1; chunks > bound && bucket < ManagerStats::kAllocationBuckets;
       bound *= 4) {
    ++bucket;
  }
  ++allocation_sizes_[bucket];
  allocation_chunks_ += chunks;
}

void HostTier::TakeSlots(std::span<const ChunkKey> keys, const Reservation& reservation,
                         const SlotRef& before, AccessLog& log, StorePlan& plan) {
  const bool by_end = !reservation.ends.empty();
  std::optional<SlotId> parent = Parent(before);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Offered& offered = offer_[i];
    if (!offered.wanted) {
      if (offered.found.generation != 0) parent = offered.found.slot;
      continue;
    }
    AccessLog::Entry& entry = *log.Find(offered.fingerprint);
    if (by_end) {
      parent = ParentInOrder(log, entry);
    } else if (!reservation.is_sequence || (i == 0 && offered.was_placed)) {
      // It was the request's before and is gone: it does not continue what came after it.
      parent.reset();
    }
    const SlotId slot = table_.Take(offered.fingerprint, keys[i]);
    if (checksums_ != nullptr) checksums_->Forget(slot);
    policy_->OnInsert(slot, offered.fingerprint, parent);
    plan.slots.push_back(slot);
    if (parent) table_[*parent].next = slot.value;
    parent = slot;
    entry.chunk = RefTo(slot);
    entry.kind = AccessLog::Kind::kOwn;
    log.tail = entry.chunk;
    if (entry.placed) log.placed_tail = entry.chunk;
  }
}

bool HostTier::MakeRoom(std::uint32_t count, const Reservation& reservation, AccessLog& own,
                        StorePlan& plan) {
  // Refusing costs nothing more where it is clear, however many chunks are pinned.
  if (count > ready_count_ - pinned_count_) return false;
  if (++offer_number_ == 0) offer_number_ = 1;
  for (const Offered& offered : offer_) {
    if (offered.found.generation != 0) table_[offered.found.slot].spared_in = offer_number_;
  }
  victims_.clear();
  const Evictable evictable(*this, reservation, own);
  if (!policy_->ChooseVictims(count, evictable, victims_)) return false;
  TERRACE_CHECK(victims_.size() == count, "an eviction policy named too few victims, or too many");
  fingerprints_.clear();
  for (SlotId victim : victims_) {
    TERRACE_CHECK(victim.value < slot_count(),
                  "an eviction policy named a slot that does not exist");
    fingerprints_.push_back(KeyHash(table_[victim].key));
    table_.Prefetch(fingerprints_.back());
  }
  for (std::size_t i = 0; i < victims_.size(); ++i) {
    // Also false for one that was named before.
    TERRACE_CHECK(evictable.MayEvict(victims_[i]),
                  "an eviction policy named a slot that must stay");
    plan.evicted.push_back(table_[victims_[i]].key);
    Record(CacheEvent::Kind::kRemoved, plan.evicted.back());
    policy_->OnRemove(victims_[i], fingerprints_[i], EvictionPolicy::Removal::kEvicted);
    table_.Free(fingerprints_[i], victims_[i]);
  }
  ready_count_ -= count;
  evicted_total_ += count;
  return true;
}

AccessLog& HostTier::LogOf(RequestId request) {
  if (const std::uint32_t* const place = requests_.Find(request)) return *logs_[*place];
  if (unused_logs_.empty()) {
    unused_logs_.push_back(static_cast<std::uint32_t>(logs_.size()));
    logs_.push_back(std::make_unique<AccessLog>());
    unused_logs_.reserve(logs_.size());  // For when all have ended.
  }
  const std::uint32_t place = unused_logs_.back();
  unused_logs_.pop_back();
  requests_.Insert(request, place);
  logs_[place]->refreshed_at = clock_;
  return *logs_[place];
}

bool HostTier::IsThere(const SlotRef& chunk) const {
  if (chunk.generation == 0) return false;
  const SlotTable::Slot& slot = table_[chunk.slot];
  const bool found = slot.state == SlotState::kWriting || slot.state == SlotState::kReady;
  return found && slot.generation == chunk.generation;
}

std::optional<SlotId> HostTier::Parent(const SlotRef& chunk) const {
  if (!IsThere(chunk)) return std::nullopt;
  return chunk.slot;
}

void HostTier::NoteAccess(AccessLog& log, Fingerprint fingerprint, SlotId slot,
                          std::optional<std::uint32_t> end) {
  using Kind = AccessLog::Kind;
  const SlotRef now = RefTo(slot);
  const bool ready = IsReady(slot);
  AccessLog::Entry* entry = log.Find(fingerprint);
  if (entry == nullptr) entry = log.Add(fingerprint, Kind::kMissed, {});
  const bool same = entry->chunk.generation == now.generation && entry->chunk.slot == slot;
  if (!same || (entry->kind == Kind::kSeen && ready)) {
    const bool told = entry->kind == Kind::kReused;
    entry->chunk = now;
    entry->kind = ready ? Kind::kReused : Kind::kSeen;
    if (ready) {
      accesses_.push_back({slot, told ? ChunkAccess::Kind::kRepeat : ChunkAccess::Kind::kReuse});
    }
  } else if (!entry->placed) {
    accesses_.push_back({slot, ChunkAccess::Kind::kOwn});
  }
  log.Place(entry, end);
  log.tail = log.placed_tail = now;
}

std::optional<SlotId> HostTier::ParentInOrder(const AccessLog& log,
                                              const AccessLog::Entry& entry) const {
  std::optional<SlotId> parent;
  log.FindBefore(entry, [&](const AccessLog::Entry& before) {
    if (!IsThere(before.chunk)) return false;
    parent = before.chunk.slot;
    return true;
  });
  return parent;
}

void HostTier::ApplyAccesses(std::optional<SlotId> parent) { ApplyAccesses(accesses_, parent); }

void HostTier::ApplyAccesses(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) {
  if (accesses.empty()) return;
  for (const ChunkAccess& access : accesses) {
    if (parent == access.slot) parent.reset();
  }
  policy_->OnAccess(accesses, parent);
  clock_ += accesses.size();
}

// In runs of chunks that follow each other in the order of the request: others may lie between.
void HostTier::ApplyAccessesByEnd(AccessLog& log) {
  std::size_t begin = 0;
  std::optional<SlotId> parent;
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const AccessLog::Entry& entry = *log.Find(KeyHash(table_[accesses_[i].slot].key));
    const std::optional<SlotId> before = ParentInOrder(log, entry);
    if (i > 0 && before == accesses_[i - 1].slot) continue;
    ApplyAccesses(std::span(accesses_).subspan(begin, i - begin), parent);
    begin = i;
    parent = before;
  }
  ApplyAccesses(std::span(accesses_).subspan(begin), parent);
}

void HostTier::RecordAccess(RequestId request, std::span<const SlotId> slots, ChunkEnds ends) {
  TERRACE_CHECK(ends.empty() || ends.size() == slots.size(), "as many ends as slots");
  AccessLog& log = LogOf(request);
  const SlotRef before = log.placed_tail;
  accesses_.clear();
  const auto note = [&](std::size_t i, std::optional<std::uint32_t> end) {
    NoteAccess(log, KeyHash(table_[slots[i]].key), slots[i], end);
  };
  if (ends.empty()) {
    for (std::size_t i = 0; i < slots.size(); ++i) note(i, std::nullopt);
    ApplyAccesses(Parent(before));
  } else {
    const bool sorted = !SortByEnd(ends);
    for (std::size_t n = 0; n < slots.size(); ++n) {
      const std::size_t i = sorted ? n : by_end_[n];
      note(i, ends[i]);
    }
    ApplyAccessesByEnd(log);
  }
  RefreshIfAged(log);
}

void HostTier::Touch(RequestId request, std::span<const ChunkKey> keys) {
  AccessLog& log = LogOf(request);
  const SlotRef before = log.placed_tail;
  LookUpOffer(keys);
  accesses_.clear();
  // What the request had before does not continue what came after it.
  bool again = false;
  for (const Offered& offered : offer_) {
    if (offered.found.generation == 0) continue;
    const std::size_t told = accesses_.size();
    NoteAccess(log, offered.fingerprint, offered.found.slot);
    if (accesses_.size() > told) continue;
    if (accesses_.empty()) again = true;
    const bool own = log.Find(offered.fingerprint)->kind == AccessLog::Kind::kOwn;
    accesses_.push_back(
        {offered.found.slot, own ? ChunkAccess::Kind::kOwn : ChunkAccess::Kind::kRepeat});
  }
  ApplyAccesses(again ? std::nullopt : Parent(before));
  RefreshIfAged(log);
}

void HostTier::RefreshIfAged(AccessLog& log) {
  if (log.is_sequence && clock_ - log.refreshed_at >= refresh_interval_) Refresh(log);
}

void HostTier::Refresh(AccessLog& log) {
  accesses_.clear();
  log.ForEachInOrder([&](const AccessLog::Entry& entry) {
    if (!IsThere(entry.chunk)) return;
    const bool own = entry.kind == AccessLog::Kind::kOwn;
    accesses_.push_back(
        {entry.chunk.slot, own ? ChunkAccess::Kind::kOwn : ChunkAccess::Kind::kRepeat});
  });
  if (!accesses_.empty()) policy_->OnAccess(accesses_, std::nullopt);
  log.refreshed_at = clock_;
}

void HostTier::OnRequestFinished(RequestId request) {
  const std::uint32_t* const found = requests_.Find(request);
  if (found == nullptr) return;
  const std::uint32_t place = *found;
  Refresh(*logs_[place]);
  logs_[place]->Clear();
  requests_.Erase(request);
  unused_logs_.push_back(place);
}

}  // namespace terrace
