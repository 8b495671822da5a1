// Google Benchmark's results as one number each.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "bench/report.h"

namespace terrace::bench {

// Keeps the best time of each benchmark, in ns.
class Best : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      if (run.error_occurred) {
        Progress("  " + run.run_name.function_name + ": " + run.error_message);
        continue;
      }
      const double time = run.GetAdjustedCPUTime();
      const auto [at, is_new] = times.emplace(run.run_name.function_name, time);
      if (!is_new) at->second = std::min(at->second, time);
    }
  }
  std::map<std::string, double> times;
};

}  // namespace terrace::bench
