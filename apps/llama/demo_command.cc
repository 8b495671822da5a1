#include "demo_command.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "demo_prompts.h"
#include "run_command.h"
#include "terrace/result.h"

extern char** environ;

namespace terrace::llama {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::size_t kLongPrompt =
    1500;  // The ratios are over prompts of at least as many tokens.
constexpr std::uint64_t kHostBytes = 768ULL << 20;  // All prompts of the demo, with room to spare.
constexpr std::size_t kTokensPerChunk = 64;

volatile std::sig_atomic_t interrupted = 0;
void OnInterrupt(int /*signal*/) { interrupted = 1; }

Error Failed(std::string what) { return Error{ErrorCode::kUnavailable, std::move(what)}; }

// A folder that goes away with this object.
class ScratchDir {
 public:
  explicit ScratchDir(fs::path path) : path_(std::move(path)) {}
  ~ScratchDir() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

struct Demo {
  const DemoCommand& command;
  fs::path dir;
  fs::path config;
  std::map<std::string, Json> answers;             // Of all processes, by id.
  std::map<std::string, std::string> stored_hash;  // By chunk key, as first stored.
};

Result<void> WriteLines(const fs::path& path, const std::vector<Json>& lines) {
  std::ofstream file(path);
  for (const Json& line : lines) file << line.dump() << '\n';
  file.close();
  if (!file) return Failed("write " + path.string() + ": " + std::strerror(errno));
  return {};
}

Result<Json> ReadJson(const fs::path& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Failed("read " + path.string() + ": not valid JSON");
  return json;
}

// Runs this program again; a process of its own has nothing in memory.
Result<int> RunProcess(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  // The model's threads wait for one another spinning, by default for milliseconds: when something
  // else needs a core, Terrace's I/O or another program, they keep it from the very thread that
  // they wait for. A short spin is as fast on an idle machine. A node's own log, but for warnings,
  // does not belong between the demo's lines.
  setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  setenv("TERRACE_LOG_LEVEL", "warning", /*overwrite=*/0);
  const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ);
  if (error != 0)
    return Failed(std::string("start another terrace-llama: ") + std::strerror(error));
  int status = 0;
  pid_t ended = 0;
  // A look now and then instead of one long wait: a signal that comes just before waitpid() would
  // be slept through. A terminal signals both of us; only if the child has not gone soon after is
  // it told by us, and once, since it takes a second signal as an order to leave without tidying
  // up.
  std::optional<Clock::time_point> tell_child;
  bool told = false;
  while ((ended = waitpid(pid, &status, WNOHANG)) == 0) {
    if (interrupted != 0 && !tell_child) tell_child = Clock::now() + std::chrono::milliseconds(300);
    if (tell_child && !told && Clock::now() >= *tell_child) {
      kill(pid, SIGINT);
      told = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (ended < 0) return Failed(std::string("wait for terrace-llama: ") + std::strerror(errno));
  if (interrupted != 0) return Error{ErrorCode::kCancelled, "stopped"};
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Serves `lines` in a new process with the demo's cache, one prompt at a time, and remembers the
// answers.
Result<void> ServeInNewProcess(Demo& demo, const std::string& name, const std::vector<Json>& lines,
                               const std::string& label) {
  const fs::path prompts = demo.dir / (name + ".jsonl");
  const fs::path out = demo.dir / (name + ".json");
  if (auto written = WriteLines(prompts, lines); !written.ok()) return written;
  auto code = RunProcess({"terrace-llama", "run", "--model", demo.command.model_path, "--config",
                          demo.config.string(), "--prompts", prompts.string(), "--json",
                          out.string(), "--parallel", "1", "--ignore-eos", "--verify", "--settle",
                          "--no-answers", "--label", label});
  if (!code.ok()) return std::move(code).error();
  if (code.value() != 0) {  // It has said why.
    return Error{
        code.value() == kExitBadInput ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
        fmt::format("{}: terrace-llama run ended with {}", name, code.value())};
  }
  auto json = ReadJson(out);
  if (!json.ok()) return std::move(json).error();
  for (const Json& answer : json.value()["requests"]) {
    demo.answers[answer["id"]] = answer;
    for (const Json& chunk : answer["stored"]) demo.stored_hash.emplace(chunk[0], chunk[1]);
  }
  return {};
}

Result<void> WriteConfig(const Demo& demo, const fs::path& cache) {
  // Every processor belongs to the model here: pages are taken at their first use.
  const Json config = {{"cpu_bytes_to_use", kHostBytes},
                       {"prefault_threads", 0},
                       {"tokens_per_chunk", kTokensPerChunk},
                       {"offload_prompt_only", false},
                       {"secondary_tiers", {{{"type", "file"}, {"root_dir", cache.string()}}}}};
  return WriteLines(demo.config, {config});
}

// Caches of demos that were killed.
void RemoveStaleCaches(const fs::path& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    int pid = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "cache-%d", &pid) == 1 && kill(pid, 0) != 0 && errno == ESRCH) {
      fs::remove_all(entry.path(), error);
    }
  }
}

// The same prompts after a restart, each in a process of its own, so that host memory is empty: as
// tokens, since a conversation's text is known only once it has been answered.
Result<void> ServeFromDisk(Demo& demo, const std::vector<MeasuredPrompt>& measured) {
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const MeasuredPrompt& prompt = measured[i];
    const Json line = {{"id", prompt.name + "/disk"},
                       {"tokens", demo.answers[prompt.host_id]["prompt_tokens"]}};
    auto served =
        ServeInNewProcess(demo, "disk-" + prompt.name, {line},
                          fmt::format("after restart {} of {}: ", i + 1, measured.size()));
    if (!served.ok()) return served;
  }
  return {};
}

