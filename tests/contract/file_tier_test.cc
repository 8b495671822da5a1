// The file tier on a real disk: what it finds at start, what it does with bad files, and when it
// gives up for a while.
#include "tier/file/file_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "base/hash.h"
#include "tests/contract/faulty_file_ops.h"
#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/file/identity_file.h"
#include "wire/chunk_record.h"

namespace terrace::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kOk = CopyOutcome::kOk;
constexpr auto kFailed = CopyOutcome::kFailed;

class FileTierTest : public ::testing::Test {
 protected:
  FileTierConfig Config() { return {.root_dir = dir_.path() + "/a/b"}; }
  Result<std::unique_ptr<FileTier>> Create(const FileTierConfig& config, TierHost& host) {
    return FileTier::Create(config, host, {.ops = &ops_, .now = [this] {
                                             return std::chrono::steady_clock::time_point(
                                                 std::chrono::seconds(now_s_.load()));
                                           }});
  }
  // A fresh tier on the directory; the one before is gone.
  void Reopen() {
    driver_.reset();
    tier_.reset();
    auto made = Create(Config(), host_);
    ASSERT_TRUE(made.ok()) << made.error().message;
    tier_ = std::move(made).value();
    driver_ = std::make_unique<TierDriver>(*tier_, host_, next_driver_ += 1000);
  }
  void OpenWithChunks(std::uint32_t count) {
    Reopen();
    ASSERT_THAT(driver_->Store(TestKeys(count), TestSlots(count)).outcomes, Each(kOk));
  }
  void ExpectCreateFails(ErrorCode code, const std::string& text) {
    const auto made = Create(Config(), host_);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, code) << made.error().message;
    EXPECT_THAT(made.error().message, HasSubstr(text));
  }

  std::string FileOf(const ChunkKey& key) const {
    const std::string hex = key.ToHex();
    return tier_->path() + "/chunks/" + hex.substr(0, 2) + "/" + hex + "_g" +
           std::to_string(key.group()) + ".chunk";
  }
  CopyOutcome LoadOne(const ChunkKey& key) {
    return driver_->Load({key}, {SlotId(40)}).outcomes.at(0);
  }
  // That the chunk was refused, its file put aside, and that the tier can store it again.
  void ExpectQuarantined(const ChunkKey& key) {
    EXPECT_EQ(LoadOne(key), kFailed);
    EXPECT_EQ(driver_->Lookup(key), TierLookup::kMiss);
    EXPECT_FALSE(fs::exists(FileOf(key)));
    EXPECT_THAT(NamesIn(tier_->path() + "/quarantine"),
                ElementsAre(fs::path(FileOf(key)).filename().string()));
    EXPECT_EQ(driver_->Counter("terrace_file_corrupt_chunks_total"), 1u);
    EXPECT_EQ(driver_->Counter("terrace_file_quarantined_chunks_total"), 1u);
    EXPECT_THAT(driver_->Store({key}, {SlotId(0)}).outcomes, ElementsAre(kOk));
    EXPECT_EQ(LoadOne(key), kOk);
  }

  TempDir dir_;
  FakeTierHost host_{64};
  FaultyFileOps ops_;
  std::atomic<std::int64_t> now_s_{1000};
  std::uint64_t next_driver_ = 0;
  std::unique_ptr<FileTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

// ---- At start ----

