#include "host/host_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "host/lru_policy.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/keys.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::Key;
using testing_support::Keys;
using Reservation = HostTier::Reservation;
using State = HostTier::State;
using EventKind = CacheEvent::Kind;

constexpr RequestId kA{1};
constexpr RequestId kB{2};
constexpr RequestId kC{3};
constexpr PinHolder kLoad{PinHolder::Kind::kRequest, 1};
constexpr PinHolder kJob{PinHolder::Kind::kJob, 1};

HostTier MakeTier(std::uint32_t slots, const HostTierOptions& options = {}) {
  return HostTier(slots, std::make_unique<LruPolicy>(slots), EventRecording::kOn, options);
}

// Every call is a hold of its own, unless it says which.
std::uint64_t NextHold() {
  static std::uint64_t hold = 1000;
  return ++hold;
}

std::optional<StorePlan> Reserve(HostTier& tier, RequestId request,
                                 const std::vector<ChunkKey>& keys,
                                 std::uint64_t hold = NextHold()) {
  StorePlan plan;
  if (!tier.Reserve(keys, {request, hold}, plan)) return std::nullopt;
  return plan;
}

// Stores `keys` for a request that goes on.
void Store(HostTier& tier, RequestId request, const std::vector<ChunkKey>& keys) {
  const auto plan = Reserve(tier, request, keys);
  ASSERT_TRUE(plan.has_value());
  tier.Publish(plan->slots, CopyOutcome::kOk);
}

void StoreAndFinish(HostTier& tier, RequestId request, const std::vector<ChunkKey>& keys) {
  Store(tier, request, keys);
  tier.OnRequestFinished(request);
}

std::vector<SlotId> Pin(HostTier& tier, const std::vector<ChunkKey>& keys, PinHolder holder) {
  std::vector<SlotId> slots(keys.size());
  EXPECT_TRUE(tier.Pin(keys, holder, slots));
  return slots;
}

void RecordAccess(HostTier& tier, RequestId request, const std::vector<ChunkKey>& keys) {
  std::vector<SlotId> slots;
  for (const ChunkKey& key : keys) slots.push_back(tier.SlotOf(key).value());
  tier.RecordAccess(request, slots);
}

// Makes room for one more chunk and says which of `keys` went.
std::vector<ChunkKey> Evict(HostTier& tier, const std::vector<ChunkKey>& keys) {
  static std::uint64_t next = 1'000'000;
  const RequestId nobody(next);
  StorePlan plan;
  EXPECT_TRUE(tier.Reserve(Keys(next++, 1), {nobody, NextHold()}, plan));
  std::vector<ChunkKey> gone;
  for (const ChunkKey& key : keys) {
    if (tier.Find(key) == State::kAbsent) gone.push_back(key);
  }
  return gone;
}

TEST(HostTier, ForgetsAChecksumWithItsChunk) {
  SlotChecksums checksums(2);
  HostTier tier = MakeTier(2, {.checksums = &checksums});
  StoreAndFinish(tier, kA, {Key(1), Key(2)});
  const SlotId slot = *tier.SlotOf(Key(2));
  checksums.Note(*tier.SlotOf(Key(1)), 11);
  checksums.Note(slot, 22);
  Store(tier, kB, {Key(1)});
  EXPECT_EQ(checksums.Known(*tier.SlotOf(Key(1))), 11u) << "it is there already";
  // The deepest goes first.
  Store(tier, kB, {Key(3)});
  ASSERT_EQ(tier.SlotOf(Key(3)), slot);
  EXPECT_EQ(checksums.Known(slot), std::nullopt);
}

TEST(HostTier, AChunkIsReadyOnlyOnceItIsPublished) {
  HostTier tier = MakeTier(2);
  EXPECT_EQ(tier.Find(Key(1)), State::kAbsent);
  const auto plan = Reserve(tier, kA, Keys(1, 1));
  ASSERT_TRUE(plan);
  EXPECT_EQ(tier.Find(Key(1)), State::kWriting);
  tier.Publish(plan->slots, CopyOutcome::kOk);
  EXPECT_EQ(tier.Find(Key(1)), State::kReady);
  EXPECT_EQ(tier.SlotOf(Key(1)), plan->slots[0]);
  EXPECT_EQ(tier.KeyOf(plan->slots[0]), Key(1));
}

