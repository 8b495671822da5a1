// Naive models of the eviction policies: vectors from the oldest to the newest, copied to try
// something. Written from the papers and from eviction_policy.h, not from the policies.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/eviction_policy.h"

namespace terrace::model {

using Slot = std::uint32_t;
using List = std::vector<Slot>;
using Ghosts = std::vector<Fingerprint>;

template <typename T>
bool Has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}
template <typename T>
bool Erase(std::vector<T>& list, const T& value) {
  return std::erase(list, value) > 0;
}
// One place older than `parent` if it is in the list, else the newest.
inline void Put(List& list, Slot slot, std::optional<Slot> parent) {
  auto at = list.end();
  if (parent) at = std::find(list.begin(), list.end(), *parent);
  list.insert(at, slot);
}
inline std::optional<Slot> Number(std::optional<SlotId> slot) {
  if (!slot) return std::nullopt;
  return slot->value;
}

class PolicyModel {
 public:
  virtual ~PolicyModel() = default;
  virtual void OnInsert(Slot slot, Fingerprint fingerprint, std::optional<SlotId> parent) = 0;
  virtual void OnRemove(Slot slot, Fingerprint fingerprint, EvictionPolicy::Removal removal) = 0;
  virtual void OnAccess(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) = 0;
  virtual void OnMiss(const std::vector<Fingerprint>&) {}
  // What ChooseVictims() and the OnRemove() that follow do to the order is done here or there.
  virtual std::optional<List> ChooseVictims(std::uint32_t count, const EvictionFilter& filter) = 0;
  virtual void Clear() = 0;
};

class Lru final : public PolicyModel {
 public:
  void OnInsert(Slot slot, Fingerprint, std::optional<SlotId> parent) override {
    Put(all_, slot, Number(parent));
  }
  void OnRemove(Slot slot, Fingerprint, EvictionPolicy::Removal) override { Erase(all_, slot); }
  void OnAccess(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) override {
    std::optional<Slot> before = Number(parent);
    for (const ChunkAccess& access : accesses) {
      Erase(all_, access.slot.value);
      Put(all_, access.slot.value, before);
      before = access.slot.value;
    }
  }
  std::optional<List> ChooseVictims(std::uint32_t count, const EvictionFilter& filter) override {
    List victims;
    for (Slot slot : all_) {
      if (victims.size() < count && filter.MayEvict(SlotId(slot))) victims.push_back(slot);
    }
    if (victims.size() < count) return std::nullopt;
    return victims;
  }
  void Clear() override { all_.clear(); }

 private:
  List all_;
};

class Arc final : public PolicyModel {
 public:
  explicit Arc(std::uint32_t slots) : slots_(slots) {}

