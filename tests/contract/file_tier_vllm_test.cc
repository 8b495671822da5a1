// The file tier in a directory of vLLM's, on a real disk: that both read what the other wrote, and
// what becomes of files that others add, remove and damage while it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>

#include "tests/contract/faulty_file_ops.h"
#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/file/file_tier.h"
#include "tier/file/names.h"

namespace terrace::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kOk = CopyOutcome::kOk;
constexpr auto kFailed = CopyOutcome::kFailed;
constexpr auto kHit = TierLookup::kHit;
constexpr auto kMiss = TierLookup::kMiss;
constexpr std::size_t kRow = 8192;  // 5000 bytes and their padding.

// A whole row, as a neighbour writes it.
std::string RowOf(const ChunkKey& key) {
  const auto bytes = BytesOf(key, 5000);
  std::string row(kRow, 'p');
  row.replace(0, bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return row;
}

// Relative, sorted.
std::vector<std::string> FilesBelow(const std::string& dir) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_directory()) files.push_back(fs::relative(entry.path(), dir).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class VllmTierTest : public ::testing::Test {
 protected:
  VllmTierTest() { Reopen(); }

  std::string Root() const { return dir_.path() + "/a/model_0123456789ab_r0"; }
  Result<std::unique_ptr<FileTier>> Create(FakeTierHost& host, FileOps& ops) {
    return FileTier::Create(
        {.root_dir = Root(), .layout = "vllm"}, host,
        {.ops = &ops, .now = [this] {
           return std::chrono::steady_clock::time_point(std::chrono::seconds(now_s_.load()));
         }});
  }
  void Reopen() {
    driver_.reset();
    tier_.reset();
    auto made = Create(host_, ops_);
    ASSERT_TRUE(made.ok()) << made.error().message;
    tier_ = std::move(made).value();
    driver_ = std::make_unique<TierDriver>(*tier_, host_, next_driver_ += 1000);
  }

  std::string FileOf(const ChunkKey& key) const { return Root() + "/" + VllmChunkPath(key); }
  void NeighbourWrites(const ChunkKey& key, const std::string& text) {
    fs::create_directories(fs::path(FileOf(key)).parent_path());
    WriteText(FileOf(key), text);
  }
  JobResult StoreOne(const ChunkKey& key) { return driver_->Store({key}, {SlotId(0)}); }
  CopyOutcome LoadOne(const ChunkKey& key) {
    return driver_->Load({key}, {SlotId(40)}).outcomes.at(0);
  }
  TierLookup Lookup(const ChunkKey& key, std::uint64_t request = 7) {
    return driver_->Lookup(key, RequestId(request));
  }

  TempDir dir_;
  FakeTierHost host_{64};
  FaultyFileOps ops_;
  std::atomic<std::int64_t> now_s_{1000};
  std::uint64_t next_driver_ = 0;
  std::unique_ptr<FileTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

// ---- What it writes ----

TEST_F(VllmTierTest, WritesTheRowUnderItsNameAndNothingElse) {
  std::array<std::uint8_t, 32> hash;
  std::iota(hash.begin(), hash.end(), 0xe0);
  const ChunkKey key(hash, 1);
  const auto slot = host_.Slot(SlotId(0));
  const std::span row(slot.data(), kRow);
  for (std::size_t i = slot.size(); i < kRow; ++i) row[i] = static_cast<std::byte>(i);
  EXPECT_THAT(StoreOne(key).outcomes, ElementsAre(kOk));
  const std::string name =
      "e0e/1e_g1/e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff.bin";
  EXPECT_EQ(ReadText(Root() + "/" + name),
            std::string(reinterpret_cast<const char*>(row.data()), kRow));
  EXPECT_EQ(tier_->path(), Root());
  EXPECT_TRUE(tier_->Shutdown(kPatience));
  EXPECT_THAT(FilesBelow(dir_.path()), ElementsAre("a/model_0123456789ab_r0/" + name));
}

TEST_F(VllmTierTest, WritesNothingBeforeTheFirstStore) {
  EXPECT_EQ(Lookup(TestKey(0)), kMiss);
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_THAT(NamesIn(Root()), IsEmpty());
}

TEST_F(VllmTierTest, LeavesAFileThatIsThereAsItIs) {
  const std::string theirs = RowOf(TestKey(1));
  NeighbourWrites(TestKey(0), theirs);
  const auto stored = StoreOne(TestKey(0));
  EXPECT_THAT(stored.outcomes, ElementsAre(kOk));
  EXPECT_EQ(stored.bytes, 0u);
  EXPECT_EQ(driver_->Counter("terrace_file_stored_chunks_total"), 0u);
  EXPECT_EQ(ReadText(FileOf(TestKey(0))), theirs);
  EXPECT_EQ(Lookup(TestKey(0)), kHit);
}

// Between the look whether it is there and the rename, on a file system that does not replace.
TEST_F(VllmTierTest, ANeighbourThatIsFasterIsAsGood) {
  class Rival final : public FaultyFileOps {
   public:
    int Rename(const std::string&, const std::string& to) override {
      if (writes) WriteText(to, RowOf(TestKey(0)));
      return -EEXIST;
    }
    std::atomic<bool> writes{true};
  };
  Rival rival;
  auto tier = Create(host_, rival).value();
  TierDriver driver(*tier, host_);
  EXPECT_THAT(driver.Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kOk));
  EXPECT_THAT(driver.Load({TestKey(0)}, {SlotId(1)}).outcomes, ElementsAre(kOk));
  rival.writes = false;
  EXPECT_THAT(driver.Store({TestKey(1)}, {SlotId(0)}).outcomes, ElementsAre(kFailed));
  EXPECT_THAT(FilesBelow(Root()), ElementsAre(VllmChunkPath(TestKey(0))));
}

TEST_F(VllmTierTest, AStoreThatFailsLeavesNothing) {
  for (const char* call : {"stat", "open", "mkdir", "write", "close", "rename"}) {
    ops_.Arm({.error = ENOSPC, .nth = 0, .for_ever = true, .only = call});
    EXPECT_THAT(StoreOne(TestKey(0)).outcomes, ElementsAre(kFailed)) << call;
    ops_.Disarm();
    EXPECT_THAT(FilesBelow(Root()), IsEmpty()) << call;
    tier_->OnRequestFinished({RequestId(7)});
    EXPECT_EQ(Lookup(TestKey(0)), kMiss) << call;
  }
  EXPECT_THAT(StoreOne(TestKey(0)).outcomes, ElementsAre(kOk));
}

TEST_F(VllmTierTest, LeavesTheFilesOfOthers) {
  const std::string temp = FileOf(TestKey(0)) + "_123.tmp";
  const std::string notes = Root() + "/notes.txt";
  fs::create_directories(fs::path(temp).parent_path());
  for (const std::string& path : {temp, notes}) WriteText(path, "x");
  Reopen();
  EXPECT_THAT(StoreOne(TestKey(0)).outcomes, ElementsAre(kOk));
  driver_.reset();
  tier_.reset();
  for (const std::string& path : {temp, notes}) EXPECT_EQ(ReadText(path), "x");
}

// ---- What others add ----

TEST_F(VllmTierTest, FindsWhatWasThereAtTheStart) {
  EXPECT_THAT(driver_->Store(TestKeys(9), TestSlots(9)).outcomes, Each(kOk));
  Reopen();
  EXPECT_EQ(tier_->Lookup(TestKey(0), {RequestId(1)}), TierLookup::kRetry) << "it lists nothing";
  for (const ChunkKey& key : TestKeys(9)) EXPECT_EQ(Lookup(key), kHit);
  EXPECT_THAT(driver_->Load(TestKeys(9), TestSlots(9, 30)).outcomes, Each(kOk));
  tier_->OnRequestFinished({RequestId(7)});
  for (const ChunkKey& key : TestKeys(9)) {
    EXPECT_EQ(tier_->Lookup(key, {RequestId(99)}), kHit) << "what was loaded is known";
  }
}

TEST_F(VllmTierTest, LoadsWhatANeighbourWrote) {
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  EXPECT_EQ(Lookup(TestKey(0)), kHit);
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

TEST_F(VllmTierTest, AMissLivesNoLongerThanTheRequest) {
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss);
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss) << "it computes the chunk by now";
  tier_->OnRequestFinished({RequestId(1)});
  EXPECT_EQ(Lookup(TestKey(0), 2), kHit);
}