TEST_F(FileTierTest, RefusesABadConfigurationWithAllFaults) {
  const auto made = Create({.root_dir = "", .n_read_threads = 0, .n_write_threads = 0}, host_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  for (const char* key : {"root_dir", "n_read_threads", "n_write_threads"}) {
    EXPECT_THAT(made.error().message, HasSubstr(key));
  }
}

TEST_F(FileTierTest, LaysItsDirectoryOutAsDocumented) {
  OpenWithChunks(1);
  const std::string digest = host_.identity().ToHex();
  EXPECT_EQ(tier_->path(), Config().root_dir + "/test_model-" + digest.substr(0, 16));
  EXPECT_EQ(fs::file_size(FileOf(TestKey(0))), 4096u + 8192);
  const std::string identity = ReadText(tier_->path() + "/identity.json");
  EXPECT_THAT(identity, HasSubstr("\"digest\": \"" + digest + "\""));
  EXPECT_EQ(NamesIn(tier_->path() + "/tmp").size(), 1u);
  EXPECT_TRUE(tier_->Shutdown(kPatience));
  EXPECT_THAT(NamesIn(tier_->path() + "/tmp"), ::testing::IsEmpty());
}

TEST_F(FileTierTest, FindsItsChunksAgain) {
  OpenWithChunks(20);
  Reopen();
  for (const ChunkKey& key : TestKeys(20)) EXPECT_EQ(driver_->Lookup(key), TierLookup::kHit);
  EXPECT_THAT(driver_->Load(TestKeys(20), TestSlots(20, 30)).outcomes, Each(kOk));
}

TEST_F(FileTierTest, ReadsThroughThePageCacheWhatWasWrittenWithout) {
  OpenWithChunks(3);
  driver_.reset();
  tier_.reset();
  auto config = Config();
  config.direct_io = false;
  tier_ = Create(config, host_).value();
  driver_ = std::make_unique<TierDriver>(*tier_, host_);
  EXPECT_THAT(driver_->Load(TestKeys(3), TestSlots(3, 30)).outcomes, Each(kOk));
}

TEST_F(FileTierTest, AnotherModelIsACleanMiss) {
  OpenWithChunks(3);
  auto fields = TestIdentityFields(5000);
  fields.revision = "r2";
  FakeTierHost other_host(8, fields);
  auto other = Create(Config(), other_host).value();
  TierDriver other_driver(*other, other_host);
  for (const ChunkKey& key : TestKeys(3)) EXPECT_EQ(other_driver.Lookup(key), TierLookup::kMiss);
  EXPECT_NE(other->path(), tier_->path());
}

TEST_F(FileTierTest, SaysThatTheRootIsNoDirectory) {
  fs::create_directories(dir_.path() + "/a");
  WriteText(dir_.path() + "/a/b", "a file");
  ExpectCreateFails(ErrorCode::kInvalidArgument, Config().root_dir + ": Not a directory");
}

TEST_F(FileTierTest, SaysThatAParentOfTheRootIsNoDirectory) {
  WriteText(dir_.path() + "/a", "a file");
  ExpectCreateFails(ErrorCode::kInvalidArgument, "/a/b: Not a directory");
}

// Root may write anywhere, so these come from the seam.
TEST_F(FileTierTest, SaysThatItMayNotWrite) {
  Reopen();
  for (const auto& [call, error, text] : {std::tuple{"open", EACCES, "Permission denied"},
                                          {"mkdir", EROFS, "Read-only file system"},
                                          {"write", EROFS, "Read-only file system"}}) {
    ops_.Arm({.error = error, .nth = 0, .for_ever = true, .only = call});
    ExpectCreateFails(ErrorCode::kPermissionDenied, text);
  }
}

TEST_F(FileTierTest, StartsOnAFullDiskToServeWhatIsThere) {
  OpenWithChunks(2);
  ops_.Arm({.error = ENOSPC, .nth = 0, .for_ever = true, .only = "write"});
  Reopen();
  EXPECT_THAT(driver_->Load(TestKeys(2), TestSlots(2, 30)).outcomes, Each(kOk));
  EXPECT_THAT(driver_->Store({TestKey(9)}, {SlotId(0)}).outcomes, ElementsAre(kFailed));
  EXPECT_EQ(driver_->Lookup(TestKey(9)), TierLookup::kMiss);
  EXPECT_EQ(driver_->Counter("terrace_file_store_failures_total"), 1u);
}

TEST_F(FileTierTest, FallsBackWhereODirectIsRefused) {
  ops_.Arm({.error = EINVAL, .nth = 0, .only = "write"});
  OpenWithChunks(2);
  EXPECT_TRUE(ops_.fired());
  EXPECT_THAT(driver_->Load(TestKeys(2), TestSlots(2, 30)).outcomes, Each(kOk));
}

TEST_F(FileTierTest, RefusesANewerDirectory) {
  Reopen();
  const std::string path = tier_->path() + "/identity.json";
  std::string text = ReadText(path);
  text.replace(text.find("\"format_version\": 1"), 19, "\"format_version\": 3");
  WriteText(path, text);
  ExpectCreateFails(ErrorCode::kIncompatible,
                    path +
                        ": written by a newer format (3; this build knows up to 1): use another "
                        "root_dir or upgrade");
}

TEST_F(FileTierTest, RefusesADirectoryOfAnotherCache) {
  Reopen();
  auto fields = TestIdentityFields(5000);
  fields.engine = "other";
  WriteText(tier_->path() + "/identity.json",
            EncodeIdentityFile(CacheIdentity::Create(fields).value()));
  ExpectCreateFails(ErrorCode::kIncompatible, "of another cache: digest is ");
}

TEST_F(FileTierTest, RefusesADamagedIdentity) {
  Reopen();
  WriteText(tier_->path() + "/identity.json", "{\"format_ver");
  ExpectCreateFails(ErrorCode::kCorrupt, "identity.json: it is no JSON object");
  EXPECT_EQ(ReadText(tier_->path() + "/identity.json"), "{\"format_ver") << "left for a person";
}

TEST_F(FileTierTest, NeverTouchesFilesOfOthers) {
  OpenWithChunks(1);
  const std::string root = tier_->path();
  fs::create_directories(root + "/tmp/not-ours");
  fs::create_directories(root + "/tmp/0123456789abcdef");  // A name of ours, a stranger's file.
  fs::create_directories(root + "/chunks/zz");
  const std::vector<std::string> strangers = {
      "/notes.txt",          "/tmp/x.tmp",
      "/tmp/not-ours/1.tmp", "/tmp/0123456789abcdef/notes.txt",
      "/chunks/notes.txt",   "/chunks/zz/00_g0.chunk",
      "/chunks/00_g0.chunk", "/chunks/" + TestKey(0).ToHex().substr(0, 2) + "/backup.chunk"};
  for (const std::string& name : strangers) WriteText(root + name, "x");
  Reopen();
  EXPECT_EQ(driver_->Counter("terrace_file_foreign_files_total"), 4u);
  EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kHit);
  driver_.reset();
  tier_.reset();
  for (const std::string& name : strangers) EXPECT_TRUE(fs::exists(root + name)) << name;
}