TEST(HostTier, AFailedWriteLeavesNothing) {
  HostTier tier = MakeTier(1);
  const auto plan = Reserve(tier, kA, Keys(1, 1));
  tier.Publish(plan->slots, CopyOutcome::kFailed);
  EXPECT_EQ(tier.Find(Key(1)), State::kAbsent);
  EXPECT_TRUE(Reserve(tier, kB, Keys(2, 1)));
  const auto events = tier.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EventKind::kFailed);
  EXPECT_EQ(events[0].key, Key(1));
}

TEST(HostTier, ReserveTakesOnlyWhatIsAbsentInTheOrderOffered) {
  HostTier tier = MakeTier(4);
  StoreAndFinish(tier, kA, Keys(2, 1));
  const auto plan = Reserve(tier, kB, Keys(1, 3));
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->keys, ElementsAre(Key(1), Key(3)));
  EXPECT_EQ(plan->slots.size(), 2u);
}

TEST(HostTier, FreshSlotsFirstThenThoseFreedLast) {
  HostTier tier = MakeTier(4);
  Store(tier, kA, Keys(0, 2));
  tier.OnRequestFinished(kA);
  const auto plan = Reserve(tier, kB, Keys(2, 3));
  ASSERT_TRUE(plan);
  // Chunk 1, in slot 1, is deeper than chunk 0.
  EXPECT_THAT(plan->slots, ElementsAre(SlotId(2), SlotId(3), SlotId(1)));
  for (std::uint32_t slot : {1U, 2U, 3U}) {
    const SlotId freed(slot);
    tier.Publish({&freed, 1}, CopyOutcome::kFailed);
  }
  EXPECT_THAT(Reserve(tier, kC, Keys(10, 3))->slots, ElementsAre(SlotId(3), SlotId(2), SlotId(1)));
}

TEST(HostTier, ReserveIsAllOrNothing) {
  HostTier tier = MakeTier(3);
  StoreAndFinish(tier, kA, Keys(1, 3));
  Pin(tier, Keys(3, 1), kLoad);  // The one that would go first.
  tier.TakeEvents();
  EXPECT_FALSE(Reserve(tier, kB, Keys(10, 3)));
  EXPECT_THAT(tier.TakeEvents(), IsEmpty());
  for (const ChunkKey& key : Keys(1, 3)) EXPECT_EQ(tier.Find(key), State::kReady);
  EXPECT_TRUE(Reserve(tier, kB, Keys(10, 2)));
  EXPECT_EQ(tier.Find(Key(3)), State::kReady);
}

// Room for a request's suffix must not cost its own prefix.
TEST(HostTier, NeverEvictsAKeyOfItsOwnOffer) {
  HostTier tier = MakeTier(3);
  StoreAndFinish(tier, kA, Keys(1, 2));
  StoreAndFinish(tier, kB, Keys(50, 1));
  EXPECT_FALSE(Reserve(tier, kC, Keys(1, 4)));
  tier.OnRequestFinished(kC);
  const auto plan = Reserve(tier, RequestId(4), Keys(1, 3));
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->keys, ElementsAre(Key(3)));
  EXPECT_EQ(tier.Find(Key(50)), State::kAbsent);
}

TEST(HostTier, APromotionNeverEvictsAKeyOfItsOffer) {
  HostTier tier = MakeTier(1);
  StoreAndFinish(tier, kA, Keys(1, 1));
  StorePlan plan;
  EXPECT_FALSE(tier.Reserve(Keys(1, 2), {kB, 1, HostTier::Purpose::kPromotion}, plan));
  EXPECT_EQ(tier.Find(Key(1)), State::kReady);
}

// A promotion's offer is one key; what else the request found in that hold is spared by the hold.
TEST(HostTier, WhatAHoldWasToldIsThereIsSparedInThatHoldOnly) {
  HostTier tier = MakeTier(1);
  StoreAndFinish(tier, kA, Keys(1, 1));
  EXPECT_EQ(tier.Use(Key(1), 7), State::kReady);
  EXPECT_FALSE(Reserve(tier, kB, Keys(2, 1), 7));
  EXPECT_TRUE(Reserve(tier, kB, Keys(2, 1), 8));
}

// Nor for a later offer of the same request: a suffix without its prefix is useless.
TEST(HostTier, ARequestNeverEvictsItsOwnEarlierChunks) {
  HostTier tier = MakeTier(2);
  Store(tier, kA, Keys(1, 2));
  EXPECT_FALSE(Reserve(tier, kA, Keys(3, 1)));
  EXPECT_TRUE(Reserve(tier, kB, Keys(50, 1)));
}

