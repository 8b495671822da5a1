// The busy-source matrix: what a prompt costs that another node has, by how that node is served and
// by what it is doing.
//
// Two processes, each a node with an engine: the source, which got each prompt first, and the
// asker, which is measured. Three arms: the source's control thread serves (control_thread), the
// source serves once a step of its engine (per_step), the asker computes the prompt (recompute). In
// each the source is idle, or prefills other prompts all the time (busy); and the link between the
// two is open already (warm), or the asker's node was just made (cold). A fourth (own_memory) asks
// nobody: the asker has the prompt in its own host memory. What a busy source costs it there is
// what the two share of a machine, not what is asked for.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "terrace/result.h"

namespace terrace::matrix {

enum class Arm : std::uint8_t { kControlThread, kPerStep, kRecompute, kOwnMemory };
enum class Source : std::uint8_t { kIdle, kBusy };
enum class Link : std::uint8_t { kCold, kWarm };
// Over both links; kOwnMemory is over none, and among the warm ones.
inline constexpr std::array kArms{Arm::kControlThread, Arm::kPerStep, Arm::kRecompute};
inline constexpr bool Fetches(Arm arm) {
  return arm == Arm::kControlThread || arm == Arm::kPerStep;
}
inline constexpr std::array kSources{Source::kIdle, Source::kBusy};
inline constexpr std::array kLinks{Link::kCold, Link::kWarm};

const char* NameOf(Arm arm);
const char* NameOf(Source source);
const char* NameOf(Link link);

struct MatrixOptions {
  std::string engine;  // For people.
  std::string program;
  std::vector<std::string> arguments;  // That make it one of the two processes.
  std::string data_plane = "auto";
  std::string control_priority = "high";  // Of the nodes' control threads: ControlThreadConfig.
  std::string huge_pages = "off";         // Of both nodes' host memory: NodeConfig.
  std::uint32_t repetitions = 5;
  std::uint32_t prompt_tokens = 1025;  // Whole chunks and one more, which is always computed.
  std::uint32_t busy_tokens = 2048;    // Of each prompt that keeps the source busy.
  std::uint32_t answer_tokens = 8;
  // The same prompts in each cell, the asker having forgotten them, so that the source computes
  // fewer.
  bool share_prompts = false;
  // What costs little, over a warm link from a source with a control thread or from the asker's own
  // memory, is asked for so often in each repetition.
  std::uint32_t asks = 1;
  double throughput_s = 2;  // Of each of four windows.
};

struct Repetition {
  double ttft_s = 0;
  std::optional<double> lookup_s;  // Of a request that asked.
  double fetch_s = 0;
  std::uint64_t fetched_bytes = 0;
  std::uint32_t fetched_tokens = 0;
};

struct Cell {
  Arm arm;
  Source source;
  Link link;
  std::vector<Repetition> repetitions;
};

struct Tail {
  double p99_s = 0;
  double max_s = 0;
};

// What a lock that is broken on purpose lets happen; see tests/matrix.
struct LockFaults {
  std::uint64_t overlaps = 0;   // One came in while the other was inside.
  std::uint64_t overtakes = 0;  // The control lane came in twice while the engine waited.
};

struct MatrixResult {
  std::vector<Cell> cells;
  bool answers_identical = true;
  std::uint32_t not_fetched = 0;      // Repetitions that should have loaded, and computed.
  std::vector<double> source_step_s;  // Of the busy source with a control thread.
  std::vector<double> raw_round_trip_s, raw_round_trip_busy_s;
  std::string raw_copy_plane;
  std::vector<double> raw_copy_s;  // Of as many bytes as a prompt has.
  std::uint64_t raw_copy_bytes = 0;
  double tokens_per_s_without_peers = 0, tokens_per_s_with_peers = 0;
  std::uint32_t fetches_meanwhile = 0;
  std::string priority;  // Of the source's control thread.
  // For the source's lock, with a control thread: in all that was measured, and while so many
  // look-ups came in a second.
  Tail engine_wait, control_wait;
  std::uint64_t flood_lookups = 0;
  std::optional<LockFaults> lock_faults;  // Of builds with a broken lock.

  const Cell* Find(Arm arm, Source source, Link link) const;
};

// Set by such builds: in all processes of this measurement. Null in others.
extern LockFaults (*count_lock_faults)();

// Half a minute to some minutes. `say` is told what is under way, a line at a time. An error says
// which process failed at what.
Result<MatrixResult> MeasureMatrix(const MatrixOptions& options,
                                   const std::function<void(const std::string&)>& say);

}  // namespace terrace::matrix