TEST_F(FileTierTest, RemovesWhatDeadProcessesLeftAndCountsIt) {
  Reopen();
  const std::string dead = tier_->path() + "/tmp/0123456789abcdef";
  fs::create_directories(dead);
  for (const char* name : {"/lock", "/0.tmp", "/1.tmp"}) WriteText(dead + name, "x");
  fs::create_directories(tier_->path() + "/tmp/00000000deadbeef");  // Died before its lock.
  const auto second = Create(Config(), host_).value();              // While the first one lives.
  TierDriver driver(*second, host_);
  EXPECT_EQ(NamesIn(tier_->path() + "/tmp").size(), 2u);
  EXPECT_EQ(driver.Counter("terrace_file_stale_files_removed_total"), 2u);
}

TEST_F(FileTierTest, TwoTiersShareADirectory) {
  OpenWithChunks(4);
  auto second = Create(Config(), host_).value();
  TierDriver other(*second, host_);
  EXPECT_THAT(other.Load(TestKeys(4), TestSlots(4, 30)).outcomes, Each(kOk));
  // Both store the same chunks at once; then each has them, whole.
  const JobId here = driver_->SubmitStore(TestKeys(8, 100), TestSlots(8));
  const JobId there = other.SubmitStore(TestKeys(8, 100), TestSlots(8, 20));
  EXPECT_THAT(driver_->Await(here).outcomes, Each(kOk));
  EXPECT_THAT(other.Await(there).outcomes, Each(kOk));
  EXPECT_THAT(driver_->Load(TestKeys(8, 100), TestSlots(8)).outcomes, Each(kOk));
  EXPECT_TRUE(second->Shutdown(kPatience));
  EXPECT_THAT(driver_->Store({TestKey(200)}, {SlotId(0)}).outcomes, ElementsAre(kOk));
}

// ---- Storage that does not answer ----

