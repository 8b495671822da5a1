#include "matrix_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "matrix.h"
#include "node_process.h"
#include "report.h"
#include "synthetic_engine.h"

namespace terrace::matrix {
namespace {

namespace fs = std::filesystem;

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

int Fail(int status, const std::string& message) {
  std::fprintf(stderr, "terrace matrix: %s\n", message.c_str());
  return status;
}

// Installed beside this program, or where it was built.
std::string FindLlamaProgram() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& candidate :
       {here / "terrace-llama", here.parent_path() / "llama" / "terrace-llama"}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return "";
}

// So that each node leaves its control thread a core: one each on two cores.
unsigned EngineThreads() {
  const unsigned cores = std::max(2U, std::thread::hardware_concurrency());
  return std::max(1U, cores / 2 - (cores > 3 ? 1 : 0));
}

// KV cells for the prompt that is measured, two that keep the source busy, and their answers.
std::uint32_t ContextOf(const MatrixOptions& options) {
  return 2 * options.busy_tokens + options.prompt_tokens + 4 * options.answer_tokens + 64;
}

// kUsage, and why, if the command cannot be done.
int Complete(const MatrixCommand& command, MatrixOptions& options) {
  const bool real = command.engine == "llama";
  options.engine = command.engine;
  options.data_plane = command.data_plane;
  options.control_priority = command.control_priority;
  options.huge_pages = command.huge_pages;
  // A synthetic prompt takes a fraction of a second: enough of them for a steady median.
  options.repetitions = real ? 5 : 11;
  if (command.repetitions > 0) options.repetitions = command.repetitions;
  options.share_prompts = command.quick;
  options.asks = command.quick ? 3 : 1;
  options.prompt_tokens = real && command.quick ? 257 : 1025;
  if (command.prompt_tokens > 0) options.prompt_tokens = command.prompt_tokens;
  options.busy_tokens = 2 * (options.prompt_tokens - 1);
  options.program = command.node_program;
  if (!real) {
    if (options.program.empty()) options.program = "/proc/self/exe";
    options.arguments = {"matrix-node"};
    options.throughput_s = command.quick ? 0.5 : 2;
    if (command.window_s > 0) options.throughput_s = command.window_s;
    return kOk;
  }
  if (command.model_path.empty()) return Fail(kUsage, "--engine llama needs --model FILE");
  if (options.program.empty()) options.program = FindLlamaProgram();
  if (options.program.empty()) {
    return Fail(kUsage,
                "there is no terrace-llama beside this program: build it (scripts/get_llama), or "
                "name it with --node-program");
  }
  options.arguments = {"matrix-node",
                       "--model",
                       command.model_path,
                       "--threads",
                       std::to_string(EngineThreads()),
                       "--context",
                       std::to_string(ContextOf(options))};
  options.throughput_s = command.quick ? 2 : 15;
  if (command.window_s > 0) options.throughput_s = command.window_s;
  return kOk;
}

bool Write(const std::string& path, const std::string& text) {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "terrace matrix: could not write %s\n", path.c_str());
  return static_cast<bool>(file);
}

int RunMatrix(const MatrixCommand& command) {
  std::signal(SIGPIPE, SIG_IGN);  // A process that has died is an error of a write.
  MatrixOptions options;
  if (const int status = Complete(command, options); status != kOk) return status;
  // Nobody waits for minutes to hear of a typing error.
  if (!Write(command.json_path, "") || !Write(command.picture_path, "")) return kUsage;
  const auto began = std::chrono::steady_clock::now();
  auto result = MeasureMatrix(options, [&](const std::string& line) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    std::fprintf(stderr, "[%5.1f s] %s\n", passed.count(), line.c_str());
  });
  if (!result.ok()) return Fail(kFailed, result.error().message);
  std::fputs(ToText(options, result.value()).c_str(), stdout);
  const bool written = Write(command.json_path, ToJson(options, result.value())) &&
                       Write(command.picture_path, ToPicture(options, result.value()));
  const bool right = result.value().answers_identical && result.value().not_fetched == 0;
  return written && right ? kOk : kFailed;
}

int RunSyntheticNode() {
  SyntheticEngine engine({});
  return RunNodeProcess(engine);
}

}  // namespace

MatrixCommands::MatrixCommands(CLI::App& app)
    : matrix_(app.add_subcommand(
          "matrix",
          "Measure what a prompt costs that a busy neighbour has: two nodes, three arms")),
      node_(app.add_subcommand("matrix-node", "")->group("")) {
  matrix_
      ->add_option("--engine", command_.engine, "What computes: llama (a real model) or synthetic")
      ->check(CLI::IsMember({"llama", "synthetic"}))
      ->capture_default_str();
  matrix_->add_option("--model", command_.model_path, "GGUF file, for llama");
  matrix_->add_flag("--quick", command_.quick, "Shorter: within three minutes with a real model");
  matrix_->add_option("--json", command_.json_path, "Write the numbers here");
  matrix_->add_option("--picture", command_.picture_path, "Write an SVG here");
  matrix_
      ->add_option("--repetitions", command_.repetitions,
                   "Prompts in each cell; else 5 of a real model, 11 synthetic ones")
      ->check(CLI::Range(1U, 1000U));
  matrix_
      ->add_option("--prompt-tokens", command_.prompt_tokens,
                   "Length of each: chunks of 64, and one more")
      ->check(CLI::Range(65U, 1U << 16));
  matrix_
      ->add_option("--control-priority", command_.control_priority,
                   "What the nodes' control threads ask the system for")
      ->check(CLI::IsMember({"normal", "high", "realtime"}))
      ->capture_default_str();
  matrix_
      ->add_option("--huge-pages", command_.huge_pages,
                   "The pages of both nodes' host memory; explicit ones are to be reserved before")
      ->check(CLI::IsMember({"off", "transparent", "explicit"}))
      ->capture_default_str();
  matrix_->add_option("--data-plane", command_.data_plane, "How chunks travel")
      ->check(CLI::IsMember({"auto", "shared_memory", "ucx", "tcp"}))
      ->capture_default_str();
  matrix_
      ->add_option("--window", command_.window_s,
                   "Seconds of each of the four windows in which the source's throughput is taken")
      ->check(CLI::Range(0.1, 3600.0));
  matrix_->add_option("--node-program", command_.node_program, "Runs a node; else it is found");
  matrix_->footer(
      "Examples:\n"
      "  terrace matrix                                    without a model, in two minutes\n"
      "  terrace matrix --engine llama --model m.gguf --quick --picture matrix.svg");
}

bool MatrixCommands::parsed() const { return matrix_->parsed() || node_->parsed(); }
int MatrixCommands::Run() const {
  return node_->parsed() ? RunSyntheticNode() : RunMatrix(command_);
}

}  // namespace terrace::matrix
