// The real engine as one of the two processes of `terrace matrix`.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::llama {

struct MatrixNodeCommand {
  std::string model_path;
  std::uint32_t context_tokens = 8192;
  std::uint32_t threads = 1;
};
int RunMatrixNode(const MatrixNodeCommand& command);

}  // namespace terrace::llama