TEST_F(FileTierTest, CountsWhatHangs) {
  OpenWithChunks(1);
  ops_.hang().Begin();
  const JobId hanging = driver_->SubmitLoad({TestKey(0)}, {SlotId(1)});
  ops_.hang().Await(1);
  now_s_ += FileTier::kHungAfter.count() - 1;
  EXPECT_EQ(driver_->Counter("terrace_file_hung_operations"), 0u);
  now_s_ += 1;
  tier_->OnScheduleEnd();
  EXPECT_EQ(driver_->Counter("terrace_file_hung_operations"), 1u);
  ops_.hang().End();
  EXPECT_THAT(driver_->Await(hanging).outcomes, ElementsAre(kOk));
  EXPECT_TRUE(tier_->Drain(kPatience));
  EXPECT_EQ(driver_->Counter("terrace_file_hung_operations"), 0u);
  EXPECT_EQ(driver_->Counter("terrace_file_hung_operations_total"), 1u);
}

// Not even removing the folder of temporaries may hang the caller.
TEST_F(FileTierTest, ShutdownOfAnIdleTierIsBoundedToo) {
  OpenWithChunks(1);
  ops_.hang().Begin();
  EXPECT_FALSE(tier_->Shutdown(std::chrono::milliseconds(1)));
  ops_.hang().End();
  EXPECT_TRUE(tier_->Shutdown(kPatience));
  EXPECT_THAT(NamesIn(tier_->path() + "/tmp"), ::testing::IsEmpty());
}

// ---- Bad files ----

TEST_F(FileTierTest, QuarantinesADamagedPayload) {
  OpenWithChunks(1);
  FlipByte(FileOf(TestKey(0)), 4096 + 4999);
  ExpectQuarantined(TestKey(0));
}

TEST_F(FileTierTest, QuarantinesADamagedHeader) {
  OpenWithChunks(1);
  FlipByte(FileOf(TestKey(0)), 60);
  ExpectQuarantined(TestKey(0));
}

TEST_F(FileTierTest, QuarantinesATruncatedFile) {
  OpenWithChunks(1);
  fs::resize_file(FileOf(TestKey(0)), 8192);
  ExpectQuarantined(TestKey(0));
}

TEST_F(FileTierTest, QuarantinesAnEmptyFile) {
  OpenWithChunks(1);
  fs::resize_file(FileOf(TestKey(0)), 0);
  ExpectQuarantined(TestKey(0));
}

// A sound record in the wrong place: its bytes are of another chunk.
TEST_F(FileTierTest, QuarantinesAnotherChunk) {
  OpenWithChunks(2);
  fs::copy_file(FileOf(TestKey(1)), FileOf(TestKey(0)), fs::copy_options::overwrite_existing);
  ExpectQuarantined(TestKey(0));
}

TEST_F(FileTierTest, QuarantinesAChunkOfAnotherCache) {
  OpenWithChunks(1);
  Digest digest = host_.identity().digest();
  digest[0] ^= 1;
  const auto payload = BytesOf(TestKey(0), 5000);
  std::vector<std::byte> header(4096);
  EncodeChunkRecord(MakeChunkRecord(digest, TestKey(0), payload), header);
  std::string text = ReadText(FileOf(TestKey(0)));
  text.replace(0, 4096, reinterpret_cast<const char*>(header.data()), 4096);
  WriteText(FileOf(TestKey(0)), text);
  ExpectQuarantined(TestKey(0));
}

TEST_F(FileTierTest, QuarantineHasABound) {
  OpenWithChunks(20);
  for (const ChunkKey& key : TestKeys(20)) FlipByte(FileOf(key), 5000);
  EXPECT_THAT(driver_->Load(TestKeys(20), TestSlots(20, 30)).outcomes, Each(kFailed));
  EXPECT_EQ(NamesIn(tier_->path() + "/quarantine").size(), 16u);
  EXPECT_EQ(driver_->Counter("terrace_file_quarantined_chunks_total"), 16u);
  for (const ChunkKey& key : TestKeys(20)) EXPECT_FALSE(fs::exists(FileOf(key)));
}

