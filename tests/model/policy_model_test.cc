// Each eviction policy against a naive model of it: sequences and filters from seeds, every choice
// of victims equal, a refused one without a trace. And every short sequence for two slots.
//
// TERRACE_MODEL_SEED replays one seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "host/arc_policy.h"
#include "terrace/eviction_policy.h"
#include "tests/model/policy_models.h"

namespace terrace {
namespace {

using model::PolicyModel;
using Kind = ChunkAccess::Kind;

class SetFilter final : public EvictionFilter {
 public:
  bool MayEvict(SlotId slot) const override { return !kept.contains(slot.value); }
  std::set<std::uint32_t> kept;
};

// A policy and its model, told the same; slots and chunks as a host tier would hand them out.
class Pair {
 public:
  Pair(const std::string& name, std::uint32_t slots)
      : policy_(MakeEvictionPolicy(name, slots).value()),
        model_(model::Make(name, slots)),
        slots_(slots) {
    for (std::uint32_t i = 0; i < slots; ++i) free_.insert(i);
  }

  bool full() const { return free_.empty(); }
  const std::map<std::uint32_t, Fingerprint>& used() const { return used_; }

  void Insert(Fingerprint fingerprint, std::optional<SlotId> parent) {
    const std::uint32_t slot = *free_.begin();
    free_.erase(slot);
    used_[slot] = fingerprint;
    policy_->OnInsert(SlotId(slot), fingerprint, parent);
    model_->OnInsert(slot, fingerprint, parent);
  }
  void Drop(std::uint32_t slot) { Remove(slot, EvictionPolicy::Removal::kDropped); }
  void Access(const std::vector<ChunkAccess>& accesses, std::optional<SlotId> parent) {
    policy_->OnAccess(accesses, parent);
    model_->OnAccess(accesses, parent);
  }
  void Miss(const std::vector<Fingerprint>& fingerprints) {
    policy_->OnMiss(fingerprints);
    model_->OnMiss(fingerprints);
  }
  void Clear() {
    policy_->Clear();
    model_->Clear();
    for (const auto& [slot, fingerprint] : used_) free_.insert(slot);
    used_.clear();
  }
  void Evict(std::uint32_t count, const SetFilter& filter) {
    std::vector<SlotId> victims = {SlotId(7777)};  // What is there stays.
    const bool chosen = policy_->ChooseVictims(count, filter, victims);
    const auto expected = model_->ChooseVictims(count, filter);
    ASSERT_EQ(chosen, expected.has_value());
    ASSERT_EQ(victims[0], SlotId(7777));
    std::vector<std::uint32_t> actual;
    for (std::size_t i = 1; i < victims.size(); ++i) actual.push_back(victims[i].value);
    ASSERT_EQ(actual, expected.value_or(std::vector<std::uint32_t>{}));
    std::size_t may_go = 0;
    for (const auto& [slot, fingerprint] : used_) may_go += filter.MayEvict(SlotId(slot));
    ASSERT_EQ(chosen, may_go >= count) << "it refused what is possible";
    for (std::uint32_t slot : actual) {
      ASSERT_TRUE(filter.MayEvict(SlotId(slot)));
      Remove(slot, EvictionPolicy::Removal::kEvicted);
    }
    if (auto* const arc = dynamic_cast<ArcPolicy*>(policy_.get())) {
      ASSERT_EQ(arc->target(), dynamic_cast<model::Arc&>(*model_).target);
      ASSERT_GE(arc->target(), 0);
      ASSERT_LE(arc->target(), slots_);
    }
  }

 private:
  void Remove(std::uint32_t slot, EvictionPolicy::Removal removal) {
    policy_->OnRemove(SlotId(slot), used_.at(slot), removal);
    model_->OnRemove(slot, used_.at(slot), removal);
    used_.erase(slot);
    free_.insert(slot);
  }

