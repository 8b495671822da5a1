// Every system call of the file tier goes wrong once, in every way we can think of. Whatever
// happens: no wrong byte is served, each job is reported once, nothing unfinished stays behind, and
// the index says what the directory holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <tuple>

#include "tests/contract/faulty_file_ops.h"
#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/file/file_tier.h"
#include "tier/file/names.h"

namespace terrace::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kChunks = 3;

struct FaultCase {
  std::string name;
  Fault fault;
  bool harmless = false;  // A call that comes short must not be noticed by anybody.
};

struct Variant {
  std::string name;
  std::string layout;
  bool direct_io;
};

class FileTierFault : public ::testing::TestWithParam<std::tuple<FaultCase, Variant>> {
 protected:
  const FaultCase& fault_case() const { return std::get<0>(GetParam()); }
  const Variant& variant() const { return std::get<1>(GetParam()); }
  bool is_vllm() const { return variant().layout == "vllm"; }

  Result<std::unique_ptr<FileTier>> Open(const std::string& root) {
    return FileTier::Create({.root_dir = root,
                             .layout = variant().layout,
                             .n_read_threads = 1,
                             .n_write_threads = 1,
                             .direct_io = variant().direct_io},
                            host_, {.ops = &ops_, .now = {}});
  }

  bool HasFile(const FileTier& tier, const ChunkKey& key) {
    if (is_vllm()) return fs::exists(tier.path() + "/" + VllmChunkPath(key));
    const std::string hex = key.ToHex();
    return fs::exists(tier.path() + "/chunks/" + hex.substr(0, 2) + "/" + hex + "_g0.chunk");
  }

  // What the tier offers is there, and what it stored is offered.
  void ExpectIndexAgrees(FileTier& tier, TierDriver& driver) {
    for (const ChunkKey& key : TestKeys(kChunks)) {
      if (driver.Lookup(key) == TierLookup::kHit) {
        EXPECT_TRUE(HasFile(tier, key)) << "offered and not there";
      }
    }
  }

  void ExpectNoTemporaries(const std::string& root) {
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      // What could not be removed at the start stays: it might be a neighbour's.
      if (is_vllm() && entry.path().filename().string().starts_with(".probe_")) continue;
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
  }

  // Stores and loads with the fault armed.
  void StoreAndLoad(const std::string& root) {
    auto made = Open(root);
    if (!made) {
      EXPECT_FALSE(made.error().message.empty());
      EXPECT_FALSE(fault_case().harmless) << made.error().message;
      return;
    }
    FileTier& tier = *made.value();
    TierDriver driver(tier, host_);
    const auto stored = driver.Store(TestKeys(kChunks), TestSlots(kChunks));
    EXPECT_EQ(stored.outcomes.size(), kChunks);
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      if (stored.outcomes[i] == CopyOutcome::kOk) {
        EXPECT_TRUE(HasFile(tier, TestKey(i))) << i;
      }
    }
    ExpectIndexAgrees(tier, driver);
    const bool failed = stored.outcomes != std::vector(kChunks, CopyOutcome::kOk);
    if (failed && !fault_case().fault.for_ever) ExpectNoTemporaries(root);
    const auto loaded = driver.Load(TestKeys(kChunks), TestSlots(kChunks, 10));
    ExpectIndexAgrees(tier, driver);
    if (fault_case().harmless || !ops_.fired()) {
      EXPECT_THAT(stored.outcomes, ::testing::Each(CopyOutcome::kOk));
      EXPECT_THAT(loaded.outcomes, ::testing::Each(CopyOutcome::kOk));
    }
    EXPECT_TRUE(tier.Shutdown(kPatience));
    driver.Poll();
  }

  // After the fault is over, the directory works and holds only whole chunks.
  void ReopenAndCheck(const std::string& root) {
    auto made = Open(root);
    ASSERT_TRUE(made.ok()) << made.error().message;
    TierDriver driver(*made.value(), host_);
    if (!is_vllm()) {
      EXPECT_EQ(NamesIn(made.value()->path() + "/tmp").size(), 1u) << "only our own";
    }
    if (!is_vllm() || !fault_case().fault.for_ever) ExpectNoTemporaries(root);
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      EXPECT_EQ(driver.Lookup(TestKey(i)) == TierLookup::kHit, HasFile(*made.value(), TestKey(i)));
    }
    driver.Load(TestKeys(kChunks), TestSlots(kChunks, 10));
    EXPECT_THAT(driver.Store(TestKeys(kChunks), TestSlots(kChunks)).outcomes,
                ::testing::Each(CopyOutcome::kOk));
    EXPECT_THAT(driver.Load(TestKeys(kChunks), TestSlots(kChunks, 10)).outcomes,
                ::testing::Each(CopyOutcome::kOk));
    EXPECT_TRUE(made.value()->Shutdown(kPatience));
    EXPECT_THAT(NamesIn(made.value()->path() + "/tmp"), ::testing::IsEmpty());
  }

  FakeTierHost host_{20};
  FaultyFileOps ops_;
};

