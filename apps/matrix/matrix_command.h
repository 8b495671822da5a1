// `terrace matrix` and the process that it starts twice, on a program's command line.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace terrace::matrix {

struct MatrixCommand {
  std::string engine = "synthetic";
  std::string model_path;
  std::string node_program;  // Empty: found beside this one.
  std::string json_path;
  std::string picture_path;
  std::string data_plane = "auto";
  std::string control_priority = "high";
  std::string huge_pages = "off";
  std::uint32_t repetitions = 0;    // 0: what suits the engine.
  std::uint32_t prompt_tokens = 0;  // 0: what suits engine and time.
  double window_s = 0;              // 0: what suits them.
  bool quick = false;
};

// Adds the two to `app`, which outlives this.
class MatrixCommands {
 public:
  explicit MatrixCommands(CLI::App& app);

  // Whether one of them was given.
  bool parsed() const;
  // Does it. The exit status: 0 measured, and every answer was right; 1 something failed or an
  // answer was wrong; 2 wrong usage.
  int Run() const;

 private:
  MatrixCommand command_;
  CLI::App* matrix_;
  CLI::App* node_;
};

}  // namespace terrace::matrix
