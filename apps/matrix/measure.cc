#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <utility>

#include "child.h"
#include "matrix.h"
#include "numbers.h"

namespace terrace::matrix {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kWarmUpSeed = 900'000;
constexpr std::uint64_t kAtWorkSeed = 900'001;
constexpr double kControlInterval = 0.001;
constexpr int kFloodMs = 1'000;
// Before each repetition. As far apart as what is compared with them: memory and processors that
// nobody used for a while answer slower.
constexpr int kPings = 5;
constexpr int kPingGapMs = 50;
constexpr int kCopies = 3;  // Before each repetition.
// A model may have to be loaded, or a prompt be computed on a machine that does much else.
constexpr std::chrono::milliseconds kPatience{300'000};

void Append(const Json& values, std::vector<double>& to) {
  for (const Json& value : values) to.push_back(value.get<double>());
}

// One repetition of the cells of an arm that have this source and this link.
struct Turn {
  Source source;
  Link link;
  std::uint32_t repetition;
};

// Where the source can rest in the middle of its work, idle and busy take turns on the same two
// nodes: which memory a node gets, and how a machine changes with time, can weigh more than what is
// measured. A source that is served per step can't: it would not answer.
std::vector<Turn> TurnsOf(Arm arm, std::uint32_t repetitions) {
  std::vector<Turn> turns;
  for (const Link link : kLinks) {
    for (std::uint32_t i = 0; i < repetitions; ++i) {
      // None is always the second, which finds what the first left in the processor's caches.
      const bool swaps = i % 2 == 1;
      turns.push_back({swaps ? Source::kBusy : Source::kIdle, link, i});
      turns.push_back({swaps ? Source::kIdle : Source::kBusy, link, i});
    }
  }
  if (arm == Arm::kPerStep) {
    std::stable_sort(turns.begin(), turns.end(),
                     [](const Turn& a, const Turn& b) { return a.source < b.source; });
  }
  return turns;
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
  void TakeTurn(Arm arm, const Turn& turn);
  void Measure(Arm arm, const Turn& turn);
  Repetition MeasureOnce(Arm arm, const Turn& turn);
  Cell& CellOf(Arm arm, const Turn& turn);
  void SetSource(Source source);
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
  void Pause(const Turn& turn);
  std::uint64_t SeedOf(Source source, Link link, std::uint32_t repetition) const;

  const MatrixOptions& options_;
  const std::function<void(const std::string&)>& say_;
  std::optional<Error> error_;
  std::unique_ptr<Child> source_;
  std::unique_ptr<Child> asker_;
  Json opened_;  // What was said of the node that was opened last.
  std::uint16_t source_port_ = 0;
  std::map<std::uint64_t, Json> answers_;  // The source's, by the prompt's seed.
  // Of the source that is open.
  bool has_work_ = false;
  Source source_is_ = Source::kIdle;
  double step_s_ = 0;              // When busy, about; of the last one that was.
  std::optional<Link> asker_has_;  // None before this source's first asker.
  Json raw_;                       // Where the raw transports are served.
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
  // In one order, whatever was measured when.
  std::sort(result_.cells.begin(), result_.cells.end(), [](const Cell& a, const Cell& b) {
    return std::tie(a.arm, a.source, a.link) < std::tie(b.arm, b.source, b.link);
  });
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
                         {"huge_pages", options_.huge_pages},
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
  has_work_ = false;
  source_is_ = Source::kIdle;
  asker_has_.reset();
}

// A new node, which has nothing and is connected to nobody; then, for a warm link, one prompt that
// is not measured.
void Measurement::OpenAsker(Arm arm, Link link) {
  // Twice the prompts' size: half of host memory at most may be on its way from a peer.
  Open(*asker_, kControlInterval,
       std::uint64_t{2} * (options_.repetitions + 2) * options_.prompt_tokens);
  asker_has_ = link;
  if (link == Link::kWarm) Ask(arm, kWarmUpSeed);
}

void Measurement::MeasureArm(Arm arm) {
  if (!ok()) return;
  say_(std::string(NameOf(arm)) + ": the source computes the prompts");
  OpenSource(arm);
  ComputePrompts();
  // At once, so that the pauses before it rests are as long as those before it works.
  if (arm == Arm::kControlThread) SetSource(Source::kBusy);
  for (const Turn& turn : TurnsOf(arm, options_.repetitions)) TakeTurn(arm, turn);
  if (arm != Arm::kControlThread) return;
  // What is measured once is measured beside the arm that matters most.
  SetSource(Source::kBusy);
  MeasureThroughput();
  MeasureLock();
}

void Measurement::TakeTurn(Arm arm, const Turn& turn) {
  if (!ok()) return;
  SetSource(turn.source);
  if (turn.link == Link::kCold || asker_has_ != turn.link) OpenAsker(arm, turn.link);
  if (arm == Arm::kControlThread && turn.link == Link::kWarm) MeasureRaw(turn.source);
  Pause(turn);
  Measure(arm, turn);
  if (arm != Arm::kControlThread) return;
  if (turn.link == Link::kWarm) Measure(Arm::kOwnMemory, turn);  // What was just fetched.
  if (turn.link == Link::kCold) OpenAsker(Arm::kRecompute, turn.link);
  Measure(Arm::kRecompute, turn);
}

void Measurement::Measure(Arm arm, const Turn& turn) {
  const bool is_cheap =
      turn.link == Link::kWarm && (arm == Arm::kControlThread || arm == Arm::kOwnMemory);
  const std::uint32_t asks = is_cheap ? options_.asks : 1;
  for (std::uint32_t i = 0; i < asks; ++i) {
    const Repetition repetition = MeasureOnce(arm, turn);
    if (!ok()) return;
    CellOf(arm, turn).repetitions.push_back(repetition);
  }
  const Cell& cell = CellOf(arm, turn);
  if (cell.repetitions.size() < options_.repetitions * asks) return;
  say_(std::string(NameOf(arm)) + ", " + NameOf(turn.source) + " source, " + NameOf(turn.link) +
       " link: first token after " + Milliseconds(SpreadOf(TtftsOf(cell))));
}

Repetition Measurement::MeasureOnce(Arm arm, const Turn& turn) {
  if (arm != Arm::kOwnMemory) Tell(*asker_, {{"do", "forget"}});
  // Some tokens of its own, as of an engine that is at work: a model that nobody used for a second
  // is slower, on some machines by half.
  Tell(*asker_, {{"do", "prompt"}, {"seed", kAtWorkSeed}, {"tokens", 8}, {"may_load", false}});
  return Ask(arm, SeedOf(turn.source, turn.link, turn.repetition));
}

Cell& Measurement::CellOf(Arm arm, const Turn& turn) {
  for (Cell& cell : result_.cells) {
    if (cell.arm == arm && cell.source == turn.source && cell.link == turn.link) return cell;
  }
  return result_.cells.emplace_back(Cell{arm, turn.source, turn.link, {}});
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

// Nothing begins in step with the source: repetitions begin evenly spread over its step, since what
// it answers between two steps alone waits for the rest of one. As long before an idle one.
void Measurement::Pause(const Turn& turn) {
  const double part = (turn.repetition + 0.5) / options_.repetitions;
  std::this_thread::sleep_for(std::chrono::duration<double>(0.01 + part * step_s_));
}

Json Measurement::PromptOrder(std::uint64_t seed) const {
  return {{"do", "prompt"},
          {"seed", seed},
          {"tokens", options_.prompt_tokens},
          {"answer_tokens", options_.answer_tokens}};
}

Repetition Measurement::Ask(Arm arm, std::uint64_t seed) {
  Json order = PromptOrder(seed);
  if (Fetches(arm)) order["peer"] = {{"host", "127.0.0.1"}, {"port", source_port_}};
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
  if (arm != Arm::kRecompute && answer["computed_tokens"] > 1) ++result_.not_fetched;
  return repetition;
}

void Measurement::SetSource(Source source) {
  if (source == source_is_) return;
  source_is_ = source;
  if (source == Source::kIdle) {
    Tell(*source_, {{"do", "rest"}});
  } else if (has_work_) {
    Tell(*source_, {{"do", "go_on"}});
  } else {
    BeBusy();
  }
}

// Until it has done some steps, so that nothing of its beginning is measured.
void Measurement::BeBusy() {
  has_work_ = true;
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
    raw_ = Tell(*source_, {{"do", "raw_serve"},
                           {"bytes", result_.raw_copy_bytes},
                           {"huge_pages", options_.huge_pages}});
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
                                     {"count", kCopies},
                                     {"huge_pages", options_.huge_pages}});
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
    case Arm::kOwnMemory:
      return "own_memory";
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
