// `terrace-llama run`: serves a file of prompts and says what it cost.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/result.h"

namespace terrace::llama {

struct RunCommand {
  std::string model_path;
  std::string config_path;
  std::string prompts_path;
  std::string json_path;      // "" for none.
  bool print_answers = true;  // On standard output.
  std::uint32_t context_tokens = 8192;
  std::uint32_t parallel = 4;  // Prompts in the engine at once.
  std::uint32_t step_tokens = 512;
  std::uint32_t threads = 0;  // 0: one for each core.
  std::uint32_t max_tokens = 32;
  bool ignore_end_of_text = false;
  bool verify = false;
  bool settle = false;         // Before each prompt, wait until the tiers are quiet: for measuring.
  bool quiet = false;          // No line for each prompt.
  std::string progress_label;  // In front of progress lines.
};

// Exit codes of every subcommand.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;     // The world failed, or a prompt did.
inline constexpr int kExitBadInput = 2;   // Flags, configuration, prompts or model are wrong.
inline constexpr int kExitStopped = 130;  // Ctrl-C.

int Run(const RunCommand& command);

// Prints the error and returns its exit code.
int Fail(const Error& error);
// kInvalidArgument if a file cannot be written at `path`; makes an empty one if there is none. ""
// is fine.
Result<void> CheckCanWrite(const std::string& path);

}  // namespace terrace::llama