TEST_F(VllmTierTest, AMissOfALongRequestIsNoMissForLaterOnes) {
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss);
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  now_s_ += 1;
  EXPECT_EQ(Lookup(TestKey(0), 2), kHit);
}

TEST_F(VllmTierTest, AMissDoesNotHideWhatThisTierStoresMeanwhile) {
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss);
  EXPECT_THAT(StoreOne(TestKey(0)).outcomes, ElementsAre(kOk));
  EXPECT_EQ(tier_->Lookup(TestKey(0), {RequestId(1)}), kHit);
}

TEST_F(VllmTierTest, TwoTiersShareADirectory) {
  FakeTierHost other_host(64);
  auto second = Create(other_host, ops_).value();
  TierDriver other(*second, other_host);
  const JobId here = driver_->SubmitStore(TestKeys(8), TestSlots(8));
  const JobId there = other.SubmitStore(TestKeys(8, 4), TestSlots(8));
  EXPECT_THAT(driver_->Await(here).outcomes, Each(kOk));
  EXPECT_THAT(other.Await(there).outcomes, Each(kOk));
  for (const ChunkKey& key : TestKeys(12)) {
    EXPECT_EQ(Lookup(key), kHit);
    EXPECT_EQ(other.Lookup(key), kHit);
  }
  EXPECT_THAT(driver_->Load(TestKeys(12), TestSlots(12, 30)).outcomes, Each(kOk));
  EXPECT_THAT(other.Load(TestKeys(12), TestSlots(12, 30)).outcomes, Each(kOk));
}

