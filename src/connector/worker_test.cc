#include "terrace/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include "base/hash.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

// Engine memory of 8-byte blocks; some of them broken.
class FakeMemory final : public EngineMemory {
 public:
  Result<void> ReadChunk(std::span<const BlockId> blocks, std::span<std::byte> chunk) override {
    if (broken.contains(blocks[0].value)) return Error{ErrorCode::kUnavailable, "broken block"};
    std::copy(bytes[blocks[0].value].begin(), bytes[blocks[0].value].end(), chunk.begin());
    return {};
  }
  Result<void> WriteChunk(std::span<const std::byte> chunk,
                          std::span<const BlockId> blocks) override {
    if (broken.contains(blocks[0].value)) return Error{ErrorCode::kUnavailable, "broken block"};
    bytes[blocks[0].value].assign(chunk.begin(), chunk.end());
    return {};
  }
  std::map<std::int64_t, std::vector<std::byte>> bytes;
  std::set<std::int64_t> broken;
};

class WorkerTest : public testing::Test {
 protected:
  static EngineJob Job(std::uint64_t id, std::initializer_list<std::uint32_t> slots) {
    EngineJob job{JobId(id), RequestId(id), {}};
    for (std::uint32_t slot : slots) job.chunks.push_back({SlotId(slot), {BlockId(slot + 100)}});
    return job;
  }
  static std::vector<std::byte> Bytes(int value) {
    return std::vector<std::byte>(8, static_cast<std::byte>(value));
  }

  FakeMemory memory_;
  std::vector<std::byte> host_ = std::vector<std::byte>(4 * 16);
  Worker worker_{memory_, HostSlots{host_.data(), 16, 8, 4}};
};

TEST_F(WorkerTest, CopiesBothWays) {
  memory_.bytes[101] = Bytes(7);
  worker_.SubmitStores({Job(1, {1})});
  worker_.RunStores();
  EXPECT_EQ(host_[16], std::byte{7});
  memory_.bytes.clear();
  worker_.SubmitLoads({Job(2, {1})});
  worker_.RunLoads(UINT64_MAX);
  EXPECT_EQ(memory_.bytes[101], Bytes(7));
  const auto results = worker_.TakeFinished();
  ASSERT_THAT(results, SizeIs(2));
  EXPECT_EQ(results[0].id, JobId(1));
  EXPECT_EQ(results[1].bytes, 8u);
  EXPECT_THAT(worker_.TakeFinished(), SizeIs(0));
}

TEST_F(WorkerTest, HashesWhatItStoresWhereSomebodyAsks) {
  std::vector<std::atomic<std::uint64_t>> checksums(4);
  HostSlots slots{host_.data(), 16, 8, 4};
  slots.checksums = checksums.data();
  Worker worker(memory_, slots);
  memory_.bytes[101] = Bytes(7);
  memory_.bytes[102] = Bytes(8);
  memory_.broken = {102};
  worker.SubmitStores({Job(1, {1}), Job(2, {2})});
  worker.RunStores();
  EXPECT_EQ(checksums[1], Xxh3(Bytes(7)));
  EXPECT_EQ(checksums[2], 0u) << "a copy that failed";
  worker.SubmitLoads({Job(3, {3})});
  worker.RunLoads(UINT64_MAX);
  EXPECT_EQ(checksums[3], 0u) << "a load";
}

TEST_F(WorkerTest, LoadsStopAtTheBudgetAndGoOnNextTime) {
  worker_.SubmitLoads({Job(1, {0, 1, 2}), Job(2, {3})});
  worker_.RunLoads(16);
  EXPECT_THAT(worker_.TakeFinished(), SizeIs(0));
  EXPECT_TRUE(worker_.HasLoads());
  worker_.RunLoads(8);
  EXPECT_THAT(worker_.TakeFinished(), SizeIs(1));
  worker_.RunLoads(0);  // A budget of nothing still makes progress.
  EXPECT_THAT(worker_.TakeFinished(), SizeIs(1));
  EXPECT_FALSE(worker_.HasLoads());
}

TEST_F(WorkerTest, AFailedCopyEndsItsJobAndNoOther) {
  memory_.broken = {101};
  worker_.SubmitLoads({Job(1, {0, 1, 2}), Job(2, {3})});
  worker_.RunLoads(UINT64_MAX);
  const auto results = worker_.TakeFinished();
  ASSERT_THAT(results, SizeIs(2));
  EXPECT_EQ(results[0].outcome, CopyOutcome::kFailed);
  EXPECT_THAT(results[0].error, HasSubstr("broken block"));
  EXPECT_EQ(results[1].outcome, CopyOutcome::kOk);
  EXPECT_FALSE(memory_.bytes.contains(102)) << "went on behind a failed chunk";
}

TEST_F(WorkerTest, GivenUpJobsAreReportedOnce) {
  worker_.SubmitStores({Job(1, {0})});
  worker_.SubmitLoads({Job(2, {1}), Job(3, {2})});
  worker_.FailStores("no step");
  worker_.CancelLoads(RequestId(2));
  worker_.RunStores();
  worker_.RunLoads(UINT64_MAX);
  const auto results = worker_.TakeFinished();
  ASSERT_THAT(results, SizeIs(3));
  EXPECT_EQ(results[0].outcome, CopyOutcome::kFailed);
  EXPECT_EQ(results[1].outcome, CopyOutcome::kFailed);
  EXPECT_EQ(results[2].id, JobId(3));
  EXPECT_EQ(results[2].outcome, CopyOutcome::kOk);
}

TEST_F(WorkerTest, ASlotOutsideHostMemoryIsABug) {
  worker_.SubmitStores({Job(1, {4})});
  EXPECT_DEATH(worker_.RunStores(), "outside host memory");
}

}  // namespace
}  // namespace terrace
