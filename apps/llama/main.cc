// The llama.cpp engine whose KV cache is kept by Terrace.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "demo_command.h"
#include "matrix_node.h"
#include "run_command.h"
#include "terrace/version.h"

namespace {

// A program that was started with a closed standard stream must not open something else in its
// place and print into it.
void FillStandardStreams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace terrace::llama;
  FillStandardStreams();
  CLI::App app{"terrace-llama: llama.cpp with its KV cache in host memory and on disk"};
  app.require_subcommand(1);
  app.set_version_flag("--version", terrace::Version());
  app.footer(
      "Examples:\n"
      "  terrace-llama run --model m.gguf --config terrace.json --prompts p.jsonl --json out.json\n"
      "  terrace-llama demo --model m.gguf --work-dir /tmp/terrace-demo --quick\n"
      "TERRACE_LOG_LEVEL=debug|info|warning|error|off sets Terrace's log, TERRACE_LLAMA_LOG=1 "
      "shows llama.cpp's.");

  RunCommand run;
  CLI::App* run_app = app.add_subcommand("run", "Serve a file of prompts and say what it cost");
  run_app->add_option("--model", run.model_path, "GGUF file")->required();
  run_app
      ->add_option("--config", run.config_path, "Node configuration (see `terrace config schema`)")
      ->required();
  run_app
      ->add_option("--prompts", run.prompts_path,
                   "JSON Lines, a prompt a line; - for standard input")
      ->required();
  run_app->add_option("--json", run.json_path, "Write answers, sources and times here");
  run_app->add_option("--context", run.context_tokens, "KV cells, in tokens, over all sequences")
      ->check(CLI::Range(64U, 1U << 24))
      ->capture_default_str();
  run_app->add_option("--parallel", run.parallel, "Prompts in the engine at once")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  run_app->add_option("--step-tokens", run.step_tokens, "Most tokens computed in one step")
      ->check(CLI::Range(1U, 1U << 16))
      ->capture_default_str();
  run_app->add_option("--threads", run.threads, "Threads of the model; 0: one for each core")
      ->check(CLI::Range(0U, 256U))
      ->capture_default_str();
  run_app->add_option("--max-tokens", run.max_tokens, "Answer length of prompts that don't say")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str();
  run_app->add_flag("--ignore-eos", run.ignore_end_of_text, "Answer with max-tokens tokens always");
  run_app->add_flag(
      "--verify", run.verify,
      "Hash every chunk when stored, and in the model's memory after it was restored");
  run_app->add_flag("--settle", run.settle,
                    "Before each prompt, wait until the tiers are quiet (for measuring)");
  run_app->add_flag("!--no-answers", run.print_answers, "Do not print the answers");
  run_app->add_flag("--quiet", run.quiet, "No line for each prompt");
  run_app->add_option("--label", run.progress_label, "Text in front of each prompt's line");

  DemoCommand demo;
  CLI::App* demo_app =
      app.add_subcommand("demo", "Time to first token recomputed, from host memory, and from disk");
  demo_app->add_option("--model", demo.model_path, "GGUF file")->required();
  demo_app
      ->add_option("--work-dir", demo.work_dir,
                   "For prompts, results and a cache that is removed at the end")
      ->required();
  demo_app->add_flag("--quick", demo.quick, "Fewer and shorter prompts: within two minutes");
  demo_app->add_option("--json", demo.json_path, "Write rows and summary here");
  demo_app->add_option("--text-dir", demo.text_dir, "Text files that the prompts are made of")
      ->capture_default_str();

  MatrixNodeCommand node;
  CLI::App* node_app = app.add_subcommand("matrix-node", "")->group("");  // For `terrace matrix`.
  node_app->add_option("--model", node.model_path, "GGUF file")->required();
  node_app->add_option("--context", node.context_tokens, "KV cells, in tokens");
  node_app->add_option("--threads", node.threads, "Threads of the model");

  CLI::App* version_app = app.add_subcommand("version", "What was built in");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitBadInput;
  }
  if (version_app->parsed()) {
    std::printf("terrace-llama %s\n%sengine: %s\n", terrace::Version().c_str(),
                terrace::BuildInfo().c_str(), TERRACE_LLAMA_ENGINE);
    return kExitOk;
  }
  if (node_app->parsed()) return RunMatrixNode(node);
  return run_app->parsed() ? Run(run) : RunDemo(demo);
}