  void OnInsert(Slot slot, Fingerprint fingerprint, std::optional<SlotId> parent) override {
    Erase(b1_, fingerprint);
    Erase(b2_, fingerprint);
    Put(t1_, slot, Number(parent));
  }
  void OnRemove(Slot slot, Fingerprint fingerprint, EvictionPolicy::Removal removal) override {
    Ghosts& ghosts = Erase(t1_, slot) ? b1_ : b2_;
    Erase(t2_, slot);
    if (removal == EvictionPolicy::Removal::kDropped) return;
    ghosts.push_back(fingerprint);
    if (ghosts.size() > slots_) ghosts.erase(ghosts.begin());
  }
  // In reverse, each to the newest end of its list, as the reference has it; or forwards behind the
  // parent.
  void OnAccess(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) override {
    for (const ChunkAccess& access : accesses) {
      const bool reuse = access.kind == ChunkAccess::Kind::kReuse;
      if (reuse && Erase(t1_, access.slot.value)) t2_.push_back(access.slot.value);
    }
    for (List* list : {&t1_, &t2_}) {
      List moved;
      for (const ChunkAccess& access : accesses) {
        if (Erase(*list, access.slot.value)) moved.insert(moved.begin(), access.slot.value);
      }
      auto at = list->end();
      if (parent) at = std::find(list->begin(), list->end(), parent->value);
      list->insert(at, moved.begin(), moved.end());
    }
  }
  void OnMiss(const std::vector<Fingerprint>& fingerprints) override {
    for (auto ghost = fingerprints.rbegin(); ghost != fingerprints.rend(); ++ghost) {
      const double b1 = static_cast<double>(b1_.size()), b2 = static_cast<double>(b2_.size());
      if (Erase(b1_, *ghost)) {
        target = std::min<double>(target + std::max(1.0, b2 / b1), slots_);
        b1_.push_back(*ghost);
      } else if (Erase(b2_, *ghost)) {
        target = std::max<double>(target - std::max(1.0, b1 / b2), 0);
        b2_.push_back(*ghost);
      }
    }
  }
  std::optional<List> ChooseVictims(std::uint32_t count, const EvictionFilter& filter) override {
    List victims, t1 = t1_, t2 = t2_;
    const auto take = [&](List& list) {
      for (Slot slot : list) {
        if (!filter.MayEvict(SlotId(slot))) continue;
        victims.push_back(slot);
        Erase(list, slot);
        return true;
      }
      return false;
    };
    while (victims.size() < count) {
      const bool t1_first = static_cast<double>(t1.size()) >= std::floor(target);
      if (t1_first ? take(t1) || take(t2) : take(t2) || take(t1)) continue;
      return std::nullopt;
    }
    return victims;
  }
  void Clear() override { *this = Arc(slots_); }

  double target = 0;

 private:
  std::uint32_t slots_;
  List t1_, t2_;
  Ghosts b1_, b2_;
};

class S3Fifo final : public PolicyModel {
 public:
  explicit S3Fifo(std::uint32_t slots) : slots_(slots) {}

  void OnInsert(Slot slot, Fingerprint fingerprint, std::optional<SlotId> parent) override {
    Put(Erase(ghosts_, fingerprint) ? main_ : small_, slot, Number(parent));
    uses_[slot] = 0;
  }
  void OnRemove(Slot slot, Fingerprint fingerprint, EvictionPolicy::Removal removal) override {
    const bool was_in_small = Erase(small_, slot) || Erase(left_small_, slot);
    Erase(main_, slot);
    if (!was_in_small || removal == EvictionPolicy::Removal::kDropped) return;
    ghosts_.push_back(fingerprint);
    if (ghosts_.size() > std::max(slots_ - slots_ / 10, 1U)) ghosts_.erase(ghosts_.begin());
  }
  void OnAccess(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) override {
    std::map<List*, std::optional<Slot>> before;
    for (List* list : {&small_, &main_}) {
      if (parent && Has(*list, parent->value)) before[list] = parent->value;
    }
    for (const ChunkAccess& access : accesses) {
      const Slot slot = access.slot.value;
      if (access.kind == ChunkAccess::Kind::kReuse) uses_[slot] = std::min(uses_[slot] + 1, 3);
      if (access.kind != ChunkAccess::Kind::kOwn) continue;
      List* const list = Erase(small_, slot) ? &small_ : &main_;
      Erase(main_, slot);
      Put(*list, slot, before[list]);
      before[list] = slot;
    }
  }
  std::optional<List> ChooseVictims(std::uint32_t count, const EvictionFilter& filter) override {
    S3Fifo next = *this;
    List victims;
    while (victims.size() < count) {
      const bool small_first = next.small_.size() >= std::max(slots_ / 10, 1U);
      const auto victim = small_first ? next.Either(filter, true) : next.Either(filter, false);
      if (!victim) return std::nullopt;
      victims.push_back(*victim);
    }
    *this = next;
    return victims;
  }
  void Clear() override { *this = S3Fifo(slots_); }