TEST(HostTier, AChunkBeingWrittenIsNeverEvicted) {
  HostTier tier = MakeTier(2);
  ASSERT_TRUE(Reserve(tier, kA, Keys(1, 1)));
  tier.OnRequestFinished(kA);
  StoreAndFinish(tier, kB, Keys(2, 1));  // Newer, and the only one that may go.
  EXPECT_TRUE(Reserve(tier, kC, Keys(3, 1)));
  EXPECT_EQ(tier.Find(Key(1)), State::kWriting);
  EXPECT_FALSE(Reserve(tier, RequestId(4), Keys(4, 1)));
}

TEST(HostTier, PinsCountAndTheLastOneLetsGo) {
  HostTier tier = MakeTier(1);
  StoreAndFinish(tier, kA, Keys(1, 1));
  const auto slots = Pin(tier, Keys(1, 1), kLoad);
  tier.PinSlots(slots, kJob);
  tier.Unpin(slots, kLoad);
  EXPECT_FALSE(Reserve(tier, kB, Keys(2, 1)));
  tier.CheckConservation();
  tier.Unpin(slots, kJob);
  EXPECT_TRUE(Reserve(tier, kB, Keys(2, 1)));
}

TEST(HostTier, PinReturnsSlotsInTheOrderAskedOrPinsNothing) {
  HostTier tier = MakeTier(4);
  StoreAndFinish(tier, kA, Keys(1, 3));
  EXPECT_THAT(Pin(tier, {Key(3), Key(1)}, kLoad), ElementsAre(SlotId(2), SlotId(0)));
  std::vector<SlotId> slots(2);
  EXPECT_FALSE(tier.Pin(std::vector{Key(2), Key(9)}, kLoad, slots));
  EXPECT_EQ(tier.pinned_count(), 2u);
}

// Recency.

TEST(HostTier, TheDeepestChunkOfARequestGoesFirst) {
  HostTier tier = MakeTier(3);
  StoreAndFinish(tier, kA, Keys(1, 3));
  EXPECT_THAT(Evict(tier, Keys(1, 3)), ElementsAre(Key(3)));
  EXPECT_THAT(Evict(tier, Keys(1, 3)), ElementsAre(Key(2), Key(3)));
}

// The same while the request goes on, and however it came by its chunks.
TEST(HostTier, TheDeepestChunkOfARunningRequestGoesFirst) {
  HostTier tier = MakeTier(64);
  Store(tier, kA, Keys(1, 2));
  Store(tier, kA, Keys(3, 2));
  EXPECT_EQ(Reserve(tier, kA, Keys(1, 6))->keys.size(), 2u);  // It offers all again.
  tier.Publish(std::vector{*tier.SlotOf(Key(5)), *tier.SlotOf(Key(6))}, CopyOutcome::kOk);
  StoreAndFinish(tier, kB, Keys(100, 58));
  for (std::size_t gone = 1; gone <= 6; ++gone) {
    EXPECT_EQ(Evict(tier, Keys(1, 6)), Keys(7 - gone, gone));
  }
}

// A request that began before all others, and goes on, is as recent as they are.
TEST(HostTier, ALongRunningRequestsNewestChunkIsNotTheFirstVictim) {
  HostTier tier = MakeTier(32);
  Store(tier, kA, Keys(1, 4));
  for (std::uint64_t i = 0; i < 60; ++i) {
    StoreAndFinish(tier, RequestId(100 + i), Keys(1000 + 2 * i, 2));
    if (i % 2 == 0) Store(tier, kA, Keys(5 + i / 2, 1));
    if (tier.SlotOf(Key(5 + i / 4))) continue;
    FAIL() << "its chunks were evicted while others went on in step " << i;
  }
}

// A prefix that two requests share is never older than what either puts behind it.
TEST(HostTier, ASharedPrefixOutlivesWhatContinuesIt) {
  HostTier tier = MakeTier(8);
  Store(tier, kA, Keys(1, 2));
  RecordAccess(tier, kB, Keys(1, 2));
  Store(tier, kB, Keys(20, 1));
  tier.OnRequestFinished(kB);
  Store(tier, kC, Keys(30, 2));
  tier.OnRequestFinished(kC);
  Store(tier, kA, Keys(3, 1));
  StoreAndFinish(tier, RequestId(4), Keys(40, 2));
  tier.OnRequestFinished(kA);
  const std::vector<ChunkKey> all = {Key(1), Key(2), Key(3), Key(20)};
  std::vector<ChunkKey> gone;
  while (gone.size() < 4) {
    gone = Evict(tier, all);
    const auto is_gone = [&](std::uint64_t n) {
      return std::find(gone.begin(), gone.end(), Key(n)) != gone.end();
    };
    EXPECT_LE(is_gone(1), is_gone(2));
    EXPECT_LE(is_gone(2), is_gone(3));
    EXPECT_LE(is_gone(2), is_gone(20));
  }
}