TEST_P(FileTierFault, AtEveryCall) {
  if (is_vllm() && fault_case().fault.shape == FaultShape::kFlipByte) {
    GTEST_SKIP() << "nothing tells it";
  }
  bool fired = true;
  std::uint64_t n = 0;
  for (; fired; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    const TempDir dir(variant().direct_io ? Medium::kDisk : Medium::kMemory);
    Fault fault = fault_case().fault;
    fault.nth = n;
    ops_.Arm(fault);
    StoreAndLoad(dir.path());
    fired = ops_.fired();
    ops_.Disarm();
    ReopenAndCheck(dir.path());
    if (HasFailure()) return;  // Hundreds more would say the same.
    ASSERT_LT(n, 1000u) << "the fault fires for ever";
  }
  EXPECT_GT(n, kChunks) << "the fault was never met";
}

INSTANTIATE_TEST_SUITE_P(
    All, FileTierFault,
    ::testing::Combine(
        ::testing::ValuesIn(std::vector<FaultCase>{
            {"EIO", {.shape = FaultShape::kError, .error = EIO}},
            {"ENOSPC", {.shape = FaultShape::kError, .error = ENOSPC}},
            {"EMFILE", {.shape = FaultShape::kError, .error = EMFILE}},
            {"EACCES", {.shape = FaultShape::kError, .error = EACCES}},
            {"EINVAL", {.shape = FaultShape::kError, .error = EINVAL}},
            {"ENOENT", {.shape = FaultShape::kError, .error = ENOENT}},
            {"EIO_from_then_on", {.shape = FaultShape::kError, .error = EIO, .for_ever = true}},
            {"ENOSPC_from_then_on",
             {.shape = FaultShape::kError, .error = ENOSPC, .for_ever = true}},
            {"EINTR_open", {.shape = FaultShape::kError, .error = EINTR, .only = "open"}, true},
            {"EINTR_read", {.shape = FaultShape::kError, .error = EINTR, .only = "read"}, true},
            {"EINTR_write", {.shape = FaultShape::kError, .error = EINTR, .only = "write"}, true},
            {"short_transfer", {.shape = FaultShape::kShort}, true},
            {"no_transfer", {.shape = FaultShape::kNothing}},
            {"torn_EIO", {.shape = FaultShape::kTorn, .error = EIO}},
            {"torn_ENOSPC", {.shape = FaultShape::kTorn, .error = ENOSPC}},
            {"flipped_byte", {.shape = FaultShape::kFlipByte}}}),
        ::testing::Values(Variant{"direct", "records", true}, Variant{"buffered", "records", false},
                          Variant{"vllm_direct", "vllm", true},
                          Variant{"vllm_buffered", "vllm", false})),
    [](const auto& made) {
      return std::get<0>(made.param).name + "_" + std::get<1>(made.param).name;
    });

}  // namespace
}  // namespace terrace::testing
