// The prompts of the demo: real text in the shapes that people send.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "terrace/result.h"

namespace terrace::llama {

// A prompt that is measured recomputed, from host memory and, after a restart, from disk.
struct MeasuredPrompt {
  std::string name;     // "system-2"
  std::string host_id;  // The run that loads it from host memory.
  std::string recompute_id;
  std::string reference_id;  // Whose answer must be the same.
};

// A prompt that shares nothing: with Terrace, and without, several times in turn. What disturbs a
// run only makes it longer, so the best of each is compared.
struct UnsharedPrompt {
  std::string name;
  std::vector<std::string> terrace_ids;
  std::vector<std::string> plain_ids;
};

struct DemoPrompts {
  std::vector<nlohmann::ordered_json> lines;  // Of the first process, in order.
  std::vector<MeasuredPrompt> measured;
  std::vector<UnsharedPrompt> unshared;
};

// Made of the text files in `text_dir`; kNotFound if they are too few or too short.
Result<DemoPrompts> MakeDemoPrompts(const std::string& text_dir, bool quick);

}  // namespace terrace::llama
