// Plug-ins of all kinds of wrongness: what loads says what is wrong, what runs and lies is a fault
// and never undefined behaviour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "terrace/node.h"
#include "tests/contract/temp_dir.h"
#include "tests/contract/tier_driver.h"
#include "tier/plugin/plugin_tier.h"

namespace terrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kOk = CopyOutcome::kOk;
constexpr auto kFailed = CopyOutcome::kFailed;

std::string PathOf(const std::string& name) { return PLUGIN_DIR "lib" + name + ".so"; }

PluginTierConfig Flawed(const std::string& flaw) {
  return {PathOf("flawed_none"), {R"({"flaw":")" + flaw + "\"}"}};
}

// ---- What does not start ----

struct StartCase {
  std::string name;
  PluginTierConfig config;
  ErrorCode code;
  std::string says;
};

class PluginStart : public ::testing::TestWithParam<StartCase> {};

TEST_P(PluginStart, SaysWhatIsWrong) {
  FakeTierHost host(1);
  const auto made = PluginTier::Create(GetParam().config, host);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, GetParam().code);
  EXPECT_THAT(made.error().message,
              AllOf(HasSubstr(GetParam().config.library), HasSubstr(GetParam().says)));
}

const std::string kMinSize = std::to_string(sizeof(terrace_tier_plugin_v1));

INSTANTIATE_TEST_SUITE_P(
    All, PluginStart,
    ::testing::ValuesIn(std::vector<StartCase>{
        {"NoFile", {PathOf("none"), {}}, ErrorCode::kInvalidArgument, "No such file"},
        {"NoLibrary", {"/proc/self/status", {}}, ErrorCode::kInvalidArgument, "load tier plug-in"},
        {"NoSymbol",
         {PathOf("flawed_no_symbol"), {}},
         ErrorCode::kInvalidArgument,
         "it does not export terrace_tier_plugin(): "},
        {"NoTable",
         {PathOf("flawed_no_table"), {}},
         ErrorCode::kIncompatible,
         "terrace_tier_plugin() has nothing for version 1.0"},
        {"WrongMajor",
         {PathOf("flawed_wrong_major"), {}},
         ErrorCode::kIncompatible,
         "made for version 2.0 of the plug-in interface, this build has 1.0"},
        {"ShortTable",
         {PathOf("flawed_short_table"), {}},
         ErrorCode::kIncompatible,
         "has " + std::to_string(sizeof(terrace_tier_plugin_v1) - 1) +
             " bytes, version 1.0 has at least " + kMinSize},
        {"LacksFunctions",
         {PathOf("flawed_lacks_functions"), {}},
         ErrorCode::kInvalidArgument,
         "it lacks lookup(), drain()"},
        {"BadName", {PathOf("flawed_bad_name"), {}}, ErrorCode::kInvalidArgument, "is 'Flawed!?'"},
        {"CreateFails", Flawed("create_fails"), ErrorCode::kNotFound,
         "create() answered not found (2): open /dev/shelf: no such shelf"},
        {"CreateFailsWithoutEnd", Flawed("create_fails_without_end"), ErrorCode::kUnavailable,
         "create() answered unavailable (6): xxxxx"},
        {"CreateFailsSilently", Flawed("create_fails_silently"), ErrorCode::kUnavailable,
         "create() answered 99, which is no status, and no reason"},
        {"CreateThrows", Flawed("create_throws"), ErrorCode::kUnavailable,
         "create() let an exception out: no such shelf"},
        {"CreateMakesNothing", Flawed("create_makes_nothing"), ErrorCode::kInvalidArgument,
         "create() answered ok and made no tier"},
        {"BadSource", Flawed("bad_source"), ErrorCode::kInvalidArgument, "come from source 0"},
        {"StaysAfterABadStart", Flawed("bad_source_and_stays"), ErrorCode::kInvalidArgument,
         "come from source 0"},
        {"BadDescriptor", Flawed("bad_descriptor"), ErrorCode::kInvalidArgument,
         "event_descriptor 12345, which is not open"},
        {"BadServes", Flawed("bad_serves"), ErrorCode::kInvalidArgument,
         "serves_external_requests 7"},
        {"ServesWithoutFunction", Flawed("serves_without_function"), ErrorCode::kInvalidArgument,
         "it lacks serve_external_requests()"},
        {"CountersThrow", Flawed("counters_throw"), ErrorCode::kInvalidArgument,
         "read_counters() let an exception out: cannot count"},
        {"CountersTooMany", Flawed("counters_too_many"), ErrorCode::kInvalidArgument,
         "wrote 65 counters where there is room for 64"},
        {"CounterBadName", Flawed("counter_bad_name"), ErrorCode::kInvalidArgument,
         "is 'Not A Name'"},
        {"CounterNoName", Flawed("counter_no_name"), ErrorCode::kInvalidArgument, "is ''"},
        {"CounterTwice", Flawed("counter_twice"), ErrorCode::kInvalidArgument,
         "counter 1 must have a name of its own"},
        {"ExampleWithWrongOptions",
         {PathOf("shelf_tier"), {R"({"max_chunk":3})"}},
         ErrorCode::kInvalidArgument,
         R"(only "max_chunks" is known, 1 or more; got {"max_chunk":3})"}}),
    [](const auto& made) { return made.param.name; });