// ---- What others remove ----

TEST_F(VllmTierTest, WhatIsGoneIsAMissAtLoad) {
  StoreOne(TestKey(0));
  fs::remove(FileOf(TestKey(0)));
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(Lookup(TestKey(0)), kMiss);
  EXPECT_EQ(driver_->Counter("terrace_file_missing_chunks_total"), 1u);
}

// Found on the disk by this request, gone before it was loaded.
TEST_F(VllmTierTest, ARequestDoesNotGoInCircles) {
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  EXPECT_EQ(Lookup(TestKey(0), 1), kHit);
  fs::remove(FileOf(TestKey(0)));
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(tier_->Lookup(TestKey(0), {RequestId(1)}), kMiss);
  EXPECT_EQ(driver_->Counter("terrace_file_missing_chunks_total"), 1u);
}

TEST_F(VllmTierTest, StoresAgainWhatIsGone) {
  StoreOne(TestKey(0));
  fs::remove_all(Root() + "/" + VllmChunkPath(TestKey(0)).substr(0, 3));
  EXPECT_EQ(StoreOne(TestKey(0)).bytes, 5000u);
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

// ---- Bad files ----

TEST_F(VllmTierTest, RemovesAFileThatIsTooShort) {
  StoreOne(TestKey(0));
  fs::resize_file(FileOf(TestKey(0)), 4096);
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_FALSE(fs::exists(FileOf(TestKey(0))));
  EXPECT_EQ(Lookup(TestKey(0)), kMiss);
  EXPECT_EQ(driver_->Counter("terrace_file_corrupt_chunks_total"), 1u);
  EXPECT_EQ(driver_->Counter("terrace_file_quarantined_chunks_total"), 0u);
}

TEST_F(VllmTierTest, AFileThatIsTooShortIsNoHitAndIsReplacedByAStore) {
  for (const std::size_t size : {std::size_t{0}, kRow - 1}) {
    NeighbourWrites(TestKey(0), RowOf(TestKey(0)).substr(0, size));
    EXPECT_EQ(Lookup(TestKey(0), 1 + size), kMiss);
    EXPECT_EQ(StoreOne(TestKey(0)).bytes, 5000u);
    EXPECT_EQ(LoadOne(TestKey(0)), kOk);
    EXPECT_EQ(fs::file_size(FileOf(TestKey(0))), kRow);
    Reopen();
  }
}

TEST_F(VllmTierTest, LeavesAFileThatIsTooLong) {
  const std::string theirs = RowOf(TestKey(0)) + "x";
  StoreOne(TestKey(0));
  WriteText(FileOf(TestKey(0)), theirs);
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(Lookup(TestKey(0)), kMiss);
  EXPECT_THAT(StoreOne(TestKey(0)).outcomes, ElementsAre(kFailed));
  EXPECT_EQ(ReadText(FileOf(TestKey(0))), theirs);
  EXPECT_EQ(driver_->Counter("terrace_file_foreign_files_total"), 1u);
}

TEST_F(VllmTierTest, RestsAfterATransientErrorAndKeepsTheFile) {
  StoreOne(TestKey(0));
  for (const auto& [call, error] : {std::pair{"read", EIO}, {"open", EMFILE}, {"fstat", EIO}}) {
    ops_.Arm({.error = error, .nth = 0, .only = call});
    EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
    ops_.Disarm();
    EXPECT_EQ(Lookup(TestKey(0)), kMiss) << "or the request goes in circles";
    EXPECT_EQ(Lookup(TestKey(0), 8), kMiss);
    now_s_ += 5;
    EXPECT_EQ(Lookup(TestKey(0)), kHit);
    EXPECT_EQ(LoadOne(TestKey(0)), kOk);
  }
  EXPECT_EQ(driver_->Counter("terrace_file_corrupt_chunks_total"), 0u);
}

// A read that comes short of a file that is whole proves nothing against the file.
TEST_F(VllmTierTest, AShortReadOfAWholeFileIsTransient) {
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  EXPECT_EQ(Lookup(TestKey(0), 1), kHit);
  ops_.Arm({.shape = FaultShape::kNothing, .nth = 0, .only = "read"});
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss) << "or the request goes in circles";
  EXPECT_TRUE(fs::exists(FileOf(TestKey(0))));
  tier_->OnRequestFinished({RequestId(1)});
  EXPECT_EQ(Lookup(TestKey(0), 2), kHit);
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

// ---- Storage that does not answer ----

TEST_F(VllmTierTest, ALookThatFailsIsAMiss) {
  NeighbourWrites(TestKey(0), RowOf(TestKey(0)));
  ops_.Arm({.error = EIO, .nth = 0, .only = "stat"});
  EXPECT_EQ(Lookup(TestKey(0), 1), kMiss);
  EXPECT_TRUE(ops_.fired());
  tier_->OnRequestFinished({RequestId(1)});
  EXPECT_EQ(Lookup(TestKey(0), 2), kHit);
}

TEST_F(VllmTierTest, ADirectoryThatHangsIsAMissUntilItAnswers) {
  StoreOne(TestKey(0));
  NeighbourWrites(TestKey(1), RowOf(TestKey(1)));
  ops_.hang().Begin();
  EXPECT_EQ(tier_->Lookup(TestKey(1), {RequestId(1)}), TierLookup::kRetry);
  tier_->OnScheduleEnd();
  ops_.hang().Await(1);
  EXPECT_EQ(tier_->Lookup(TestKey(0), {RequestId(1)}), kHit) << "from memory";
  now_s_ += 5;
  tier_->OnScheduleEnd();
  EXPECT_EQ(tier_->Lookup(TestKey(1), {RequestId(1)}), kMiss);
  EXPECT_EQ(tier_->Lookup(TestKey(2), {RequestId(1)}), kMiss) << "nor are others waited for";
  EXPECT_EQ(driver_->Counter("terrace_lookup_keys_overdue_total"), 1u);
  now_s_ += 25;
  EXPECT_EQ(driver_->Counter("terrace_file_hung_operations"), 1u);
  const std::uint64_t seen = host_.progress();
  ops_.hang().End();
  ASSERT_TRUE(host_.WaitForProgressBeyond(seen));
  tier_->OnScheduleEnd();
  EXPECT_EQ(Lookup(TestKey(1), 2), kHit);
}

// It uses nothing of the tier's, so that the tier may go. It calls what lives as long as the
// process, here as there.
TEST_F(VllmTierTest, ALookThatHangsHoldsUpNoShutdown) {
  static FaultyFileOps& ops = *new FaultyFileOps;
  auto tier =
      FileTier::Create({.root_dir = Root(), .layout = "vllm"}, host_, {.ops = &ops, .now = {}})
          .value();
  ops.hang().Begin();
  EXPECT_EQ(tier->Lookup(TestKey(1), {RequestId(1)}), TierLookup::kRetry);
  tier->OnScheduleEnd();
  ops.hang().Await(1);
  EXPECT_TRUE(tier->Shutdown(std::chrono::milliseconds(50)));
  EXPECT_EQ(tier->Lookup(TestKey(2), {RequestId(1)}), kMiss);
  tier.reset();
  ops.hang().End();
}

// ---- At start ----

TEST_F(VllmTierTest, RefusesAnUnknownLayout) {
  const auto made = FileTier::Create({.root_dir = Root(), .layout = "slab"}, host_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("layout must be \"records\" or \"vllm\""));
}

TEST_F(VllmTierTest, SaysThatItMayNotWrite) {
  ops_.Arm({.error = EROFS, .nth = 0, .for_ever = true, .only = "write"});
  const auto made = Create(host_, ops_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(made.error().message, HasSubstr("root_dir " + Root()));
  EXPECT_THAT(NamesIn(Root()), IsEmpty());
}

TEST_F(VllmTierTest, FallsBackWhereODirectIsRefused) {
  ops_.Arm({.error = EINVAL, .nth = 0, .only = "write"});
  Reopen();
  EXPECT_TRUE(ops_.fired());
  EXPECT_THAT(driver_->Store(TestKeys(2), TestSlots(2)).outcomes, Each(kOk));
  EXPECT_THAT(driver_->Load(TestKeys(2), TestSlots(2, 30)).outcomes, Each(kOk));
}

TEST_F(VllmTierTest, WarnsThatBytesAreNotVerified) {
  ::testing::internal::CaptureStderr();
  Reopen();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(Root() + ": layout vllm, "));
}

}  // namespace
}  // namespace terrace::testing
