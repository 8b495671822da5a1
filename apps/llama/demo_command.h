// `terrace-llama demo`: what a cache in tiers saves, on a real model and real text.
#pragma once

#include <string>

namespace terrace::llama {

struct DemoCommand {
  std::string model_path;
  std::string work_dir;
  std::string json_path;  // "" for none.
  std::string text_dir = "/usr/share/common-licenses";
  bool quick = false;
};

int RunDemo(const DemoCommand& command);

}  // namespace terrace::llama
