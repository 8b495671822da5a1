#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "child.h"
#include "matrix.h"
#include "numbers.h"

namespace terrace::matrix {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kWarmUpSeed = 900'000;
constexpr double kControlInterval = 0.001;
constexpr int kFloodMs = 1'000;
constexpr int kPings = 10;  // Before each repetition.
constexpr int kPingGapMs = 5;
constexpr int kCopies = 3;  // Before each repetition.
// A model may have to be loaded, or a prompt be computed on a machine that does much else.
constexpr std::chrono::milliseconds kPatience{300'000};

void Append(const Json& values, std::vector<double>& to) {
  for (const Json& value : values) to.push_back(value.get<double>());
}

// The first failure ends it all: after that nobody is told anything any more, and every loop ends.
class Measurement {
 public:
  Measurement(const MatrixOptions& options, const std::function<void(const std::string&)>& say)
      : options_(options), say_(say) {}

  Result<MatrixResult> Run();

 private:
  bool ok() const { return !error_.has_value(); }
  std::unique_ptr<Child> Start(const std::string& name);
  Json Tell(Child& child, const Json& order);
  void MeasureArm(Arm arm);
  void ComputePrompts();
  void MeasureCell(Arm arm, Source source, Link link);
  void Open(Child& child, double interval_s, std::uint64_t host_tokens);
  void OpenSource(Arm arm);
  void OpenAsker(Arm arm, Link link);
  Json PromptOrder(std::uint64_t seed) const;
  Repetition Ask(Arm arm, std::uint64_t seed);
  void BeBusy();
  void MeasureRaw(Source source);
  void MeasureThroughput();
  void FetchFor(double seconds);
  void MeasureLock();
  void Pause(Source source);
  std::uint64_t SeedOf(Source source, Link link, std::uint32_t repetition) const;

  const MatrixOptions& options_;
  const std::function<void(const std::string&)>& say_;
  std::optional<Error> error_;
  std::unique_ptr<Child> source_;
  std::unique_ptr<Child> asker_;
  Json opened_;  // What was said of the node that was opened last.
  std::uint16_t source_port_ = 0;
  std::map<std::uint64_t, Json> answers_;  // The source's, by the prompt's seed.
  double step_s_ = 0;                      // Of the busy source, about.
  Json raw_;                               // Where the raw transports are served.
  std::mt19937_64 random_{1};
  MatrixResult result_;
};

Result<MatrixResult> Measurement::Run() {
  source_ = Start("the source");
  asker_ = Start("the asker");
  if (!ok()) return *error_;
  for (const Arm arm : {Arm::kControlThread, Arm::kPerStep}) MeasureArm(arm);
  if (count_lock_faults != nullptr) result_.lock_faults = count_lock_faults();
  // Without a lock a node may not live to the end.
  if (!ok() && result_.lock_faults) {
    error_->message += "; overlaps counted: " + std::to_string(result_.lock_faults->overlaps);
  }
  if (!ok()) return *error_;
  Tell(*asker_, {{"do", "stop"}});
  Tell(*source_, {{"do", "stop"}});
  // In the order of the arms, whatever was measured when.
  std::stable_sort(result_.cells.begin(), result_.cells.end(),
                   [](const Cell& a, const Cell& b) { return a.arm < b.arm; });
  if (!ok()) return *error_;
  return std::move(result_);
}

std::unique_ptr<Child> Measurement::Start(const std::string& name) {
  auto child = Child::Start(name, options_.program, options_.arguments);
  if (child.ok()) return std::move(child).value();
  if (ok()) error_ = child.error();
  return nullptr;
}

Json Measurement::Tell(Child& child, const Json& order) {
  if (!ok()) return {};
  auto answer = child.Ask(order, kPatience);
  if (answer.ok()) return std::move(answer).value();
  error_ = answer.error();
  return {};
}

std::uint64_t Measurement::SeedOf(Source source, Link link, std::uint32_t repetition) const {
  const auto cell = options_.share_prompts
                        ? 0
                        : static_cast<std::uint64_t>(source) * 2 + static_cast<std::uint64_t>(link);
  return 1 + cell * options_.repetitions + repetition;
}

void Measurement::Open(Child& child, double interval_s, std::uint64_t host_tokens) {
  opened_ = Tell(child, {{"do", "open"},
                         {"interval_s", interval_s},
                         {"data_plane", options_.data_plane},
                         {"control_priority", options_.control_priority},
                         {"host_tokens", host_tokens}});
}

// With room for all that it computes, so that nothing that is to be fetched is evicted.
void Measurement::OpenSource(Arm arm) {
  const std::uint64_t prompts =
      std::uint64_t{options_.share_prompts ? 1U : 4U} * options_.repetitions + 4;
  Open(*source_, arm == Arm::kControlThread ? kControlInterval : 0,
       prompts * options_.prompt_tokens + std::uint64_t{10} * options_.busy_tokens);
  if (ok()) source_port_ = opened_["port"];
}

// A new node, which has nothing and is connected to nobody; then, for a warm link, one prompt that
// is not measured.
void Measurement::OpenAsker(Arm arm, Link link) {
  // Twice the prompts' size: half of host memory at most may be on its way from a peer.
  Open(*asker_, kControlInterval,
       std::uint64_t{2} * (options_.repetitions + 2) * options_.prompt_tokens);
  if (link == Link::kWarm) Ask(arm, kWarmUpSeed);
}

void Measurement::MeasureArm(Arm arm) {
  if (!ok()) return;
  say_(std::string(NameOf(arm)) + ": the source computes the prompts");
  OpenSource(arm);
  ComputePrompts();
  for (const Source source : kSources) {
    if (source == Source::kBusy) BeBusy();
    for (const Link link : kLinks) MeasureCell(arm, source, link);
    if (arm != Arm::kControlThread) continue;
    // What is measured once is measured beside the arm that matters most.
    if (source == Source::kBusy) {
      MeasureThroughput();
      MeasureLock();
    }
    for (const Link link : kLinks) MeasureCell(Arm::kRecompute, source, link);
  }
  Tell(*source_, {{"do", "busy"}, {"tokens", 0}});
}

// Every prompt is the source's first.
void Measurement::ComputePrompts() {
  std::vector<std::uint64_t> seeds{kWarmUpSeed};
  for (const Source source : kSources) {
    for (const Link link : kLinks) {
      for (std::uint32_t i = 0; i < options_.repetitions; ++i) {
        seeds.push_back(SeedOf(source, link, i));
      }
    }
  }
  std::sort(seeds.begin(), seeds.end());
  seeds.erase(std::unique(seeds.begin(), seeds.end()), seeds.end());
  for (const std::uint64_t seed : seeds) {
    const Json answer = Tell(*source_, PromptOrder(seed));
    if (!ok()) return;
    const auto [first, is_new] = answers_.emplace(seed, answer["tokens"]);
    // It computed the same one for another arm.
    if (!is_new && first->second != answer["tokens"]) result_.answers_identical = false;
  }
}

// Nothing begins in step with the source.
void Measurement::Pause(Source source) {
  const double bound = source == Source::kBusy ? step_s_ : 0.02;
  std::this_thread::sleep_for(std::chrono::duration<double>(
      0.01 + std::uniform_real_distribution<double>(0, bound)(random_)));
}

void Measurement::MeasureCell(Arm arm, Source source, Link link) {
  Cell cell{arm, source, link, {}};
  for (std::uint32_t i = 0; i < options_.repetitions && ok(); ++i) {
    if (link == Link::kCold || i == 0) OpenAsker(arm, link);
    if (arm == Arm::kControlThread && link == Link::kWarm) MeasureRaw(source);
    Pause(source);
    cell.repetitions.push_back(Ask(arm, SeedOf(source, link, i)));
  }
  if (!ok()) return;
  say_(std::string(NameOf(arm)) + ", " + NameOf(source) + " source, " + NameOf(link) +
       " link: first token after " + Milliseconds(SpreadOf(TtftsOf(cell))));
  result_.cells.push_back(std::move(cell));
}

Json Measurement::PromptOrder(std::uint64_t seed) const {
  return {{"do", "prompt"},
          {"seed", seed},
          {"tokens", options_.prompt_tokens},
          {"answer_tokens", options_.answer_tokens}};
}

Repetition Measurement::Ask(Arm arm, std::uint64_t seed) {
  Json order = PromptOrder(seed);
  if (arm != Arm::kRecompute) order["peer"] = {{"host", "127.0.0.1"}, {"port", source_port_}};
  const Json answer = Tell(*asker_, order);
  if (!ok()) return {};
  if (answer["tokens"] != answers_[seed] || !answer["bytes_right"].get<bool>()) {
    result_.answers_identical = false;
  }
  Repetition repetition;
  repetition.ttft_s = answer["ttft_s"];
  repetition.fetched_tokens = answer["fetched_tokens"];
  repetition.fetched_bytes = answer["fetched_bytes"];
  repetition.fetch_s = answer["fetch_s"];
  if (!answer["lookup_s"].is_null()) repetition.lookup_s = answer["lookup_s"].get<double>();
  if (arm != Arm::kRecompute && repetition.fetched_tokens + 1 < options_.prompt_tokens) {
    ++result_.not_fetched;
  }
  return repetition;
}

// Until it has done some steps, so that nothing of its beginning is measured.
void Measurement::BeBusy() {
  Tell(*source_, {{"do", "work"}});
  Tell(*source_, {{"do", "busy"}, {"tokens", options_.busy_tokens}});
  std::vector<double> steps;
  const auto deadline = Clock::now() + kPatience;
  while (ok() && steps.size() < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Json work = Tell(*source_, {{"do", "work"}});
    if (ok()) Append(work["step_s"], steps);
    if (Clock::now() > deadline) {
      error_ = Error{ErrorCode::kUnavailable, "the source does not get busy"};
    }
  }
  step_s_ = SpreadOf(steps).median;
}

void Measurement::MeasureRaw(Source source) {
  const bool idle = source == Source::kIdle;
  if (raw_.is_null()) {
    if (!ok()) return;
    const std::uint64_t chunks =
        options_.prompt_tokens / opened_["tokens_per_chunk"].get<std::uint64_t>();
    result_.raw_copy_bytes = chunks * opened_["chunk_bytes"].get<std::uint64_t>();
    raw_ = Tell(*source_, {{"do", "raw_serve"}, {"bytes", result_.raw_copy_bytes}});
    if (!ok()) return;
  }
  const Json pinged = Tell(
      *asker_,
      {{"do", "raw_ping"}, {"port", raw_["ping_port"]}, {"count", kPings}, {"gap_ms", kPingGapMs}});
  if (!ok()) return;
  Append(pinged["s"], idle ? result_.raw_round_trip_s : result_.raw_round_trip_busy_s);
  // The best that two processes of one machine have; of UCX the transport itself would have to be
  // asked.
  result_.raw_copy_plane = options_.data_plane == "auto" ? "shared_memory" : options_.data_plane;
  if (!idle || result_.raw_copy_plane == "ucx") return;
  const Json copied = Tell(*asker_, {{"do", "raw_copy"},
                                     {"plane", result_.raw_copy_plane},
                                     {"pid", raw_["pid"]},
                                     {"descriptor", raw_["descriptor"]},
                                     {"port", raw_["copy_port"]},
                                     {"bytes", result_.raw_copy_bytes},
                                     {"count", kCopies}});
  if (ok()) Append(copied["s"], result_.raw_copy_s);
}

// Tokens a second of the busy source in four windows, so that a machine that gets slower does not
// look like a cost of peers. Each window is measured from the end of a step to that of another.
void Measurement::MeasureThroughput() {
  double seconds[2] = {0, 0}, tokens[2] = {0, 0};
  OpenAsker(Arm::kControlThread, Link::kWarm);
  for (const bool with_peers : {false, true, true, false}) {
    const Json begin = Tell(*source_, {{"do", "work"}});
    if (with_peers) {
      FetchFor(options_.throughput_s);
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.throughput_s));
    }
    const Json end = Tell(*source_, {{"do", "work"}});
    if (!ok()) return;
    Append(end["step_s"], result_.source_step_s);
    seconds[with_peers] += end["last_end_s"].get<double>() - begin["last_end_s"].get<double>();
    tokens[with_peers] += end["tokens"].get<double>();
  }
  if (seconds[0] > 0) result_.tokens_per_s_without_peers = tokens[0] / seconds[0];
  if (seconds[1] > 0) result_.tokens_per_s_with_peers = tokens[1] / seconds[1];
}