TEST(HostTier, UseByALaterRequestRefreshes) {
  HostTier tier = MakeTier(4);
  StoreAndFinish(tier, kA, Keys(1, 2));
  StoreAndFinish(tier, kB, Keys(10, 2));
  RecordAccess(tier, kC, Keys(1, 2));
  EXPECT_THAT(Evict(tier, {Key(1), Key(2), Key(10), Key(11)}), ElementsAre(Key(11)));
  tier.OnRequestFinished(kC);
  tier.OnRequestFinished(kC);  // Of an unknown request: nothing.
  EXPECT_THAT(Evict(tier, {Key(1), Key(2), Key(10), Key(11)}), ElementsAre(Key(10), Key(11)));
}

// The slot of a chunk that was used and evicted may hold another request's chunk by the time the
// first request finishes.
TEST(HostTier, AnOldUseDoesNotRefreshTheSlotsNewChunk) {
  HostTier tier = MakeTier(16);
  StoreAndFinish(tier, kA, Keys(1, 1));
  RecordAccess(tier, kB, Keys(1, 1));  // B goes on ...
  for (std::uint64_t i = 0; i < 16; ++i) StoreAndFinish(tier, RequestId(10 + i), Keys(10 + i, 1));
  ASSERT_EQ(tier.Find(Key(1)), State::kAbsent);  // ... its chunk 1 is evicted for another ...
  StoreAndFinish(tier, RequestId(50), Keys(50, 1));
  tier.OnRequestFinished(kB);
  // ... which is not the newest for it: 11 is the oldest, then 12 and so on.
  for (std::size_t gone = 1; gone < 16; ++gone) {
    EXPECT_EQ(Evict(tier, Keys(11, 15)), Keys(11, gone));
  }
}

// The first chunk's write failed, the others' did not: stored again, it is the first all the same.
TEST(HostTier, AChunkThatIsStoredAgainHasItsOldPlaceInThePrefix) {
  HostTier tier = MakeTier(24);
  const auto plan = Reserve(tier, kA, Keys(1, 3));
  tier.Publish(std::vector{plan->slots[0]}, CopyOutcome::kFailed);
  tier.Publish(std::vector{plan->slots[1], plan->slots[2]}, CopyOutcome::kOk);
  Store(tier, kA, Keys(1, 1));
  Store(tier, kB, Keys(100, 21));
  for (std::size_t gone = 1; gone <= 3; ++gone) {
    EXPECT_EQ(Evict(tier, Keys(1, 3)), Keys(4 - gone, gone));
  }
}

// Tiers read for themselves: that is no use of the engine's.
TEST(HostTier, PinsChangeNoRecency) {
  HostTier tier = MakeTier(2);
  StoreAndFinish(tier, kA, Keys(1, 1));
  StoreAndFinish(tier, kB, Keys(2, 1));
  tier.Unpin(Pin(tier, Keys(1, 1), kJob), kJob);
  EXPECT_THAT(Evict(tier, Keys(1, 2)), ElementsAre(Key(1)));
}

// What the policy is told.

class SpyPolicy final : public EvictionPolicy {
 public:
  struct Told {
    std::vector<Fingerprint> misses;
    std::vector<SlotId> reused, own;
    int choices = 0;
  };
  SpyPolicy(std::uint32_t slot_count, Told& told) : lru_(slot_count), told_(told) {}

  void OnInsert(SlotId slot, Fingerprint fingerprint, std::optional<SlotId> parent) override {
    lru_.OnInsert(slot, fingerprint, parent);
  }
  void OnRemove(SlotId slot, Fingerprint fingerprint, Removal removal) override {
    lru_.OnRemove(slot, fingerprint, removal);
  }
  void OnAccess(std::span<const ChunkAccess> accesses, std::optional<SlotId> parent) override {
    for (const ChunkAccess& access : accesses) {
      if (access.kind == ChunkAccess::Kind::kReuse) told_.reused.push_back(access.slot);
      if (access.kind == ChunkAccess::Kind::kOwn) told_.own.push_back(access.slot);
    }
    lru_.OnAccess(accesses, parent);
  }
  void OnMiss(std::span<const Fingerprint> fingerprints) override {
    told_.misses.insert(told_.misses.end(), fingerprints.begin(), fingerprints.end());
  }
  bool ChooseVictims(std::uint32_t count, const EvictionFilter& filter,
                     std::vector<SlotId>& victims) override {
    ++told_.choices;
    return lru_.ChooseVictims(count, filter, victims);
  }
  void Clear() override { lru_.Clear(); }
  std::uint32_t refresh_interval() const override { return 1'000'000; }
  std::size_t memory_bytes() const override { return lru_.memory_bytes(); }