TEST_F(FileTierTest, LeavesARecordOfANewerFormatAlone) {
  OpenWithChunks(1);
  std::string text = ReadText(FileOf(TestKey(0)));
  text[8] = 2;  // The version; then the header's checksum, to make it sound.
  const std::uint64_t checksum = Xxh3(std::as_bytes(std::span(text).first(104)));
  for (int i = 0; i < 8; ++i) text[104 + i] = static_cast<char>(checksum >> (8 * i) & 0xff);
  text.resize(200);  // It may be shorter, too.
  WriteText(FileOf(TestKey(0)), text);
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss);
  EXPECT_EQ(ReadText(FileOf(TestKey(0))), text);
  EXPECT_EQ(driver_->Counter("terrace_file_newer_chunks_total"), 1u);
  EXPECT_EQ(driver_->Counter("terrace_file_corrupt_chunks_total"), 0u);
}

TEST_F(FileTierTest, AFileThatIsGoneIsAMiss) {
  OpenWithChunks(2);
  fs::remove(FileOf(TestKey(0)));
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss);
  EXPECT_EQ(driver_->Counter("terrace_file_missing_chunks_total"), 1u);
  EXPECT_THAT(driver_->Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kOk));
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

// ---- Files that cannot be read now ----

TEST_F(FileTierTest, RestsAfterATransientErrorAndKeepsTheFile) {
  OpenWithChunks(2);
  for (const auto& [call, error] :
       {std::pair{"read", EIO}, {"open", EMFILE}, {"open", EACCES}, {"open", ELOOP}}) {
    ops_.Arm({.error = error, .nth = 0, .only = call});
    EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
    EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss) << "or the request goes in circles";
    EXPECT_EQ(driver_->Lookup(TestKey(1)), TierLookup::kHit);
    EXPECT_TRUE(fs::exists(FileOf(TestKey(0))));
    now_s_ += 4;
    EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss);
    now_s_ += 1;
    EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kHit);
    EXPECT_EQ(LoadOne(TestKey(0)), kOk);
  }
  EXPECT_EQ(driver_->Counter("terrace_file_load_failures_total"), 4u);
  EXPECT_EQ(driver_->Counter("terrace_file_corrupt_chunks_total"), 0u);
}

// A read that comes short of a file that is whole proves nothing against the file.
TEST_F(FileTierTest, AShortReadOfAWholeFileIsTransient) {
  OpenWithChunks(1);
  ops_.Arm({.shape = FaultShape::kNothing, .nth = 0, .only = "read"});
  EXPECT_EQ(LoadOne(TestKey(0)), kFailed);
  EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss);
  EXPECT_TRUE(fs::exists(FileOf(TestKey(0))));
  now_s_ += 5;
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

// However little each call moves, the whole chunk gets there.
TEST_F(FileTierTest, GoesOnAfterShortTransfers) {
  Reopen();
  ops_.Arm({.shape = FaultShape::kShort, .nth = 0, .for_ever = true});
  EXPECT_THAT(driver_->Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kFailed))
      << "O_DIRECT cannot write half a block for ever";
  ops_.Arm({.shape = FaultShape::kShort, .nth = 0});
  EXPECT_THAT(driver_->Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kOk));
  ops_.Arm({.shape = FaultShape::kShort, .nth = 0});
  EXPECT_EQ(LoadOne(TestKey(0)), kOk);
}

TEST_F(FileTierTest, AStoreThatFailsLeavesNothing) {
  Reopen();
  for (const char* call : {"open", "write", "close", "rename"}) {
    ops_.Arm({.error = ENOSPC, .nth = 0, .for_ever = true, .only = call});
    EXPECT_THAT(driver_->Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kFailed)) << call;
    EXPECT_EQ(driver_->Lookup(TestKey(0)), TierLookup::kMiss) << call;
    const auto folders = NamesIn(tier_->path() + "/tmp");
    EXPECT_THAT(NamesIn(tier_->path() + "/tmp/" + folders.at(0)), ElementsAre("lock")) << call;
  }
  ops_.Disarm();
  EXPECT_THAT(driver_->Store({TestKey(0)}, {SlotId(0)}).outcomes, ElementsAre(kOk));
}

}  // namespace
}  // namespace terrace::testing
