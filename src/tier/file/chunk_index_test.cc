#include "tier/file/chunk_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

ChunkKey Key(std::uint8_t number) { return ChunkKey(std::vector<std::uint8_t>{number}, 0); }

class ChunkIndexTest : public testing::Test {
 protected:
  std::chrono::steady_clock::time_point now_{std::chrono::hours(1)};
  int clock_reads_ = 0;
  ChunkIndex index_{[this] {
    ++clock_reads_;
    return now_;
  }};
};

TEST_F(ChunkIndexTest, OffersWhatIsInIt) {
  EXPECT_FALSE(index_.Offers(Key(1)));
  index_.Insert(Key(1));
  index_.Insert(Key(1));
  EXPECT_TRUE(index_.Offers(Key(1)));
  EXPECT_TRUE(index_.Contains(Key(1)));
  EXPECT_FALSE(index_.Offers(Key(2)));
  EXPECT_EQ(index_.size(), 1u);
  EXPECT_TRUE(index_.Erase(Key(1)));
  EXPECT_FALSE(index_.Erase(Key(1)));
  EXPECT_FALSE(index_.Offers(Key(1)));
  EXPECT_EQ(clock_reads_, 0) << "a look-up costs no clock";
}

TEST_F(ChunkIndexTest, DoesNotOfferWhatRests) {
  index_.Insert(Key(1));
  index_.Insert(Key(2));
  index_.Rest(Key(1));
  EXPECT_FALSE(index_.Offers(Key(1)));
  EXPECT_TRUE(index_.Contains(Key(1)));
  EXPECT_TRUE(index_.Offers(Key(2)));
  now_ += ChunkIndex::kBackOff - std::chrono::nanoseconds(1);
  EXPECT_FALSE(index_.Offers(Key(1)));
  now_ += std::chrono::nanoseconds(1);
  EXPECT_TRUE(index_.Offers(Key(1)));
}

TEST_F(ChunkIndexTest, RestsAnewAfterAnotherFailure) {
  index_.Insert(Key(1));
  index_.Rest(Key(1));
  now_ += ChunkIndex::kBackOff;
  index_.Rest(Key(1));
  EXPECT_FALSE(index_.Offers(Key(1)));
  index_.Wake(Key(1));
  EXPECT_TRUE(index_.Offers(Key(1)));
}

TEST_F(ChunkIndexTest, ForgetsTheRestWithTheKey) {
  index_.Rest(Key(1));  // Not there: nothing to rest.
  index_.Insert(Key(1));
  EXPECT_TRUE(index_.Offers(Key(1)));
  index_.Rest(Key(1));
  index_.Erase(Key(1));
  index_.Insert(Key(1));
  EXPECT_TRUE(index_.Offers(Key(1)));
}

}  // namespace
}  // namespace terrace