 private:
  LruPolicy lru_;
  Told& told_;
};

struct Spied {
  explicit Spied(std::uint32_t slots)
      : tier(slots, std::make_unique<SpyPolicy>(slots, told), EventRecording::kOff) {}
  SpyPolicy::Told told;
  HostTier tier;
};

TEST(HostTier, AClearRefusalDoesNotAskThePolicy) {
  Spied spied(2);
  StoreAndFinish(spied.tier, kA, Keys(1, 2));
  Pin(spied.tier, Keys(1, 2), kLoad);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Reserve(spied.tier, kB, Keys(10, 1)));
  EXPECT_EQ(spied.told.choices, 0);
}

// Also if room is refused and the offer repeated each step, or the chunk is evicted in between.
TEST(HostTier, AMissIsToldOncePerRequestAndKey) {
  Spied spied(2);
  StoreAndFinish(spied.tier, kA, Keys(1, 2));
  const auto pinned = Pin(spied.tier, Keys(1, 2), kLoad);
  spied.told.misses.clear();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Reserve(spied.tier, kB, Keys(10, 1)));
  spied.tier.Unpin(pinned, kLoad);
  Store(spied.tier, kB, Keys(10, 2));
  EXPECT_THAT(spied.told.misses, ElementsAre(KeyHash(Key(10)), KeyHash(Key(11))));
  EXPECT_FALSE(Reserve(spied.tier, kC, Keys(20, 3)));
  EXPECT_EQ(spied.told.misses.size(), 5u);
}

TEST(HostTier, AReuseIsToldOncePerRequestAndKeyAndNotOfItsOwnChunks) {
  Spied spied(8);
  HostTier& tier = spied.tier;
  Store(tier, kA, Keys(1, 2));
  EXPECT_TRUE(Reserve(tier, kA, Keys(1, 3)));  // Stored, then offered again.
  RecordAccess(tier, kA, Keys(1, 2));          // Loaded by the same request.
  EXPECT_THAT(spied.told.reused, IsEmpty());
  for (int i = 0; i < 3; ++i) {
    const std::vector<SlotId> slots = {*tier.SlotOf(Key(1)), *tier.SlotOf(Key(2))};
    tier.RecordAccess(kB, std::span<const SlotId>(slots));
    EXPECT_TRUE(Reserve(tier, kB, Keys(1, 2)));
  }
  EXPECT_THAT(spied.told.reused, ElementsAre(SlotId(0), SlotId(1)));
}

TEST(HostTier, AReuseIsToldAlsoIfThereIsNoRoomForTheRestOfTheOffer) {
  Spied spied(2);
  StoreAndFinish(spied.tier, kA, Keys(1, 2));
  EXPECT_FALSE(Reserve(spied.tier, kB, Keys(1, 3)));
  EXPECT_EQ(spied.told.reused.size(), 2u);
}

TEST(HostTier, AChunkSeenWhileItWasWrittenIsReusedOnceItIsReady) {
  Spied spied(4);
  const auto plan = Reserve(spied.tier, kA, Keys(1, 1));
  RecordAccess(spied.tier, kB, Keys(1, 1));
  EXPECT_THAT(spied.told.reused, IsEmpty());
  spied.tier.Publish(plan->slots, CopyOutcome::kOk);
  RecordAccess(spied.tier, kB, Keys(1, 1));
  EXPECT_THAT(spied.told.reused, ElementsAre(SlotId(0)));
  StoreAndFinish(spied.tier, kC, Keys(10, 3));
  EXPECT_THAT(Evict(spied.tier, Keys(1, 1)), ElementsAre(Key(1)));
}

// What a request had promoted is its own; and a prefix in host memory comes before it.
TEST(HostTier, APromotedChunkIsItsRequestsOwnAndHasItsPlaceInThePrefix) {
  HostTier tier = MakeTier(4);
  StoreAndFinish(tier, kA, Keys(1, 1));
  StorePlan plan;
  for (std::uint64_t key : {2U, 3U}) {
    ASSERT_TRUE(tier.Reserve(Keys(key, 1), {kB, NextHold(), HostTier::Purpose::kPromotion}, plan));
    tier.Publish(plan.slots, CopyOutcome::kOk);
  }
  RecordAccess(tier, kB, Keys(1, 3));
  Store(tier, kB, Keys(4, 1));
  tier.OnRequestFinished(kB);
  for (std::size_t gone = 1; gone <= 4; ++gone) {
    EXPECT_EQ(Evict(tier, Keys(1, 4)), Keys(5 - gone, gone));
  }
}

