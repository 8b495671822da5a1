#include "device/block_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace terrace {
namespace {

using testing::ElementsAre;

std::byte* At(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// Pages of 16 bytes from 1000 on, in chunks of 4 whose slots lie one after the other from 5000 on.
// Of group 1 a page has 8 bytes.
BlockLayout Layout() {
  auto made = BlockLayout::Create({At(5000), 64, 64, 4}, {.tensors = {{At(1000), 16, 16, 16}},
                                                          .groups = {{{0, 16}}, {{0, 8}}},
                                                          .blocks_per_chunk = 4});
  return std::move(made).value();
}

// (engine, host, bytes) of each page.
std::vector<std::tuple<std::uintptr_t, std::uintptr_t, std::size_t>> Pages(
    std::vector<GroupBlocks> groups, PageMerging merging) {
  const BlockLayout layout = Layout();
  BlockJob job;
  job.groups = std::move(groups);
  EXPECT_TRUE(layout.Check(job).ok());
  std::vector<std::tuple<std::uintptr_t, std::uintptr_t, std::size_t>> pages;
  for (const BlockPage& page : layout.PagesOf(job, merging)) {
    pages.emplace_back(reinterpret_cast<std::uintptr_t>(page.engine),
                       reinterpret_cast<std::uintptr_t>(page.host), page.bytes);
  }
  return pages;
}

TEST(BlockLayout, APageForEachBlock) {
  EXPECT_THAT(Pages({{{0, 1, 7}, 3, {SlotId(2), SlotId(0)}}}, PageMerging::kNone),
              ElementsAre(std::tuple(1000, 5176, 16), std::tuple(1016, 5000, 16),
                          std::tuple(1112, 5016, 16)));
}

TEST(BlockLayout, NeighboursOnBothSidesAreMerged) {
  EXPECT_THAT(Pages({{{0, 1, 2, 4}, 0, {SlotId(1)}}}, PageMerging::kInSlot),
              ElementsAre(std::tuple(1000, 5064, 48), std::tuple(1064, 5112, 16)));
}

TEST(BlockLayout, PagesOfTwoSlotsAreNotMergedThoughTheyAreNeighbours) {
  EXPECT_THAT(Pages({{{2, 3, 4, 5}, 2, {SlotId(0), SlotId(1)}}}, PageMerging::kInSlot),
              ElementsAre(std::tuple(1032, 5032, 32), std::tuple(1064, 5064, 32)));
}

TEST(BlockLayout, PartsOfPagesAreNotMerged) {
  EXPECT_THAT(Pages({{}, {{0, 1}, 0, {SlotId(0)}}}, PageMerging::kInSlot),
              ElementsAre(std::tuple(1000, 5000, 8), std::tuple(1016, 5016, 8)));
}

}  // namespace
}  // namespace terrace
