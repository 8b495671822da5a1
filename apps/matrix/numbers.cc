#include "numbers.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::matrix {

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t quarter = values.size() / 4;
  return {values[quarter], values[values.size() - 1 - quarter]};
}

std::vector<double> TtftsOf(const Cell& cell) {
  std::vector<double> values;
  for (const Repetition& repetition : cell.repetitions) values.push_back(repetition.ttft_s);
  return values;
}

std::vector<double> LookupsOf(const Cell& cell) {
  std::vector<double> values;
  for (const Repetition& repetition : cell.repetitions) {
    if (repetition.lookup_s) values.push_back(*repetition.lookup_s);
  }
  return values;
}

std::vector<double> FetchesOf(const Cell& cell) {
  std::vector<double> values;
  for (const Repetition& repetition : cell.repetitions) {
    if (repetition.fetch_s > 0) values.push_back(repetition.fetch_s);
  }
  return values;
}

double FetchRateOf(const Cell& cell) {
  std::vector<double> rates;
  for (const Repetition& repetition : cell.repetitions) {
    if (repetition.fetch_s <= 0) continue;
    rates.push_back(static_cast<double>(repetition.fetched_bytes) / repetition.fetch_s);
  }
  return SpreadOf(rates).median;
}

std::string Milliseconds(const Spread& spread) {
  return fmt::format("{:.3g} ms ({:.3g} to {:.3g})", spread.median * 1e3, spread.min * 1e3,
                     spread.max * 1e3);
}

}  // namespace terrace::matrix
