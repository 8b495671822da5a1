#include "host/offer_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;

class OfferTrackerTest : public testing::Test {
 protected:
  std::vector<std::uint32_t> Count(std::vector<Fingerprint> offer) {
    // Spread as hashes are.
    for (Fingerprint& fingerprint : offer) fingerprint *= 0x9e3779b97f4a7c15;
    std::vector<std::uint32_t> counts;
    tracker_.Count(offer, counts);
    return counts;
  }
  OfferTracker tracker_{3};
};

TEST_F(OfferTrackerTest, CountsOffers) {
  EXPECT_THAT(Count({1, 2}), ElementsAre(1, 1));
  EXPECT_THAT(Count({2, 3}), ElementsAre(2, 1));
  EXPECT_THAT(Count({1, 2, 3}), ElementsAre(2, 3, 2));
}

TEST_F(OfferTrackerTest, ForgetsWhatWasNotOfferedForLongest) {
  Count({1, 2, 3});
  Count({1});
  Count({4});  // 2 goes.
  EXPECT_THAT(Count({1, 3, 4}), ElementsAre(3, 2, 2));
  EXPECT_THAT(Count({2}), ElementsAre(1));
}

// A new key is listed before a known one that is the oldest: the known one stays.
TEST_F(OfferTrackerTest, NeverForgetsAChunkOfTheSameOffer) {
  Count({1, 2, 3});
  EXPECT_THAT(Count({4, 1}), ElementsAre(1, 2));
  EXPECT_THAT(Count({1}), ElementsAre(3));
}

TEST_F(OfferTrackerTest, AnOfferLargerThanTheTrackerKeepsItsFirstChunks) {
  EXPECT_THAT(Count({1, 2, 3, 4, 5}), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(Count({1, 2, 3, 4, 5}), ElementsAre(2, 2, 2, 1, 1));
}

}  // namespace
}  // namespace terrace