// Offer counting.

// Chunks of a prefix in random pieces and order, also some that are used and not stored: evicted
// one by one, those that end last go first.
TEST(HostTier, ChunksWithEndsGoFromTheLastToTheFirst) {
  constexpr std::uint32_t kChunks = 12;
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    HostTier tier = MakeTier(kChunks);
    const std::uint32_t seeded = random() % kChunks;
    if (seeded > 0) StoreAndFinish(tier, kB, Keys(kChunks - seeded, seeded));
    std::vector<std::uint32_t> order(kChunks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t at = 0; at < order.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 4, order.size() - at);
      std::vector<ChunkKey> keys;
      std::vector<std::uint32_t> ends;
      for (std::size_t i = at; i < at + size; ++i) {
        keys.push_back(Key(order[i]));
        ends.push_back(16 * (order[i] + 1));
      }
      StorePlan plan;
      ASSERT_TRUE(tier.Reserve(keys, {.request = kA, .hold = NextHold(), .ends = ends}, plan));
      tier.Publish(plan.slots, CopyOutcome::kOk);
      at += size;
    }
    if (random() % 2 == 0) tier.OnRequestFinished(kA);
    std::vector<ChunkKey> left = Keys(0, kChunks);
    while (!left.empty()) {
      ASSERT_THAT(Evict(tier, left), ElementsAre(left.back())) << "seed " << seed;
      left.pop_back();
    }
  }
}

TEST(HostTier, AccessesWithEndsAreOnePrefixOfAllGroups) {
  HostTier tier = MakeTier(4);
  const std::vector<ChunkKey> keys = Keys(1, 4);  // Two groups of two.
  StoreAndFinish(tier, kA, keys);
  const std::vector<std::uint32_t> ends{16, 32, 16, 32};
  tier.RecordAccess(kB, Pin(tier, keys, kLoad), ends);
  tier.Unpin(std::vector<SlotId>{SlotId(0), SlotId(1), SlotId(2), SlotId(3)}, kLoad);
  EXPECT_THAT(Evict(tier, keys), ElementsAre(Key(4)));
  EXPECT_THAT(Evict(tier, keys), ElementsAre(Key(2), Key(4)));
}

TEST(HostTier, UnrelatedChunksGoInTheOrderInWhichTheyCame) {
  HostTier tier = MakeTier(3);
  StorePlan plan;
  const Reservation unrelated{.request = kA, .hold = NextHold(), .is_sequence = false};
  ASSERT_TRUE(tier.Reserve(Keys(1, 3), unrelated, plan));
  tier.Publish(plan.slots, CopyOutcome::kOk);
  EXPECT_THAT(Evict(tier, Keys(1, 3)), ElementsAre(Key(1)));
}

TEST(HostTier, WhatIsTouchedIsRecentAlsoIfTheRequestStoredItAndAgain) {
  HostTier tier = MakeTier(3);
  for (std::uint64_t i = 1; i <= 3; ++i) StoreAndFinish(tier, RequestId(100 + i), Keys(i, 1));
  Store(tier, kA, Keys(1, 1));
  tier.Touch(kA, Keys(1, 1));
  tier.Touch(kA, Keys(2, 1));
  tier.Touch(kA, Keys(1, 1));
  EXPECT_THAT(Evict(tier, Keys(1, 3)), ElementsAre(Key(3)));
  tier.Touch(kA, Keys(2, 1));
  tier.Touch(kA, Keys(1, 1));
  tier.Touch(kA, Keys(7, 1));  // Not there.
  EXPECT_THAT(Evict(tier, Keys(1, 2)), ElementsAre(Key(2)));
}

TEST(HostTier, APlanSaysHowManySlotsWereWantedAlsoIfThereIsNoRoom) {
  HostTier tier = MakeTier(2);
  StorePlan plan;
  EXPECT_TRUE(tier.Reserve(Keys(1, 2), {kA, NextHold()}, plan));
  EXPECT_EQ(plan.wanted, 2u);
  EXPECT_TRUE(tier.Reserve(Keys(1, 2), {kB, NextHold()}, plan));
  EXPECT_EQ(plan.wanted, 0u);
  EXPECT_FALSE(tier.Reserve(Keys(2, 4), {kB, NextHold()}, plan));
  EXPECT_EQ(plan.wanted, 3u);
}

