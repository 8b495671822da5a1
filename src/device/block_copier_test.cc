#include "terrace/block_copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace terrace {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using Direction = BlockJob::Direction;

// Two tensors of pages of 64 and 32 bytes, the second one's 48 apart; chunks of two blocks.
class BlockCopierTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 8;
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kChunk = 2 * (64 + 32);

  BlockCopierTest() : wide_(kBlocks * 64), narrow_(kBlocks * 48), host_(kSlots * kChunk) {
    std::iota(wide_.begin(), wide_.end(), 1);
    for (std::size_t i = 0; i < narrow_.size(); ++i) narrow_[i] = static_cast<std::uint8_t>(i * 7);
  }

  static std::byte* Bytes(std::vector<std::uint8_t>& bytes) {
    return reinterpret_cast<std::byte*>(bytes.data());
  }

  BlockCopierOptions Options() {
    return {.tensors = {{Bytes(wide_), kBlocks, 64, 64}, {Bytes(narrow_), kBlocks, 48, 32}},
            .groups = {{{0, 64}, {1, 32}}, {{1, 20}}},
            .blocks_per_chunk = 2,
            .threads = 2};
  }
  HostSlots Slots() { return {Bytes(host_), kChunk, kChunk, kSlots}; }

  std::unique_ptr<BlockCopier> Copier() {
    auto made = BlockCopier::Create(Slots(), Options());
    return std::move(made).value();
  }

  static BlockJob Job(std::uint64_t id, Direction direction, std::vector<GroupBlocks> groups) {
    BlockJob job;
    job.id = JobId(id);
    job.direction = direction;
    job.groups = std::move(groups);
    return job;
  }

  static std::vector<BlockResult> WaitAndTake(BlockCopier& copier, std::uint64_t id) {
    const JobId job(id);
    EXPECT_TRUE(copier.WaitFor({&job, 1}, seconds(20)));
    return copier.TakeFinished();
  }

  std::vector<std::uint8_t> wide_, narrow_, host_;
};

TEST_F(BlockCopierTest, StoresPagesTensorAfterTensorAndLoadsThemElsewhere) {
  const auto copier = Copier();
  ASSERT_TRUE(copier->Submit(Job(1, Direction::kStore, {{{5, 2}, 0, {SlotId(3)}}})).ok());
  const auto stored = WaitAndTake(*copier, 1);
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0].outcome, CopyOutcome::kOk);
  EXPECT_EQ(stored[0].bytes, kChunk);
  const std::uint8_t* row = host_.data() + 3 * kChunk;
  EXPECT_EQ(std::vector(row, row + 64),
            std::vector(wide_.begin() + 5 * 64, wide_.begin() + 6 * 64));
  EXPECT_EQ(std::vector(row + 64, row + 128),
            std::vector(wide_.begin() + 2 * 64, wide_.begin() + 3 * 64));
  EXPECT_EQ(std::vector(row + 128, row + 160),
            std::vector(narrow_.begin() + 5 * 48, narrow_.begin() + 5 * 48 + 32));
  EXPECT_EQ(std::vector(row + 160, row + 192),
            std::vector(narrow_.begin() + 2 * 48, narrow_.begin() + 2 * 48 + 32));

  const std::vector<std::uint8_t> five(wide_.begin() + 5 * 64, wide_.begin() + 6 * 64);
  const std::vector<std::uint8_t> before = wide_;
  ASSERT_TRUE(copier->Submit(Job(2, Direction::kLoad, {{{0, 7}, 0, {SlotId(3)}}})).ok());
  WaitAndTake(*copier, 2);
  EXPECT_EQ(std::vector(wide_.begin(), wide_.begin() + 64), five);
  EXPECT_EQ(std::vector(wide_.begin() + 64, wide_.begin() + 7 * 64),
            std::vector(before.begin() + 64, before.begin() + 7 * 64));
}

TEST_F(BlockCopierTest, BeginsInTheMiddleOfAChunkAndCopiesOnlyAGroupsBytes) {
  const auto copier = Copier();
  // Group 1 alone: places 1 and 2 of its request, so the second half of slot 0 and the first of 1.
  ASSERT_TRUE(
      copier->Submit(Job(1, Direction::kStore, {{}, {{4, 6}, 1, {SlotId(0), SlotId(1)}}})).ok());
  EXPECT_EQ(WaitAndTake(*copier, 1).at(0).bytes, 40u);
  std::vector<std::uint8_t> expected(host_.size());
  std::copy_n(narrow_.begin() + 4 * 48, 20, expected.begin() + 128 + 32);
  std::copy_n(narrow_.begin() + 6 * 48, 20, expected.begin() + kChunk + 128);
  EXPECT_EQ(host_, expected);
}

