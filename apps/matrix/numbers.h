// Numbers of several repetitions.
#pragma once

#include <string>
#include <vector>

#include "matrix.h"

namespace terrace::matrix {

struct Spread {
  double median = 0, min = 0, max = 0;
};
// Zeros if there are none.
Spread SpreadOf(std::vector<double> values);

// Half of the values lie between them.
struct Quartiles {
  double low = 0, high = 0;
};
// Zeros if there are none.
Quartiles QuartilesOf(std::vector<double> values);

std::vector<double> TtftsOf(const Cell& cell);
// Of the repetitions that asked.
std::vector<double> LookupsOf(const Cell& cell);
// Of those that fetched: from the tier's order to its last byte.
std::vector<double> FetchesOf(const Cell& cell);
// Bytes a second of what was fetched; 0 if nothing was.
double FetchRateOf(const Cell& cell);

// "12.3 ms (11.9 to 14.0)".
std::string Milliseconds(const Spread& spread);

}  // namespace terrace::matrix
