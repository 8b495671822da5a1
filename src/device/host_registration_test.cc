#include "device/host_registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace terrace {
namespace {

using testing::ElementsAre;

constexpr std::size_t kPage = 4096;

std::byte* At(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

TEST(PiecesOf, EndWhereASlotAndAPageEndTogether) {
  // Slots of two pages, pieces of four.
  EXPECT_THAT(PiecesOf({At(kPage), 2 * kPage, 2 * kPage, 5}, kPage, 4 * kPage),
              ElementsAre(HostPiece{At(kPage), 4 * kPage}, HostPiece{At(5 * kPage), 4 * kPage},
                          HostPiece{At(9 * kPage), 2 * kPage}));
  // Slots of one and a half: every second one ends with a page.
  EXPECT_THAT(PiecesOf({At(kPage), 6144, 6144, 4}, kPage, 1),
              ElementsAre(HostPiece{At(kPage), 3 * kPage}, HostPiece{At(4 * kPage), 3 * kPage}));
  // Never: one piece.
  EXPECT_THAT(PiecesOf({At(kPage + 8), kPage, kPage, 3}, kPage, 1),
              ElementsAre(HostPiece{At(kPage), 4 * kPage}));
  EXPECT_TRUE(PiecesOf({At(kPage), kPage, kPage, 0}, kPage, 1).empty());
}

TEST(PiecesOf, LeaveOutLargePartsOfOtherRanks) {
  const std::size_t stride = kRegisteredGapBytesMax + 3 * kPage;
  // The part begins and ends in the middle of a page.
  EXPECT_THAT(
      PiecesOf({At(kPage + 512), stride, kPage, 2}, kPage, std::size_t{1} << 30),
      ElementsAre(HostPiece{At(kPage), 2 * kPage}, HostPiece{At(kPage + stride), 2 * kPage}));
  EXPECT_THAT(PiecesOf({At(kPage), 4 * kPage, kPage, 2}, kPage, std::size_t{1} << 30),
              ElementsAre(HostPiece{At(kPage), 5 * kPage}));
}

TEST(PiecesOf, HaveEverySlotWholeAndNoPageTwice) {
  for (std::size_t offset = 0; offset < 2 * kPage; offset += 512) {
    for (std::size_t stride = 512; stride < 3 * kPage; stride += 512) {
      for (std::size_t chunk = 512; chunk <= stride; chunk += 1024) {
        const HostSlots slots{At(kPage + offset), stride, chunk, 9};
        const auto pieces = PiecesOf(slots, kPage, 2 * kPage);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[i].base) % kPage, 0u);
          EXPECT_EQ(pieces[i].bytes % kPage, 0u);
          if (i > 0) {
            EXPECT_GE(pieces[i].base, pieces[i - 1].base + pieces[i - 1].bytes);
          }
        }
        for (std::size_t slot = 0; slot < 9; ++slot) {
          const std::byte* const begin = slots.base + slot * stride;
          EXPECT_TRUE(std::any_of(pieces.begin(), pieces.end(),
                                  [&](const HostPiece& piece) {
                                    return piece.base <= begin &&
                                           begin + chunk <= piece.base + piece.bytes;
                                  }))
              << offset << " " << stride << " " << chunk << " " << slot;
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