// True if every restored chunk has the bytes that were stored under its key.
bool BytesIdentical(const Demo& demo, const Json& answer) {
  const std::size_t restored_tokens =
      answer["tokens_host"].get<std::size_t>() + answer["tokens_disk"].get<std::size_t>();
  if (answer["restored"].size() * kTokensPerChunk != restored_tokens) return false;
  return std::all_of(answer["restored"].begin(), answer["restored"].end(), [&](const Json& chunk) {
    const auto stored = demo.stored_hash.find(chunk[0]);
    return stored != demo.stored_hash.end() && stored->second == chunk[1];
  });
}

Json MakeRow(const Demo& demo, const MeasuredPrompt& prompt, const char* arm) {
  const Json& answer = demo.answers.at(prompt.name + "/" + arm);
  // A recomputed prompt is what the others are held against; it restores nothing.
  const bool is_reference = std::string_view(arm) == "recompute";
  const Json& reference = is_reference ? answer : demo.answers.at(prompt.reference_id);
  return {{"prompt", prompt.name},
          {"arm", arm},
          {"tokens", answer["tokens"]},
          {"tokens_host", answer["tokens_host"]},
          {"tokens_disk", answer["tokens_disk"]},
          {"tokens_computed", answer["tokens_computed"]},
          {"ttft_s", answer["ttft_s"]},
          {"bytes_loaded", answer["bytes_loaded"]},
          {"answer_identical", answer["answer_tokens"].size() >= 32 &&
                                   answer["answer_tokens"] == reference["answer_tokens"] &&
                                   answer["prompt_tokens"] == reference["prompt_tokens"]},
          {"bytes_identical", BytesIdentical(demo, answer)}};
}

std::optional<double> Median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

double BestTtft(const Demo& demo, const std::vector<std::string>& ids) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::string& id : ids)
    best = std::min(best, demo.answers.at(id)["ttft_s"].get<double>());
  return best;
}

Json Summarise(const Demo& demo, const DemoPrompts& prompts) {
  auto ttft = [&](const std::string& id) { return demo.answers.at(id)["ttft_s"].get<double>(); };
  std::vector<double> host;
  std::vector<double> disk;
  for (const MeasuredPrompt& prompt : prompts.measured) {
    if (demo.answers.at(prompt.host_id)["tokens"].get<std::size_t>() < kLongPrompt) continue;
    host.push_back(ttft(prompt.host_id) / ttft(prompt.recompute_id));
    disk.push_back(ttft(prompt.name + "/disk") / ttft(prompt.recompute_id));
  }
  std::vector<double> unshared;
  for (const UnsharedPrompt& prompt : prompts.unshared) {
    if (demo.answers.at(prompt.plain_ids[0])["tokens"].get<std::size_t>() < kLongPrompt) continue;
    unshared.push_back(BestTtft(demo, prompt.terrace_ids) / BestTtft(demo, prompt.plain_ids));
  }
  return {{"host_over_recompute", OrNull(Median(host))},
          {"disk_over_recompute", OrNull(Median(disk))},
          {"unshared_over_plain", OrNull(Median(unshared))}};
}

void PrintTable(const Json& rows) {
  fmt::print("\n{:<12} {:<10} {:>7} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}   {}\n", "prompt", "arm",
             "tokens", "from host", "from disk", "computed", "TTFT s", "tokens/s", "MB moved",
             "answer");
  std::string before;
  for (const Json& row : rows) {
    const std::string name = row["prompt"];
    if (!before.empty() && name != before) fmt::print("\n");
    before = name;
    const bool same = row["answer_identical"].get<bool>() && row["bytes_identical"].get<bool>();
    const double ttft = row["ttft_s"];
    const std::string arm = row["arm"];
    fmt::print("{:<12} {:<10} {:>7} {:>10} {:>10} {:>9} {:>9.3f} {:>9.0f} {:>9.1f}   answer: {}\n",
               name, arm, row["tokens"].get<int>(), row["tokens_host"].get<int>(),
               row["tokens_disk"].get<int>(), row["tokens_computed"].get<int>(), ttft,
               row["tokens"].get<int>() / ttft, row["bytes_loaded"].get<double>() / 1e6,
               arm == "recompute" ? "reference"
               : same             ? "identical"
                                  : "NO, it differs");
  }
}

