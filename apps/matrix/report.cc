#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace terrace::matrix {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

double MedianTtft(const MatrixResult& result, Arm arm, Source source) {
  const Cell* const cell = result.Find(arm, source, Link::kWarm);
  return cell == nullptr ? 0 : SpreadOf(TtftsOf(*cell)).median;
}

double PenaltyOf(const MatrixResult& result, Arm arm) {
  return Ratio(MedianTtft(result, arm, Source::kBusy), MedianTtft(result, arm, Source::kIdle));
}

// Of each busy repetition and the idle one that it took turns with.
std::vector<double> PenaltiesOfPairs(const MatrixResult& result, Arm arm) {
  const Cell* const idle = result.Find(arm, Source::kIdle, Link::kWarm);
  const Cell* const busy = result.Find(arm, Source::kBusy, Link::kWarm);
  std::vector<double> ratios;
  if (idle == nullptr || busy == nullptr) return ratios;
  const std::size_t pairs = std::min(idle->repetitions.size(), busy->repetitions.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    ratios.push_back(Ratio(busy->repetitions[i].ttft_s, idle->repetitions[i].ttft_s));
  }
  return ratios;
}

Json ToJson(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  const Spread spread = SpreadOf(values);
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

// What a figure is to be; see the README.
std::string AtMost(double goal, double value) {
  return fmt::format("{:.2f} (goal <= {:g}: {})", value, goal, value <= goal ? "ok" : "MISSED");
}
std::string AtLeast(double goal, double value) {
  return fmt::format("{:.2f} (goal >= {:g}: {})", value, goal, value >= goal ? "ok" : "MISSED");
}

Json OrNull(double value) { return value > 0 ? Json(value) : Json(nullptr); }

}  // namespace

Summary SummaryOf(const MatrixResult& result) {
  Summary summary;
  summary.penalty_control_thread = PenaltyOf(result, Arm::kControlThread);
  summary.penalty_of_pairs = QuartilesOf(PenaltiesOfPairs(result, Arm::kControlThread));
  summary.penalty_per_step = PenaltyOf(result, Arm::kPerStep);
  summary.penalty_recompute = PenaltyOf(result, Arm::kRecompute);
  summary.penalty_own_memory = PenaltyOf(result, Arm::kOwnMemory);
  if (const Cell* cell = result.Find(Arm::kControlThread, Source::kIdle, Link::kWarm)) {
    summary.lookup_over_raw =
        Ratio(SpreadOf(LookupsOf(*cell)).median, SpreadOf(result.raw_round_trip_s).median);
    const double raw_rate =
        Ratio(static_cast<double>(result.raw_copy_bytes), SpreadOf(result.raw_copy_s).median);
    summary.fetch_over_raw = Ratio(FetchRateOf(*cell), raw_rate);
  }
  summary.throughput_ratio =
      Ratio(result.tokens_per_s_with_peers, result.tokens_per_s_without_peers);
  return summary;
}

std::string ToJson(const MatrixOptions& options, const MatrixResult& result) {
  const Summary summary = SummaryOf(result);
  Json cells = Json::array();
  for (const Cell& cell : result.cells) {
    cells.push_back({{"arm", NameOf(cell.arm)},
                     {"source", NameOf(cell.source)},
                     {"link", NameOf(cell.link)},
                     {"lookup_s", ToJson(LookupsOf(cell))},
                     {"ttft_s", ToJson(TtftsOf(cell))},
                     {"fetch_s", ToJson(FetchesOf(cell))},
                     {"repetitions", cell.repetitions.size()}});
  }
  const Spread step = SpreadOf(result.source_step_s);
  Json json = {
      {"cells", cells},
      {"penalty",
       {{"control_thread", OrNull(summary.penalty_control_thread)},
        {"per_step", OrNull(summary.penalty_per_step)},
        {"recompute", OrNull(summary.penalty_recompute)},
        {"own_memory", OrNull(summary.penalty_own_memory)}}},
      {"lookup_over_raw_round_trip", OrNull(summary.lookup_over_raw)},
      {"fetch_over_raw_copy", OrNull(summary.fetch_over_raw)},
      {"source_throughput_with_peers_over_without", OrNull(summary.throughput_ratio)},
      {"source_step_s", OrNull(step.median)},
      {"answers_identical", result.answers_identical},
      // Beyond what the matrix is judged by.
      {"engine", options.engine},
      {"huge_pages", options.huge_pages},
      {"prompt_tokens", options.prompt_tokens},
      {"penalty_of_half_the_pairs",
       {OrNull(summary.penalty_of_pairs.low), OrNull(summary.penalty_of_pairs.high)}},
      {"not_fetched", result.not_fetched},
      {"control_thread_priority", result.priority},
      {"raw_round_trip_s", ToJson(result.raw_round_trip_s)},
      {"raw_round_trip_busy_s", ToJson(result.raw_round_trip_busy_s)},
      {"raw_copy",
       {{"plane", result.raw_copy_plane},
        {"bytes", result.raw_copy_bytes},
        {"s", ToJson(result.raw_copy_s)}}},
      {"source_tokens_per_s",
       {{"without_peers", result.tokens_per_s_without_peers},
        {"with_peers", result.tokens_per_s_with_peers},
        {"fetches_meanwhile", result.fetches_meanwhile}}},
      {"source_lock_wait_s",
       {{"lookups_of_a_flood", result.flood_lookups},
        {"engine", {{"p99", result.engine_wait.p99_s}, {"max", result.engine_wait.max_s}}},
        {"control", {{"p99", result.control_wait.p99_s}, {"max", result.control_wait.max_s}}}}}};
  if (result.lock_faults) {
    json["lock_faults"] = {{"overlaps", result.lock_faults->overlaps},
                           {"overtakes", result.lock_faults->overtakes}};
  }
  return json.dump(1) + "\n";
}