TEST_F(BlockCopierTest, SharesALongJobAmongThreadsAndReportsItOnce) {
  constexpr std::size_t kPage = std::size_t{1} << 20;
  std::vector<std::uint8_t> engine(16 * kPage), host(16 * kPage);
  for (std::size_t i = 0; i < engine.size(); ++i) engine[i] = static_cast<std::uint8_t>(i / 4096);
  auto made = BlockCopier::Create({Bytes(host), kPage, kPage, 16},
                                  {.tensors = {{Bytes(engine), 16, kPage, kPage}},
                                   .groups = {{{0, kPage}}},
                                   .blocks_per_chunk = 1,
                                   .threads = 4});
  ASSERT_TRUE(made.ok());
  GroupBlocks all;
  for (std::uint32_t i = 0; i < 16; ++i) {
    all.blocks.push_back(i);
    all.slots.emplace_back(i);
  }
  ASSERT_TRUE(made.value()->Submit(Job(1, Direction::kStore, {all})).ok());
  const auto results = WaitAndTake(*made.value(), 1);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].bytes, 16 * kPage);
  EXPECT_GT(results[0].seconds, 0);
  EXPECT_EQ(host, engine);
}

TEST_F(BlockCopierTest, RefusesWhatDoesNotExistAndQueuesNothing) {
  const auto copier = Copier();
  const auto why = [&](BlockJob job) {
    auto submitted = copier->Submit(std::move(job));
    return submitted.ok() ? "" : submitted.error().message;
  };
  EXPECT_THAT(why(Job(1, Direction::kStore, {{{8}, 0, {SlotId(0)}}})),
              HasSubstr("copy job 1: group 0: block 8, tensor 0 has 8"));
  EXPECT_THAT(why(Job(1, Direction::kStore, {{{0}, 0, {SlotId(4)}}})),
              HasSubstr("group 0: slot 4, there are 4"));
  EXPECT_THAT(why(Job(1, Direction::kStore, {{{0, 1}, 1, {SlotId(0)}}})),
              HasSubstr("2 blocks from place 1 on take 2 slots, not 1"));
  EXPECT_THAT(why(Job(1, Direction::kStore, {{{0}, 2, {SlotId(0)}}})),
              HasSubstr("first_in_chunk 2, a chunk has 2 blocks"));
  EXPECT_THAT(why(Job(1, Direction::kStore, {{}, {}, {}})), HasSubstr("3 groups, there are 2"));
  BlockJob of_a_device = Job(1, Direction::kStore, {{{0}, 0, {SlotId(0)}}});
  of_a_device.after_event = 1;
  EXPECT_THAT(why(std::move(of_a_device)), HasSubstr("the tensors are the CPU's"));
  EXPECT_TRUE(copier->TakeFinished().empty());
  const JobId unknown(9);
  EXPECT_TRUE(copier->WaitFor({&unknown, 1}, seconds(0)));
}

TEST_F(BlockCopierTest, AJobOfNothingEndsAtOnce) {
  const auto copier = Copier();
  ASSERT_TRUE(copier->Submit(Job(3, Direction::kLoad, {{}, {}})).ok());
  const auto results = copier->TakeFinished();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].id, JobId(3));
  EXPECT_EQ(results[0].bytes, 0u);
}

TEST_F(BlockCopierTest, RefusesTensorsThatDoNotFit) {
  const auto why = [&](auto change) {
    BlockCopierOptions options = Options();
    change(options);
    auto made = BlockCopier::Create(Slots(), std::move(options));
    return made.ok() ? "" : made.error().message;
  };
  EXPECT_THAT(why([](auto& o) { o.blocks_per_chunk = 3; }),
              HasSubstr("2 tensors have 288 bytes a chunk, a slot has 192"));
  EXPECT_THAT(why([](auto& o) { o.groups[1][0].tensor = 2; }), HasSubstr("tensor 2, there are 2"));
  EXPECT_THAT(why([](auto& o) { o.groups[1][0].bytes = 33; }), HasSubstr("33 bytes of tensor 1"));
  EXPECT_THAT(why([](auto& o) { o.threads = 0; }), HasSubstr("threads is 0"));
  EXPECT_THAT(why([](auto& o) { o.blocks_per_chunk = 0; }), HasSubstr("blocks_per_chunk is 0"));
}

TEST_F(BlockCopierTest, SaysWhyThereIsNoneForADevice) {
  if (BlockCopier::HasCuda()) GTEST_SKIP() << "this machine has CUDA";
  BlockCopierOptions options = Options();
  options.device = 3;
  auto made = BlockCopier::Create(Slots(), std::move(options));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(made.error().message, testing::MatchesRegex("make a block copier for CUDA device 3: "
                                                          ".*(has no CUDA|no CUDA driver).*"));
}

TEST_F(BlockCopierTest, EndsWithJobsQueued) {
  const auto copier = Copier();
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(copier->Submit(Job(i, Direction::kStore, {{{0, 1}, 0, {SlotId(0)}}})).ok());
  }
}  // What is left is dropped; the memory outlives it.

}  // namespace
}  // namespace terrace
