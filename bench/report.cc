#include "bench/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace terrace::bench {
namespace {

// What the goal is compared with.
double Judged(const Row& row) { return row.reference ? row.value / *row.reference : row.value; }

bool Ok(const Row& row) {
  switch (row.goal_kind) {
    case Row::Goal::kNone:
      return true;
    case Row::Goal::kAtMost:
      return Judged(row) <= row.goal;
    case Row::Goal::kAtLeast:
      return Judged(row) >= row.goal;
  }
  return true;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string GoalText(const Row& row) {
  if (row.goal_kind == Row::Goal::kNone) return "";
  return (row.goal_kind == Row::Goal::kAtMost ? "<= " : ">= ") + Number(row.goal) +
         (row.reference ? "x" : "");
}

}  // namespace

void Report::Print() const {
  std::size_t width = 0;
  for (const Row& row : rows_) width = std::max(width, row.name.size());
  for (const Row& row : rows_) {
    std::printf("%-*s %10s %-12s", static_cast<int>(width), row.name.c_str(),
                Number(row.value).c_str(), row.unit.c_str());
    if (row.reference) {
      std::printf("  reference %s, ratio %s", Number(*row.reference).c_str(),
                  Number(row.value / *row.reference).c_str());
    }
    if (row.goal_kind != Row::Goal::kNone) {
      std::printf("  goal %s: %s", GoalText(row).c_str(), Ok(row) ? "ok" : "MISSED");
    }
    std::printf("\n");
  }
}

bool Report::WriteJson(const std::string& path) const {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    nlohmann::ordered_json out;
    out["name"] = row.name;
    out["value"] = row.value;
    out["unit"] = row.unit;
    out["reference"] = nullptr;
    out["ratio"] = nullptr;
    if (row.reference) {
      out["reference"] = *row.reference;
      out["ratio"] = row.value / *row.reference;
    }
    out["goal"] = nullptr;
    if (row.goal_kind != Row::Goal::kNone) out["goal"] = GoalText(row);
    out["ok"] = Ok(row);
    all.push_back(std::move(out));
  }
  std::ofstream file(path);
  file << all.dump(1) << "\n";
  file.close();
  if (!file) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return static_cast<bool>(file);
}

Arguments ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--quick") {
      arguments.quick = true;
    } else if (word == "--json") {
      if (++i == argc) {
        std::fprintf(stderr, "--json needs a file\n");
        std::exit(2);
      }
      arguments.json = argv[i];
    } else {
      arguments.rest.emplace_back(word);
    }
  }
  return arguments;
}

void Progress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

}  // namespace terrace::bench