TEST(HostTier, AChunkIsStoredFromItsNthOfferOn) {
  HostTier tier = MakeTier(4, {.store_threshold = 2});
  EXPECT_THAT(Reserve(tier, kA, Keys(1, 2))->keys, IsEmpty());
  EXPECT_EQ(tier.skipped_total(), 2u);
  EXPECT_THAT(Reserve(tier, kB, {Key(2), Key(3)})->keys, ElementsAre(Key(2)));
  EXPECT_EQ(tier.skipped_total(), 3u);
}

TEST(HostTier, APromotionIsNoOffer) {
  HostTier tier = MakeTier(4, {.store_threshold = 2});
  StorePlan plan;
  ASSERT_TRUE(tier.Reserve(Keys(1, 1), {kA, 1, HostTier::Purpose::kPromotion}, plan));
  EXPECT_EQ(plan.slots.size(), 1u);
}

TEST(HostTier, AllocationSizesAreCounted) {
  HostTier tier = MakeTier(32);
  Store(tier, kA, Keys(1, 1));
  Store(tier, kA, Keys(1, 1));  // Nothing to allocate.
  Store(tier, kA, Keys(10, 4));
  Store(tier, kA, Keys(20, 5));
  EXPECT_FALSE(Reserve(tier, kA, Keys(100, 40)));
  EXPECT_THAT(std::vector(tier.allocation_sizes().begin(), tier.allocation_sizes().begin() + 4),
              ElementsAre(1u, 1u, 1u, 1u));
  EXPECT_EQ(tier.allocation_chunks(), 50u);
}

// Events.

TEST(HostTier, EventsSayWhatChangedSinceTheyWereTaken) {
  HostTier tier = MakeTier(1);
  StoreAndFinish(tier, kA, Keys(1, 1));
  EXPECT_EQ(tier.TakeEvents().size(), 1u);
  StoreAndFinish(tier, kB, Keys(2, 1));
  StoreAndFinish(tier, kC, Keys(3, 1));
  const auto events = tier.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, EventKind::kRemoved);
  EXPECT_EQ(events[0].key, Key(1));
  EXPECT_EQ(events[1].kind, EventKind::kStored);
  EXPECT_EQ(events[1].key, Key(3));
  EXPECT_THAT(tier.TakeEvents(), IsEmpty());
}

TEST(HostTier, EventsThatDoNotFitAreSaidToBeLostAndASnapshotIsTheTruth) {
  HostTier tier = MakeTier(8, {.max_events = 3});
  StoreAndFinish(tier, kA, Keys(1, 8));
  const auto events = tier.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EventKind::kLost);
  std::vector<ChunkKey> there;
  tier.ForEachChunk([&](const ChunkKey& key) { there.push_back(key); });
  EXPECT_EQ(there, Keys(1, 8));
  StoreAndFinish(tier, kB, Keys(20, 1));
  EXPECT_EQ(tier.TakeEvents().size(), 2u);
}

TEST(HostTier, ResetPublishesItsRemovalsAndHeldSlotsBecomeFreeLater) {
  HostTier tier = MakeTier(3);
  StoreAndFinish(tier, kA, Keys(1, 2));
  const auto pinned = Pin(tier, Keys(1, 1), kLoad);
  const auto plan = Reserve(tier, kB, Keys(3, 1));
  tier.TakeEvents();
  const ResetReport report = tier.Reset();
  EXPECT_EQ(report.removed_chunks, 3u);
  EXPECT_EQ(report.busy_slots, 2u);
  EXPECT_EQ(tier.TakeEvents().size(), 2u);
  for (const ChunkKey& key : Keys(1, 3)) EXPECT_EQ(tier.Find(key), State::kAbsent);
  tier.CheckConservation();
  EXPECT_FALSE(Reserve(tier, kC, Keys(10, 2)));
  tier.Unpin(pinned, kLoad);
  tier.Publish(plan->slots, CopyOutcome::kOk);
  EXPECT_THAT(tier.TakeEvents(), IsEmpty());
  EXPECT_EQ(tier.orphan_count(), 0u);
  EXPECT_TRUE(Reserve(tier, kC, Keys(10, 3)));
  tier.OnRequestFinished(kB);
  tier.CheckConservation();
}

