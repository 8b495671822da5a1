// A matrix's result for people and for programs.
#pragma once

#include <string>

#include "matrix.h"
#include "numbers.h"

namespace terrace::matrix {

// What the issue of a matrix is judged by; 0 where it was not measured.
struct Summary {
  double penalty_control_thread = 0;  // Median TTFT of the busy source over that of the idle one,
  double penalty_per_step = 0;        // warm.
  double penalty_recompute = 0;
  double penalty_own_memory = 0;
  Quartiles penalty_of_pairs;  // With the control thread, warm.
  double lookup_over_raw = 0;
  double fetch_over_raw = 0;
  double throughput_ratio = 0;  // Of the source, with peers over without.
};
Summary SummaryOf(const MatrixResult& result);

std::string ToJson(const MatrixOptions& options, const MatrixResult& result);
// Tables and the summary.
std::string ToText(const MatrixOptions& options, const MatrixResult& result);
// An SVG: the time to the first token and the look-up delay of each cell.
std::string ToPicture(const MatrixOptions& options, const MatrixResult& result);

}  // namespace terrace::matrix