std::string ToText(const MatrixOptions& options, const MatrixResult& result) {
  const auto row = [](const std::vector<double>& values) {
    if (values.empty()) return fmt::format("{:>9} {:>9} {:>9}", "-", "-", "-");
    const Spread s = SpreadOf(values);
    return fmt::format("{:>9.3f} {:>9.3f} {:>9.3f}", s.median * 1e3, s.min * 1e3, s.max * 1e3);
  };
  std::string text = fmt::format(
      "\nA prompt of {} tokens that another node has, ms ({} engine)\n\n"
      "{:<15} {:<6} {:<5} {:>29}   {:>29}\n{:<28} {:>9} {:>9} {:>9}   {:>9} {:>9} {:>9}\n",
      options.prompt_tokens, options.engine, "arm", "source", "link", "look-up delay",
      "time to first token", "", "median", "min", "max", "median", "min", "max");
  for (const Cell& cell : result.cells) {
    text += fmt::format("{:<15} {:<6} {:<5} {}   {}\n", NameOf(cell.arm), NameOf(cell.source),
                        NameOf(cell.link), row(LookupsOf(cell)), row(TtftsOf(cell)));
  }
  const Summary s = SummaryOf(result);
  const Spread step = SpreadOf(result.source_step_s);
  const Spread raw = SpreadOf(result.raw_round_trip_s);
  const Spread raw_busy = SpreadOf(result.raw_round_trip_busy_s);
  text += fmt::format(
      "\nWhat a busy source costs the asker (warm, busy over idle): {} with the control "
      "thread, {} per step; {:.2f} if it has the prompt in its own memory, {:.2f} if it "
      "recomputes it; with the control thread half of all pairs of an idle and a busy prompt are "
      "between {:.2f} and {:.2f}\n",
      AtMost(1.10, s.penalty_control_thread), AtLeast(3, s.penalty_per_step), s.penalty_own_memory,
      s.penalty_recompute, s.penalty_of_pairs.low, s.penalty_of_pairs.high);
  text += fmt::format(
      "The busy source's step: {:.1f} ms ({:.1f} to {:.1f}); its control thread's "
      "priority: {}\n",
      step.median * 1e3, step.min * 1e3, step.max * 1e3, result.priority);
  text += fmt::format(
      "The busy source's tokens a second: {:.0f} without peers, {:.0f} while a peer fetched {} "
      "prompts: {}\n",
      result.tokens_per_s_without_peers, result.tokens_per_s_with_peers, result.fetches_meanwhile,
      AtLeast(0.98, s.throughput_ratio));
  text += fmt::format(
      "Raw ZeroMQ round trip: {:.0f} us (busy {:.0f} us); a look-up takes {} of it (idle, "
      "warm)\n",
      raw.median * 1e6, raw_busy.median * 1e6, AtMost(2, s.lookup_over_raw));
  if (!result.raw_copy_s.empty()) {
    text += fmt::format(
        "Raw copy of {:.1f} MiB ({}): {:.2f} GB/s; a fetch has {} of that (idle, warm)\n",
        static_cast<double>(result.raw_copy_bytes) / (1 << 20), result.raw_copy_plane,
        static_cast<double>(result.raw_copy_bytes) / SpreadOf(result.raw_copy_s).median / 1e9,
        AtLeast(0.8, s.fetch_over_raw));
  }
  text += fmt::format(
      "The source's lock, also under a flood of {} look-ups in a second: its engine waited {:.3f} "
      "ms at most (99 %: {:.4f} ms), its control thread {:.3f} ms\n",
      result.flood_lookups, result.engine_wait.max_s * 1e3, result.engine_wait.p99_s * 1e3,
      result.control_wait.max_s * 1e3);
  if (result.lock_faults) {
    text += fmt::format("A lock that is broken on purpose; overlaps counted: {}, overtakes: {}\n",
                        result.lock_faults->overlaps, result.lock_faults->overtakes);
  }
  if (result.not_fetched > 0) {
    text +=
        fmt::format("{} prompts that should have been loaded were computed\n", result.not_fetched);
  }
  text += fmt::format("Answers: {}\n", result.answers_identical
                                           ? "identical to the source's, which kept its cache"
                                           : "NOT identical to the source's");
  return text;
}

}  // namespace terrace::matrix