// ---- What starts ----

class PluginTierTest : public ::testing::Test {
 protected:
  ~PluginTierTest() override {
    driver_.reset();
    tier_.reset();
  }

  void Start(const PluginTierConfig& config) {
    auto made = PluginTier::Create(config, host_);
    ASSERT_TRUE(made.ok()) << made.error().message;
    tier_ = std::move(made).value();
    driver_ = std::make_unique<TierDriver>(*tier_, host_);
  }
  void StartFlawed(const std::string& flaw) { Start(Flawed(flaw)); }

  // What `call` throws; "" for nothing.
  template <typename Call>
  static std::string FaultOf(const Call& call) {
    try {
      call();
    } catch (const std::runtime_error& fault) {
      return fault.what();
    }
    return "";
  }
  // Takes results; what TakeFinished() throws.
  std::string TakeFault(std::vector<JobResult>& results) {
    return FaultOf([&] { tier_->TakeFinished(results); });
  }

  FakeTierHost host_{16};
  std::unique_ptr<PluginTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

TEST_F(PluginTierTest, OneInCWorks) {
  Start({PathOf("null_tier"), {}});
  EXPECT_EQ(tier_->type(), "null");
  EXPECT_EQ(tier_->load_source(), LoadSource::kOther);
  EXPECT_EQ(driver_->Lookup(TestKey(1)), TierLookup::kMiss);
  EXPECT_THAT(driver_->Store(TestKeys(2), TestSlots(2)).outcomes, ElementsAre(kFailed, kFailed));
  EXPECT_TRUE(tier_->Counters().empty());
}

TEST_F(PluginTierTest, ANewerMinorVersionWorks) {
  Start({PathOf("flawed_newer_minor"), {}});
  EXPECT_THAT(driver_->Store(TestKeys(2), TestSlots(2)).outcomes, ElementsAre(kOk, kOk));
  EXPECT_EQ(driver_->Counter("flawed_total"), 5u);
}

TEST_F(PluginTierTest, SeveralTiersOfOneLibraryLiveSideBySide) {
  Start({PathOf("shelf_tier"), {}});
  auto other = PluginTier::Create({PathOf("shelf_tier"), {R"({"max_chunks": 1})"}}, host_).value();
  TierDriver driver(*other, host_);
  driver.Store(TestKeys(2), TestSlots(2));
  EXPECT_EQ(driver.Lookup(TestKey(0)), TierLookup::kMiss);
  EXPECT_EQ(driver.Lookup(TestKey(1)), TierLookup::kHit);
  EXPECT_EQ(driver_->Lookup(TestKey(1)), TierLookup::kMiss);
  other.reset();
  EXPECT_THAT(driver_->Store(TestKeys(2), TestSlots(2)).outcomes, Each(kOk));
}

TEST_F(PluginTierTest, AnUnknownAnswerToALookupIsAFault) {
  StartFlawed("lookup_unknown");
  EXPECT_EQ(FaultOf([&] { driver_->Lookup(TestKey(1)); }), "lookup() answered 7");
}

TEST_F(PluginTierTest, AnExceptionOfALookupIsAFault) {
  StartFlawed("lookup_throws");
  EXPECT_EQ(FaultOf([&] { driver_->Lookup(TestKey(1)); }),
            "lookup() let an exception out: no idea");
}

TEST_F(PluginTierTest, AnExceptionThatIsNoneOfCxxIsAFault) {
  StartFlawed("lookup_throws_int");
  EXPECT_EQ(FaultOf([&] { driver_->Lookup(TestKey(1)); }), "lookup() let an exception out");
}

TEST_F(PluginTierTest, AJobThatIsRefusedHasFailed) {
  for (const char* flaw : {"submit_refuses", "submit_unknown"}) {
    StartFlawed(flaw);
    driver_->SubmitStore(TestKeys(2), TestSlots(2));
    std::vector<JobResult> results;
    EXPECT_THAT(TakeFault(results), HasSubstr("submit_store() answered ")) << flaw;
    ASSERT_EQ(results.size(), 1u) << flaw;
    EXPECT_THAT(results[0].outcomes, ElementsAre(kFailed, kFailed)) << flaw;
  }
}

// It did not take the job, it says. If it ends it all the same, nobody gets to see that.
TEST_F(PluginTierTest, AJobThatIsRefusedAndReportedIsReportedOnce) {
  StartFlawed("submit_reports_and_refuses");
  driver_->SubmitStore(TestKeys(2), TestSlots(2));
  std::vector<JobResult> results;
  TakeFault(results);
  EXPECT_EQ(results.size(), 1u);
  TakeFault(results);
  EXPECT_EQ(results.size(), 1u);
}

// Nobody knows whether it took the job: its slots are not free before it has reported it, or ended.
TEST_F(PluginTierTest, AJobWhoseSubmissionThrewStaysUnderWay) {
  StartFlawed("submit_throws");
  driver_->SubmitLoad(TestKeys(2), TestSlots(2));
  std::vector<JobResult> results;
  EXPECT_EQ(TakeFault(results), "submit_load() let an exception out: lost my mind");
  ASSERT_EQ(results.size(), 1u) << "it had it";
  EXPECT_THAT(results[0].outcomes, Each(kOk));
}

struct TakeCase {
  std::string flaw;
  std::string says;
  std::vector<CopyOutcome> outcomes;  // Of a job of two chunks; none: not reported.
};

class PluginTake : public PluginTierTest, public ::testing::WithParamInterface<TakeCase> {};

TEST_P(PluginTake, IsAFaultAndNoMore) {
  StartFlawed(GetParam().flaw);
  driver_->SubmitStore(TestKeys(2), TestSlots(2));
  std::vector<JobResult> results;
  EXPECT_EQ(TakeFault(results), GetParam().says);
  if (GetParam().outcomes.empty()) {
    EXPECT_TRUE(results.empty());
  } else {
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].id, JobId(1));
    EXPECT_EQ(results[0].outcomes, GetParam().outcomes);
    EXPECT_LE(results[0].bytes, 2u * 5000);
    EXPECT_EQ(results[0].ended_at, std::chrono::steady_clock::time_point{});
  }
  results.clear();
  TakeFault(results);
  EXPECT_TRUE(results.empty());
  // In the end it is given back in any case.
  EXPECT_TRUE(tier_->Shutdown(kPatience));
  TakeFault(results);
  EXPECT_EQ(results.size(), GetParam().outcomes.empty() ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, PluginTake,
    ::testing::ValuesIn(std::vector<TakeCase>{
        {"take_throws", "take_finished() let an exception out: results are gone", {}},
        {"take_unknown", "it reported job 4711, which it was not given or has reported before", {}},
        {"take_never", "", {}},
        {"take_twice",
         "it reported job 1, which it was not given or has reported before",
         {kOk, kOk}},
        {"take_too_many",
         "take_finished() said that it wrote 65 results where there is room for 64",
         {kOk, kOk}},
        {"take_bad_outcome", "it gave a chunk the outcome 2", {kFailed, kOk}},
        {"take_too_many_bytes",
         "it moved 18446744073709551615 bytes in a job of 10000",
         {kOk, kOk}},
        {"take_bad_times", "", {kOk, kOk}}}),
    [](const auto& made) { return made.param.flaw; });