TEST(HostTier, AfterAResetWithNothingHeldSlotsAreFreshAgain) {
  HostTier tier = MakeTier(3);
  StoreAndFinish(tier, kA, Keys(1, 3));
  tier.Reset();
  EXPECT_THAT(Reserve(tier, kB, Keys(5, 3))->slots, ElementsAre(SlotId(0), SlotId(1), SlotId(2)));
}

// Look-ups guess where the next chunk of a prefix is; Find() does not. Prefixes that share their
// beginning, evicted and stored again in other slots, looked up in order and at random.
TEST(HostTier, AGuessIsNeverWrong) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t slots = 1 + random() % 40;
    HostTier tier = MakeTier(slots);
    for (std::uint64_t step = 1; step < 400; ++step) {
      const std::uint64_t first = random() % 60;
      const std::size_t count = 1 + random() % 8;
      if (random() % 3 == 0) {
        const auto plan =
            Reserve(tier, RequestId(step), Keys(first, std::min<std::size_t>(count, slots)));
        if (plan && random() % 5 != 0)
          tier.Publish(plan->slots, CopyOutcome::kOk);
        else if (plan)
          tier.Publish(plan->slots, CopyOutcome::kFailed);
        tier.OnRequestFinished(RequestId(step));
      }
      if (random() % 100 == 0) tier.Reset();
      for (const ChunkKey& key : Keys(random() % 60, count)) {
        ASSERT_EQ(tier.Use(key, step), tier.Find(key)) << "seed " << seed << " step " << step;
      }
    }
  }
}

// Costs.

// Every capacity: the index is no larger for an unlucky one.
TEST(HostTier, TablesTakeAtMost96BytesAChunk) {
  for (std::uint32_t slots : {1000U, 1023U, 1025U, 4097U, 100'000U}) {
    const HostTier tier = MakeTier(slots);
    EXPECT_LE(tier.memory_bytes(), std::size_t{slots} * 90 + 64) << slots;
  }
}

// The life of requests that load, store, evict and end, events off.
TEST(HostTier, AllocatesNothingOnceWarm) {
  for (const auto& name : EvictionPolicyNames()) {
    HostTier tier(256, MakeEvictionPolicy(name, 256).value(), EventRecording::kOff,
                  {.store_threshold = 0});
    std::vector<ChunkKey> keys = Keys(0, 5000);
    std::vector<SlotId> slots(32);
    StorePlan plan;
    std::uint64_t request = 0, before = 0;
    for (int round = 0; round < 400; ++round) {
      // A warm tier has seen its longest requests and most of what its policy does.
      if (round == 300) before = testing_support::allocation_count.load();
      for (std::uint64_t r = 0; r < 4; ++r) {
        const RequestId id(request + r);
        const std::size_t first = static_cast<std::size_t>((round * 37 + r * 16) % 4900);
        const std::span<const ChunkKey> prompt = std::span(keys).subspan(first, 32);
        std::size_t hits = 0;
        while (hits < 32 && tier.Use(prompt[hits], request + 1) == State::kReady) ++hits;
        const PinHolder holder{PinHolder::Kind::kRequest, id.value};
        const std::span<SlotId> loaded(slots.data(), hits);
        ASSERT_TRUE(tier.Pin(prompt.first(hits), holder, loaded));
        tier.RecordAccess(id, std::span<const SlotId>(loaded));
        if (!tier.Reserve(prompt, {id, request + 1}, plan)) plan.slots.clear();
        tier.Publish(plan.slots, CopyOutcome::kOk);
        tier.Unpin(loaded, holder);
      }
      for (std::uint64_t r = 0; r < 4; ++r) tier.OnRequestFinished(RequestId(request + r));
      request += 4;
    }
    EXPECT_EQ(testing_support::allocation_count.load() - before, 0u) << name;
    tier.CheckConservation();
  }
}

TEST(HostTierDeathTest, BrokenPromisesAreBugs) {
  HostTier tier = MakeTier(3);
  const auto plan = Reserve(tier, kA, Keys(1, 1));
  EXPECT_DEATH(tier.PinSlots(plan->slots, kLoad), "not ready");
  EXPECT_DEATH(std::ignore = Reserve(tier, kB, {Key(2), Key(2)}), "offered twice");
  tier.Publish(plan->slots, CopyOutcome::kOk);
  EXPECT_DEATH(tier.Publish(plan->slots, CopyOutcome::kOk), "not being written");
  EXPECT_DEATH(tier.Unpin(plan->slots, kLoad), "does not have");
}

}  // namespace
}  // namespace terrace