 private:
  std::optional<Slot> Either(const EvictionFilter& filter, bool small_first) {
    std::optional<Slot> victim;
    if (!small_first) victim = FromMain(filter);
    if (!victim) victim = FromSmall(filter);
    if (!victim) victim = FromMain(filter);
    return victim;
  }
  std::optional<Slot> FromSmall(const EvictionFilter& filter) {
    const List queue = small_;
    for (Slot slot : queue) {
      if (!filter.MayEvict(SlotId(slot))) continue;
      Erase(small_, slot);
      if (uses_[slot] < 2) {
        left_small_.push_back(slot);
        return slot;
      }
      uses_[slot] = 0;
      main_.push_back(slot);
    }
    return std::nullopt;
  }
  std::optional<Slot> FromMain(const EvictionFilter& filter) {
    for (;;) {
      const auto next = std::find_if(main_.begin(), main_.end(),
                                     [&](Slot slot) { return filter.MayEvict(SlotId(slot)); });
      if (next == main_.end()) return std::nullopt;
      const Slot slot = *next;
      Erase(main_, slot);
      if (uses_[slot] == 0) return slot;
      --uses_[slot];
      main_.push_back(slot);
    }
  }

  std::uint32_t slots_;
  List small_, main_;
  List left_small_;  // Victims, until they are removed.
  Ghosts ghosts_;
  std::map<Slot, int> uses_;
};

class Sieve final : public PolicyModel {
 public:
  void OnInsert(Slot slot, Fingerprint, std::optional<SlotId> parent) override {
    Put(queue_, slot, Number(parent));
    reused_[slot] = false;
  }
  void OnRemove(Slot slot, Fingerprint, EvictionPolicy::Removal) override { Leave(slot); }
  void OnAccess(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) override {
    std::optional<Slot> before = Number(parent);
    for (const ChunkAccess& access : accesses) {
      const Slot slot = access.slot.value;
      if (access.kind == ChunkAccess::Kind::kReuse) reused_[slot] = true;
      if (access.kind != ChunkAccess::Kind::kOwn) continue;
      Leave(slot);
      Put(queue_, slot, before);
      before = slot;
    }
  }
  std::optional<List> ChooseVictims(std::uint32_t count, const EvictionFilter& filter) override {
    Sieve next = *this;
    List victims;
    while (victims.size() < count) {
      const auto victim = next.Turn(filter);
      if (!victim) return std::nullopt;
      victims.push_back(*victim);
    }
    *this = next;
    return victims;
  }
  void Clear() override { *this = Sieve(); }

 private:
  std::optional<Slot> Newer(Slot slot) const {
    const auto at = std::find(queue_.begin(), queue_.end(), slot);
    if (at == queue_.end() || at + 1 == queue_.end()) return std::nullopt;
    return *(at + 1);
  }
  void Leave(Slot slot) {
    if (hand_ == slot) hand_ = Newer(slot);
    Erase(queue_, slot);
  }
  // Two rounds: the first may only take marks away.
  std::optional<Slot> Turn(const EvictionFilter& filter) {
    for (std::size_t i = 0; i < 2 * queue_.size() + 2; ++i) {
      if (queue_.empty()) return std::nullopt;
      const Slot slot = hand_.value_or(queue_.front());
      if (filter.MayEvict(SlotId(slot)) && !reused_[slot]) {
        hand_ = Newer(slot);
        Erase(queue_, slot);
        return slot;
      }
      if (filter.MayEvict(SlotId(slot))) reused_[slot] = false;
      hand_ = Newer(slot);
    }
    return std::nullopt;
  }

  List queue_;
  std::optional<Slot> hand_;  // None is the oldest.
  std::map<Slot, bool> reused_;
};

inline std::unique_ptr<PolicyModel> Make(const std::string& name, std::uint32_t slots) {
  if (name == "lru") return std::make_unique<Lru>();
  if (name == "arc") return std::make_unique<Arc>(slots);
  if (name == "s3fifo") return std::make_unique<S3Fifo>(slots);
  return std::make_unique<Sieve>();
}

}  // namespace terrace::model
