#include "host/slot_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <unordered_map>

#include "tests/support/keys.h"

namespace terrace {
namespace {

using testing_support::Key;

TEST(SlotTable, HandsOutFreshSlotsInOrderThenThoseFreedLast) {
  SlotTable table(4);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(table.Take(Key(i)), SlotId(i));
  table.Free(SlotId(0));
  table.Free(SlotId(1));
  EXPECT_EQ(table.Take(Key(10)), SlotId(3));
  EXPECT_EQ(table.Take(Key(11)), SlotId(1));
  EXPECT_EQ(table.Take(Key(12)), SlotId(0));
  EXPECT_EQ(table.free_count(), 0u);
}

TEST(SlotTable, ASlotsGenerationChangesWithItsChunk) {
  SlotTable table(1);
  table.Take(Key(1));
  const std::uint32_t before = table[SlotId(0)].generation;
  table.Free(SlotId(0));
  table.Take(Key(2));
  EXPECT_NE(table[SlotId(0)].generation, before);
}

TEST(SlotTable, KeysThatDifferInOneByteOrInTheGroupAreDifferent) {
  SlotTable table(3);
  table.Take(Key(1));
  EXPECT_FALSE(table.Find(Key(1, 1)));
  EXPECT_FALSE(table.Find(Key(1ULL << 56 | 1)));
}

// Random takes and frees, the table as full as it gets, against a map. Small tables make long probe
// chains that wrap around.
TEST(SlotTable, EqualsAMap) {
  for (std::uint32_t slots : {1U, 2U, 3U, 7U, 64U, 1000U}) {
    SlotTable table(slots);
    std::unordered_map<ChunkKey, SlotId> model;
    std::mt19937_64 random(slots);
    for (int step = 0; step < 20'000; ++step) {
      const ChunkKey key = Key(random() % (2 * slots));
      const auto known = model.find(key);
      const auto found = table.Find(key);
      ASSERT_EQ(found.has_value(), known != model.end()) << "slots " << slots << " step " << step;
      if (found) {
        ASSERT_EQ(*found, known->second);
        ASSERT_EQ(table[*found].key, key);
        if (random() % 2 == 0) {
          table.Free(*found);
          model.erase(known);
        }
      } else if (table.free_count() > 0) {
        const SlotId slot = table.Take(key);
        for (const auto& [other_key, other] : model) ASSERT_NE(slot, other);
        model.emplace(key, slot);
      }
      ASSERT_EQ(table.free_count(), slots - model.size());
    }
  }
}

TEST(SlotTableDeathTest, DoubleFreeIsABug) {
  SlotTable table(1);
  table.Take(Key(1));
  table.Free(SlotId(0));
  EXPECT_DEATH(table.Free(SlotId(0)), "freed a free slot");
}

}  // namespace
}  // namespace terrace
