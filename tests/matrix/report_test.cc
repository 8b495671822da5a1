#include "report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "numbers.h"

namespace terrace::matrix {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(SpreadOf, TakesTheMiddle) {
  EXPECT_EQ(SpreadOf({3, 1, 2}).median, 2);
  EXPECT_EQ(SpreadOf({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(SpreadOf({3, 1, 2}).min, 1);
  EXPECT_EQ(SpreadOf({3, 1, 2}).max, 3);
  EXPECT_EQ(SpreadOf({}).median, 0);
}

TEST(QuartilesOf, HaveHalfOfTheValuesBetweenThem) {
  EXPECT_EQ(QuartilesOf({8, 1, 7, 2, 6, 3, 5, 4}).low, 3);
  EXPECT_EQ(QuartilesOf({8, 1, 7, 2, 6, 3, 5, 4}).high, 6);
  EXPECT_EQ(QuartilesOf({5}).low, 5);
  EXPECT_EQ(QuartilesOf({5}).high, 5);
  EXPECT_EQ(QuartilesOf({}).high, 0);
}

Cell MakeCell(Arm arm, Source source, Link link, double ttft_s) {
  Cell cell{arm, source, link, {}};
  for (const double factor : {2.0, 1.0, 3.0}) {
    Repetition repetition;
    repetition.ttft_s = ttft_s * factor / 2;
    if (Fetches(arm)) repetition.lookup_s = ttft_s * factor / 20;
    repetition.fetched_bytes = 1'000'000;
    repetition.fetch_s = 0.001;
    cell.repetitions.push_back(repetition);
  }
  return cell;
}

// The busy source costs nothing with a control thread, and five times as much per step.
MatrixResult Result() {
  MatrixResult result;
  for (const Arm arm : kArms) {
    for (const Source source : kSources) {
      for (const Link link : kLinks) {
        const double busy = arm == Arm::kPerStep && source == Source::kBusy ? 5 : 1;
        result.cells.push_back(MakeCell(arm, source, link, 0.01 * busy));
      }
    }
  }
  result.cells.push_back(MakeCell(Arm::kOwnMemory, Source::kIdle, Link::kWarm, 0.008));
  result.cells.push_back(MakeCell(Arm::kOwnMemory, Source::kBusy, Link::kWarm, 0.01));
  result.source_step_s = {0.05, 0.06, 0.07};
  result.raw_round_trip_s = {0.0005};
  result.raw_copy_plane = "tcp";
  result.raw_copy_bytes = 2'000'000;
  result.raw_copy_s = {0.001};
  result.tokens_per_s_without_peers = 1000;
  result.tokens_per_s_with_peers = 990;
  result.priority = "high";
  return result;
}

TEST(SummaryOf, IsOfTheMediansOverWarmLinks) {
  const Summary summary = SummaryOf(Result());
  EXPECT_DOUBLE_EQ(summary.penalty_control_thread, 1);
  EXPECT_DOUBLE_EQ(summary.penalty_per_step, 5);
  EXPECT_DOUBLE_EQ(summary.lookup_over_raw, 2);
  EXPECT_DOUBLE_EQ(summary.fetch_over_raw, 0.5);
  EXPECT_DOUBLE_EQ(summary.throughput_ratio, 0.99);
}

TEST(SummaryOf, IsZeroWhereNothingWasMeasured) {
  const Summary summary = SummaryOf({});
  EXPECT_EQ(summary.penalty_control_thread, 0);
  EXPECT_EQ(summary.lookup_over_raw, 0);
  EXPECT_EQ(summary.fetch_over_raw, 0);
  EXPECT_EQ(summary.throughput_ratio, 0);
}

TEST(ToJson, HasTheKeysThatArePromised) {
  const json written = json::parse(ToJson(MatrixOptions{}, Result()));
  ASSERT_EQ(written["cells"].size(), 14u);
  const json& cell = written["cells"][5];
  EXPECT_EQ(cell["arm"], "per_step");
  EXPECT_EQ(cell["source"], "idle");
  EXPECT_EQ(cell["link"], "warm");
  EXPECT_EQ(cell["repetitions"], 3);
  EXPECT_DOUBLE_EQ(cell["ttft_s"]["median"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(cell["ttft_s"]["min"].get<double>(), 0.005);
  EXPECT_DOUBLE_EQ(cell["lookup_s"]["max"].get<double>(), 0.0015);
  EXPECT_DOUBLE_EQ(cell["fetch_s"]["median"].get<double>(), 0.001);
  EXPECT_TRUE(written["cells"][8]["lookup_s"].is_null());
  EXPECT_DOUBLE_EQ(written["penalty"]["per_step"].get<double>(), 5);
  EXPECT_DOUBLE_EQ(written["penalty"]["own_memory"].get<double>(), 1.25);
  EXPECT_DOUBLE_EQ(written["source_step_s"].get<double>(), 0.06);
  EXPECT_EQ(written["answers_identical"], true);
  EXPECT_FALSE(written.contains("lock_faults"));
}

TEST(ToJson, WhatWasNotMeasuredIsNull) {
  const json written = json::parse(ToJson(MatrixOptions{}, MatrixResult{}));
  EXPECT_TRUE(written["penalty"]["control_thread"].is_null());
  EXPECT_TRUE(written["fetch_over_raw_copy"].is_null());
  EXPECT_TRUE(written["raw_round_trip_s"].is_null());
}

TEST(ToText, SaysWhichGoalIsMissed) {
  const std::string text = ToText(MatrixOptions{}, Result());
  EXPECT_THAT(text, HasSubstr("1.00 (goal <= 1.1: ok) with the control thread"));
  EXPECT_THAT(text, HasSubstr("5.00 (goal >= 3: ok) per step; 1.25 if it has"));
  EXPECT_THAT(text, HasSubstr("a fetch has 0.50 (goal >= 0.8: MISSED)"));
}

TEST(ToText, SaysSoIfAnAnswerDiffers) {
  MatrixResult result = Result();
  EXPECT_THAT(ToText(MatrixOptions{}, result), HasSubstr("Answers: identical"));
  result.answers_identical = false;
  result.not_fetched = 2;
  result.lock_faults = LockFaults{3, 4};
  const std::string text = ToText(MatrixOptions{}, result);
  EXPECT_THAT(text, HasSubstr("Answers: NOT identical"));
  EXPECT_THAT(text, HasSubstr("2 prompts that should have been loaded were computed"));
  EXPECT_THAT(text, HasSubstr("overlaps counted: 3, overtakes: 4"));
}

TEST(ToPicture, LeavesOutWhatWasNotMeasured) {
  EXPECT_THAT(ToPicture(MatrixOptions{}, Result()), HasSubstr("10 ms"));
  const std::string empty = ToPicture(MatrixOptions{}, MatrixResult{});
  EXPECT_TRUE(empty.starts_with("<svg"));
  EXPECT_TRUE(empty.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace terrace::matrix
