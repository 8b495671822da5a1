#include "node/faults.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace terrace {
namespace {

// Bytes of somebody's text that are worth repeating to them.
constexpr std::size_t kMaxQuoted = 64;

bool IsPlainKey(std::string_view key) {
  auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !key.empty() && key.size() <= kMaxQuoted && std::all_of(key.begin(), key.end(), plain);
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Levenshtein's distance, one row at a time.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (Lower(a[i]) == Lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

void Faults::Add(std::string_view where, std::string_view what) {
  if (full()) {
    ++left_out_;
    return;
  }
  lines_.push_back(std::string(where) + ": " + std::string(what));
}

std::string Faults::ToString() const {
  std::string text;
  for (const std::string& line : lines_) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  if (left_out_ > 0) text += "\nand " + std::to_string(left_out_) + " more faults";
  return text;
}

std::string Quote(std::string_view text) {
  std::string shown(text.substr(0, kMaxQuoted));
  if (text.size() > kMaxQuoted) shown += "...";
  return nlohmann::json(shown).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string ChildPath(std::string_view parent, std::string_view key) {
  std::string path(parent);
  if (!IsPlainKey(key)) return path + "[" + Quote(key) + "]";
  if (!path.empty()) path += '.';
  return path + std::string(key);
}

std::string ItemPath(std::string_view parent, std::size_t index) {
  return std::string(parent) + "[" + std::to_string(index) + "]";
}

std::optional<std::string_view> Nearest(std::string_view word,
                                        std::span<const std::string_view> candidates) {
  if (word.size() > kMaxQuoted) return std::nullopt;
  std::optional<std::string_view> nearest;
  std::size_t least = 0;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = EditDistance(word, candidate);
    // A third of the letters wrong is still a slip; more is another word.
    if (distance > std::max<std::size_t>(1, candidate.size() / 3)) continue;
    if (nearest && distance >= least) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

}  // namespace terrace
