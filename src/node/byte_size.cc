#include "node/byte_size.h"

#include <string>

#include "node/faults.h"

namespace terrace {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"KiB", std::uint64_t{1} << 10},
    {"MiB", std::uint64_t{1} << 20},
    {"GiB", std::uint64_t{1} << 30},
    {"TiB", std::uint64_t{1} << 40},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

// With six digits the fraction times the largest unit still fits 64 bits.
constexpr std::size_t kMaxFractionDigits = 6;

std::string_view TakeDigits(std::string_view& text) {
  std::size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

const Unit* FindUnit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

Error NotASize(std::string_view text) {
  return Error{ErrorCode::kInvalidArgument,
               Quote(text) +
                   " is not a size; write a number and one of KiB, MiB, GiB, TiB (powers of 1024), "
                   "KB, MB, GB, TB (powers of 1000), such as \"512MiB\""};
}

}  // namespace

Result<std::uint64_t> ParseByteSize(std::string_view text) {
  std::string_view rest = text;
  const std::string_view whole = TakeDigits(rest);
  if (whole.empty()) return NotASize(text);
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = TakeDigits(rest);
    if (fraction.empty() || fraction.size() > kMaxFractionDigits) return NotASize(text);
  }
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const Unit* const unit = FindUnit(rest);
  if (unit == nullptr) return NotASize(text);

  std::uint64_t bytes = 0;
  bool overflow = false;
  for (const char digit : whole) {
    overflow |= __builtin_mul_overflow(bytes, 10u, &bytes);
    overflow |= __builtin_add_overflow(bytes, static_cast<unsigned>(digit - '0'), &bytes);
  }
  overflow |= __builtin_mul_overflow(bytes, unit->bytes, &bytes);
  std::uint64_t numerator = 0;
  std::uint64_t denominator = 1;
  for (const char digit : fraction) {
    numerator = 10 * numerator + static_cast<unsigned>(digit - '0');
    denominator *= 10;
  }
  overflow |= __builtin_add_overflow(bytes, numerator * unit->bytes / denominator, &bytes);
  if (overflow) {
    return Error{ErrorCode::kInvalidArgument, Quote(text) + " is more than 64 bits hold"};
  }
  return bytes;
}

}  // namespace terrace
