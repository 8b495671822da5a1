// What a benchmark found: rows for a program to read, and lines for a person.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace terrace::bench {

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> reference;  // Measured in the same run.
  enum class Goal : unsigned char { kNone, kAtMost, kAtLeast };
  Goal goal_kind = Goal::kNone;
  double goal = 0;  // Of the ratio to the reference if there is one, else of the value.
};

class Report {
 public:
  void Add(Row row) { rows_.push_back(std::move(row)); }

  // A line for each row, aligned.
  void Print() const;
  // [{"name", "value", "unit", "reference", "ratio", "goal", "ok"}, ...]; null where there is none.
  // False, with a line on stderr, if the file cannot be written.
  bool WriteJson(const std::string& path) const;

 private:
  std::vector<Row> rows_;
};

// What every benchmark program understands:
//   [--quick] [--json FILE]  and words of its own
struct Arguments {
  bool quick = false;
  std::string json;
  std::vector<std::string> rest;
};
// Exits with a line on stderr if they are wrong.
Arguments ParseArguments(int argc, char** argv);

// A line on stderr.
void Progress(const std::string& line);

}  // namespace terrace::bench