TEST_F(PluginTierTest, AnUnknownAnswerToADrainIsAFault) {
  StartFlawed("drain_unknown");
  EXPECT_FALSE(tier_->Drain(kPatience));
  std::vector<JobResult> results;
  EXPECT_EQ(TakeFault(results), "drain() answered 42, which is no status");
}

TEST_F(PluginTierTest, AnEndThatFailsIsTriedAgain) {
  for (const char* flaw : {"shutdown_throws", "shutdown_times_out", "shutdown_unknown"}) {
    StartFlawed(flaw);
    EXPECT_FALSE(tier_->Shutdown(kPatience)) << flaw;
    EXPECT_TRUE(tier_->Shutdown(kPatience)) << flaw;
  }
}

TEST_F(PluginTierTest, AnEndThatHangsHangsNobody) {
  StartFlawed("shutdown_hangs");
  EXPECT_FALSE(tier_->Shutdown(std::chrono::milliseconds(0)));
  EXPECT_TRUE(tier_->Shutdown(kPatience)) << "the same call, and it has ended";
}

TEST_F(PluginTierTest, WhatItForgetsIsGivenBackAtTheEnd) {
  StartFlawed("shutdown_forgets");
  driver_->SubmitStore(TestKeys(2), TestSlots(2));
  EXPECT_TRUE(tier_->Shutdown(kPatience));
  std::vector<JobResult> results;
  EXPECT_EQ(TakeFault(results), "shutdown() left 1 jobs that were never reported");
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].outcomes, Each(kFailed));
}