void PrintSummary(const Json& rows, const Json& unshared, const Json& summary) {
  fmt::print("\n{:<14} {:>7} {:>22} {:>20}   (best of {} in turn)\n", "nothing shared", "tokens",
             "TTFT without Terrace s", "TTFT with Terrace s",
             unshared[0]["repetitions"].get<int>());
  for (const Json& row : unshared) {
    fmt::print("{:<14} {:>7} {:>22.3f} {:>20.3f}\n", row["prompt"].get<std::string>(),
               row["tokens"].get<int>(), row["plain_ttft_s"].get<double>(),
               row["terrace_ttft_s"].get<double>());
  }
  double recompute = 0;
  double host = 0;
  double disk = 0;
  for (const Json& row : rows) {
    const double ttft = row["ttft_s"];
    const std::string arm = row["arm"];
    (arm == "recompute" ? recompute : arm == "host" ? host : disk) += ttft;
  }
  auto fraction = [&](const char* name) {
    const Json& value = summary[name];
    return value.is_null() ? std::string("?") : fmt::format("1/{:.0f}", 1 / value.get<double>());
  };
  fmt::print(
      "\nSaved: waiting for first tokens took {:.1f} s recomputed, {:.1f} s from host memory, "
      "{:.1f} s from disk after "
      "a restart\n       (median over prompts of {} tokens or more: {} from host memory, {} from "
      "disk;\n       a prompt that "
      "shares nothing takes {:.2f} of what it takes without Terrace).\n",
      recompute, host, disk, kLongPrompt, fraction("host_over_recompute"),
      fraction("disk_over_recompute"),
      summary["unshared_over_plain"].is_null() ? 0.0
                                               : summary["unshared_over_plain"].get<double>());
}

Result<void> RunAll(Demo& demo) {
  auto prompts = MakeDemoPrompts(demo.command.text_dir, demo.command.quick);
  if (!prompts.ok()) return std::move(prompts).error();
  const std::size_t restarts = prompts.value().measured.size();
  fmt::print(stderr,
             "Serving {} prompts with the cache in host memory and on disk, then {} again after "
             "restarts.\n"
             "Each line below is one prompt: what is done, how far, how long.\n",
             prompts.value().lines.size(), restarts);
  auto served = ServeInNewProcess(demo, "first", prompts.value().lines, "");
  if (!served.ok()) return served;
  served = ServeFromDisk(demo, prompts.value().measured);
  if (!served.ok()) return served;

  Json result = {{"rows", Json::array()}, {"summary", Summarise(demo, prompts.value())}};
  for (const MeasuredPrompt& prompt : prompts.value().measured) {
    for (const char* arm : {"recompute", "host", "disk"}) {
      result["rows"].push_back(MakeRow(demo, prompt, arm));
    }
  }
  for (const UnsharedPrompt& prompt : prompts.value().unshared) {
    result["unshared"].push_back({{"prompt", prompt.name},
                                  {"tokens", demo.answers.at(prompt.plain_ids[0])["tokens"]},
                                  {"plain_ttft_s", BestTtft(demo, prompt.plain_ids)},
                                  {"terrace_ttft_s", BestTtft(demo, prompt.terrace_ids)},
                                  {"repetitions", prompt.plain_ids.size()}});
  }
  PrintTable(result["rows"]);
  fmt::print(
      "\nAn answer is identical if all its tokens are those of the reference, and every restored "
      "chunk has the bytes that were "
      "stored.\nThe reference is the recomputed run with the same cuts; for chat-*, whose cache "
      "holds generated tokens, an engine "
      "that kept its own.\n");
  PrintSummary(result["rows"], result["unshared"], result["summary"]);
  if (!demo.command.json_path.empty()) {
    if (auto written = WriteLines(demo.command.json_path, {result}); !written.ok()) return written;
  }
  const bool all_identical =
      std::all_of(result["rows"].begin(), result["rows"].end(), [](const Json& row) {
        return row["answer_identical"].get<bool>() && row["bytes_identical"].get<bool>();
      });
  if (!all_identical) return Failed("AN ANSWER DIFFERS from its reference: see the table");
  return {};
}

}  // namespace

int RunDemo(const DemoCommand& command) {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);

  std::error_code error;
  fs::create_directories(command.work_dir, error);
  if (error) {
    fmt::print(stderr, "terrace-llama: make {}: {}\n", command.work_dir, error.message());
    return kExitBadInput;
  }
  if (auto writable = CheckCanWrite(command.json_path); !writable.ok()) {
    return Fail(writable.error());
  }
  RemoveStaleCaches(command.work_dir);
  const ScratchDir cache(fs::absolute(command.work_dir) / fmt::format("cache-{}", getpid()));
  Demo demo{.command = command,
            .dir = command.work_dir,
            .config = fs::path(command.work_dir) / "terrace.json",
            .answers = {},
            .stored_hash = {}};
  auto done = WriteConfig(demo, cache.path());
  if (done.ok()) done = RunAll(demo);
  return done.ok() ? kExitOk : Fail(done.error());
}

}  // namespace terrace::llama
