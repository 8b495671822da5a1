// Chunks on their way to the tiers: given at once, or waiting for their turn.
//
// Two kinds wait. A chunk that a tier was promised but that somebody else still writes is parked
// with the request that offered it. A stored chunk whose tier has too much under way waits at the
// tier, without a pin: a slow tier costs the chunks that it is too slow for, never host memory.
#include <algorithm>
#include <utility>

#include "manager/tiering_manager.h"

namespace terrace {
namespace {

constexpr std::size_t kWaitingBatch = 64;  // Chunks in a job of what waited.

}  // namespace

void TieringManager::Cascade(std::span<const SlotId> slots, RequestState& state) {
  if (slots.empty() || tiers_are_shut_) return;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if ((state.unwanted_by >> i & 1) != 0) continue;
    GiveToTier(i, slots, state, state.IsWantedWholeBy(i));
  }
  if (state.whole_request_tiers == 0) return;
  for (SlotId slot : slots) state.given.insert(host_->KeyOf(slot));
}

// How many more slots cascades to this tier may pin.
std::uint64_t TieringManager::CascadeRoom(const Tier& tier) const {
  const std::uint64_t bound = SlotsOf(options_.cascading_slots_percent);
  const std::uint64_t used = tier.guard.stats().cascade.slots_in_flight;
  return bound > used ? bound - used : 0;
}

// `promised`: back-pressure must not drop it.
void TieringManager::GiveToTier(std::size_t index, std::span<const SlotId> slots,
                                RequestState& state, bool promised) {
  Tier& tier = *tiers_[index];
  if (!promised && !tier.guard.AdmitsStore(slots.size(), options_.now())) return;
  // In turn: what waits already goes first.
  std::span<const SlotId> now =
      tier.waiting.empty() ? slots.first(std::min<std::size_t>(CascadeRoom(tier), slots.size()))
                           : slots.first(0);
  if (!now.empty()) SubmitCascade(index, now, state.request.id);
  const TimePoint until = options_.now() + options_.waiting_timeout;
  for (SlotId slot : slots.subspan(now.size())) {
    if (tier.waiting.size() >= host_->slot_count()) {
      ++tier.guard.stats().dropped_while_waiting_chunks;
      continue;
    }
    tier.waiting.push_back({host_->KeyOf(slot), state.request.id, until});
    ++state.cascades_waiting;
  }
}

void TieringManager::FlushWaiting() {
  for (std::size_t i = 0; i < tiers_.size(); ++i) FlushWaiting(i);
}

void TieringManager::FlushWaiting(std::size_t index) {
  Tier& tier = *tiers_[index];
  const TimePoint now = options_.now();
  while (!tier.waiting.empty()) {
    const std::uint64_t room = std::min<std::uint64_t>(CascadeRoom(tier), kWaitingBatch);
    const bool overdue = tier.waiting.front().until <= now;
    if (room == 0 && !overdue) return;
    const RequestId request = tier.waiting.front().request;
    std::vector<SlotId> slots;
    while (!tier.waiting.empty() && tier.waiting.front().request == request &&
           slots.size() < std::max<std::uint64_t>(room, 1)) {
      const Waiting& front = tier.waiting.front();
      const auto slot = host_->SlotOf(front.key);
      if (front.until > now && slot && host_->IsReady(*slot)) {
        // Evicted and stored again, it waits twice; a job names a chunk once.
        const bool twice = std::find(slots.begin(), slots.end(), *slot) != slots.end();
        if (slots.size() >= room || twice) break;
        slots.push_back(*slot);
      } else {
        ++tier.guard.stats().dropped_while_waiting_chunks;
      }
      tier.waiting.pop_front();
      --MustFind(request).cascades_waiting;
    }
    if (!slots.empty()) SubmitCascade(index, slots, request);
    ForgetIfDone(request);
  }
}

// For tiers that want the whole request: what it offers and host memory has already is given to
// them now, or parked until who writes it is done. The engine will not offer it again.
void TieringManager::OfferWholeRequest(std::span<const ChunkKey> keys, const StorePlan& plan,
                                       RequestState& state) {
  std::vector<SlotId> ready;
  auto planned = plan.keys.begin();  // A subsequence of the offer.
  for (const ChunkKey& key : keys) {
    if (planned != plan.keys.end() && *planned == key) {
      ++planned;
      continue;
    }
    const auto slot = host_->SlotOf(key);
    if (!slot || !state.given.insert(key).second) continue;
    if (host_->IsReady(*slot)) {
      ready.push_back(*slot);
    } else {
      state.parked.push_back(key);
      if (state.parked.size() == 1) state.parked_until = options_.now() + options_.waiting_timeout;
      requests_parked_.insert(state.request.id);
    }
  }
  GiveWholeRequest(ready, state);
}

void TieringManager::GiveWholeRequest(std::span<const SlotId> slots, RequestState& state) {
  if (slots.empty()) return;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (state.IsWantedWholeBy(i)) GiveToTier(i, slots, state, true);
  }
}

void TieringManager::FlushParked() {
  if (requests_parked_.empty()) return;
  const std::vector<RequestId> ids(requests_parked_.begin(), requests_parked_.end());
  for (RequestId id : ids) {
    RequestState& state = MustFind(id);
    const bool overdue = state.parked_until <= options_.now();
    std::vector<SlotId> ready;
    std::vector<ChunkKey> still_written;
    std::uint64_t dropped = 0;
    for (const ChunkKey& key : state.parked) {
      const auto slot = host_->SlotOf(key);
      if (slot && host_->IsReady(*slot)) {
        ready.push_back(*slot);
      } else if (slot && !overdue) {
        still_written.push_back(key);
      } else {
        if (slot) ++stats_.parked_chunks_overdue;
        ++dropped;
      }
    }
    CountDroppedParked(dropped, state);
    state.parked = std::move(still_written);
    if (state.parked.empty()) requests_parked_.erase(id);
    GiveWholeRequest(ready, state);
    ForgetIfDone(id);
  }
}

// A tier that was promised a chunk and does not get it can tell by this count.
void TieringManager::CountDroppedParked(std::uint64_t chunks, const RequestState& state) {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (!state.IsWantedWholeBy(i)) continue;
    tiers_[i]->guard.stats().dropped_while_waiting_chunks += chunks;
  }
}

void TieringManager::DropWaits(RequestState& state) {
  for (const auto& tier : tiers_) {
    tier->guard.stats().dropped_while_waiting_chunks += std::erase_if(
        tier->waiting, [&](const Waiting& w) { return w.request == state.request.id; });
  }
  state.cascades_waiting = 0;
  CountDroppedParked(state.parked.size(), state);
  state.parked.clear();
  requests_parked_.erase(state.request.id);
}

// Nothing waits any more; who waited may be done.
void TieringManager::DropWaits() {
  for (const auto& tier : tiers_) {
    tier->guard.stats().dropped_while_waiting_chunks += tier->waiting.size();
    tier->waiting.clear();
  }
  requests_parked_.clear();
  std::vector<RequestId> ids;
  for (auto& [id, state] : requests_) {
    state.cascades_waiting = 0;
    CountDroppedParked(state.parked.size(), state);
    state.parked.clear();
    ids.push_back(id);
  }
  for (RequestId id : ids) ForgetIfDone(id);
}

}  // namespace terrace