  const std::unique_ptr<EvictionPolicy> policy_;
  const std::unique_ptr<PolicyModel> model_;
  const std::uint32_t slots_;
  std::set<std::uint32_t> free_;
  std::map<std::uint32_t, Fingerprint> used_;
};

Fingerprint FingerprintOf(std::uint64_t chunk) { return (chunk + 1) * 0x9e3779b97f4a7c15; }

class PolicyModelTest : public testing::TestWithParam<const char*> {};

void RunSeed(const std::string& name, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::uint32_t slots = 1 + static_cast<std::uint32_t>(random() % (seed % 3 == 0 ? 60 : 9));
  const std::uint64_t chunks = slots + 1 + random() % (2 * slots);
  Pair pair(name, slots);
  const auto any_used = [&] {
    auto it = pair.used().begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random() % pair.used().size()));
    return it->first;
  };
  const auto any_parent = [&]() -> std::optional<SlotId> {
    if (pair.used().empty() || random() % 2 == 0) return std::nullopt;
    return SlotId(any_used());
  };
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(step);
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        const Fingerprint fingerprint = FingerprintOf(random() % chunks);
        bool there = pair.full();
        for (const auto& [slot, other] : pair.used()) there |= other == fingerprint;
        if (random() % 4 != 0) pair.Miss({fingerprint});
        if (!there) pair.Insert(fingerprint, any_parent());
        break;
      }
      case 3:
      case 4: {
        std::vector<ChunkAccess> accesses;
        std::optional<SlotId> parent = any_parent();
        for (const auto& [slot, fingerprint] : pair.used()) {
          if (random() % 3 != 0 || parent == SlotId(slot)) continue;
          accesses.push_back({SlotId(slot), static_cast<Kind>(random() % 3)});
        }
        std::shuffle(accesses.begin(), accesses.end(), random);
        pair.Access(accesses, parent);
        break;
      }
      case 5:
        if (!pair.used().empty() && random() % 4 == 0) pair.Drop(any_used());
        if (random() % 100 == 0) pair.Clear();
        break;
      default: {
        SetFilter filter;
        for (const auto& [slot, fingerprint] : pair.used()) {
          if (random() % 4 == 0) filter.kept.insert(slot);
        }
        pair.Evict(1 + static_cast<std::uint32_t>(random() % (1 + slots / 2)), filter);
        break;
      }
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(PolicyModelTest, EqualsItsModel) {
  const char* const only = std::getenv("TERRACE_MODEL_SEED");
  const std::uint64_t first = only == nullptr ? 1 : std::strtoull(only, nullptr, 10);
  const std::uint64_t last = only == nullptr ? 200 : first;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("replay with TERRACE_MODEL_SEED=" + std::to_string(seed));
    RunSeed(GetParam(), seed);
    if (HasFatalFailure()) return;
  }
}

// Every sequence of kLength operations on two slots and three chunks, from empty and from full.
TEST_P(PolicyModelTest, EqualsItsModelInEveryShortSequence) {
  constexpr int kOperations = 12;
  constexpr int kLength = 4;
  int count = 1;
  for (int i = 0; i < kLength; ++i) count *= kOperations;
  for (int sequence = 0; sequence < 2 * count; ++sequence) {
    SCOPED_TRACE(sequence);
    Pair pair(GetParam(), 2);
    if (sequence >= count) {
      pair.Insert(FingerprintOf(0), std::nullopt);
      pair.Insert(FingerprintOf(1), SlotId(0));
    }
    int rest = sequence % count;
    for (int i = 0; i < kLength; ++i, rest /= kOperations) {
      const int operation = rest % kOperations;
      const auto oldest = pair.used().begin();
      if (operation < 6) {  // Chunk 0 to 2, alone or behind slot 0.
        const Fingerprint fingerprint = FingerprintOf(static_cast<std::uint64_t>(operation % 3));
        bool there = false;
        for (const auto& [slot, other] : pair.used()) there |= other == fingerprint;
        if (there) continue;
        pair.Miss({fingerprint});
        if (pair.full()) pair.Evict(1, SetFilter());
        const bool behind = operation >= 3 && !pair.used().empty();
        std::optional<SlotId> parent;
        if (behind) parent = SlotId(pair.used().begin()->first);
        pair.Insert(fingerprint, parent);
      } else if (operation < 9 && oldest != pair.used().end()) {
        pair.Access({{SlotId(oldest->first), static_cast<Kind>(operation - 6)}}, std::nullopt);
      } else if (operation == 9) {
        std::vector<ChunkAccess> all;
        for (const auto& [slot, fingerprint] : pair.used())
          all.push_back({SlotId(slot), Kind::kReuse});
        pair.Access(all, std::nullopt);
      } else if (operation == 10) {
        SetFilter filter;
        filter.kept.insert(0);
        pair.Evict(1, filter);
      } else if (operation == 11 && oldest != pair.used().end()) {
        pair.Drop(oldest->first);
      }
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyModelTest,
                         testing::Values("lru", "arc", "s3fifo", "sieve"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