TEST_F(PluginTierTest, AnExceptionOfDestroyIsSurvived) {
  StartFlawed("destroy_throws");
  tier_.reset();
}

// ---- In a node ----

class PluginNodeTest : public ::testing::Test {
 protected:
  std::string Entry(const std::string& name, const std::string& flaw) {
    return R"({"type": "plugin", "library": ")" + PathOf("flawed_none") +
           R"(", "options": {"flaw": ")" + flaw + R"(", "name": ")" + name + R"(", "diary": ")" +
           diary_ + "\"}}";
  }
  Result<std::unique_ptr<Node>> Make(const std::string& tiers) {
    const auto config =
        ParseNodeConfig(R"({"cpu_bytes_to_use": "1MiB", "secondary_tiers": [)" + tiers + "]}");
    return Node::Create(config.value(), CacheIdentity::Create(TestIdentityFields(5000)).value());
  }

  TempDir dir_;
  const std::string diary_ = dir_.path() + "/diary";
};

TEST_F(PluginNodeTest, ATierThatDoesNotStartUnwindsThoseBeforeItInReverse) {
  const auto node =
      Make(Entry("a", "") + ", " + Entry("b", "") + ", " + Entry("c", "create_fails"));
  ASSERT_FALSE(node.ok());
  EXPECT_EQ(node.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(node.error().message,
              AllOf(HasSubstr("start secondary_tiers[2]: start tier plug-in /"),
                    HasSubstr("open /dev/shelf: no such shelf")));
  EXPECT_EQ(ReadText(diary_), "create a create b shutdown b destroy b shutdown a destroy a ");
}

// The second was made before it was found to be wrong.
TEST_F(PluginNodeTest, ATierThatIsWrongIsUnwoundToo) {
  const auto node = Make(Entry("a", "") + ", " + Entry("b", "bad_source"));
  ASSERT_FALSE(node.ok());
  EXPECT_EQ(ReadText(diary_), "create a create b shutdown b destroy b shutdown a destroy a ");
}

TEST_F(PluginNodeTest, EndsItsTiersInReverse) {
  auto node = Make(Entry("a", "") + ", " + Entry("b", ""));
  ASSERT_TRUE(node.ok()) << node.error().message;
  node.value()->Shutdown();
  EXPECT_EQ(ReadText(diary_), "create a create b shutdown b shutdown a ");
}

}  // namespace
}  // namespace terrace::testing