// One prompt after the other, each forgotten before it is fetched again.
void Measurement::FetchFor(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (std::uint32_t i = 0; ok() && Clock::now() < until; ++i) {
    if (i % options_.repetitions == 0) Tell(*asker_, {{"do", "forget"}});
    Ask(Arm::kControlThread, SeedOf(Source::kBusy, Link::kWarm, i % options_.repetitions));
    ++result_.fetches_meanwhile;
    std::this_thread::sleep_for(std::chrono::duration<double>(step_s_ / 4));
  }
}

// While a peer asks as fast as it is answered.
void Measurement::MeasureLock() {
  OpenAsker(Arm::kControlThread, Link::kWarm);
  const Json flooded = Tell(*asker_, {{"do", "flood"}, {"port", source_port_}, {"ms", kFloodMs}});
  if (ok()) result_.flood_lookups = flooded["answered"];
  const Json stats = Tell(*source_, {{"do", "stats"}});
  if (!ok()) return;
  result_.priority = stats["priority"];
  const auto tail = [&](const char* name) {
    return Tail{stats[name]["p99_s"].get<double>(), stats[name]["max_s"].get<double>()};
  };
  result_.engine_wait = tail("engine_wait");
  result_.control_wait = tail("control_wait");
}

}  // namespace

LockFaults (*count_lock_faults)() = nullptr;

const char* NameOf(Arm arm) {
  switch (arm) {
    case Arm::kControlThread:
      return "control_thread";
    case Arm::kPerStep:
      return "per_step";
    case Arm::kRecompute:
      return "recompute";
  }
  return "?";
}

const char* NameOf(Source source) { return source == Source::kIdle ? "idle" : "busy"; }
const char* NameOf(Link link) { return link == Link::kCold ? "cold" : "warm"; }

const Cell* MatrixResult::Find(Arm arm, Source source, Link link) const {
  const auto cell = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) {
    return c.arm == arm && c.source == source && c.link == link;
  });
  return cell == cells.end() ? nullptr : &*cell;
}

Result<MatrixResult> MeasureMatrix(const MatrixOptions& options,
                                   const std::function<void(const std::string&)>& say) {
  return Measurement(options, say).Run();
}

}  // namespace terrace::matrix
