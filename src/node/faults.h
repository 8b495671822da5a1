// What is wrong with a document somebody wrote: collected, so that all of it is told at once, and
// worded so that it can be printed on a terminal whatever the document holds.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// One line for each fault. Thread-compatible.
class Faults {
 public:
  // Faults kept; the rest is counted. A hostile document can hold a hundred thousand.
  static constexpr std::size_t kMaxKept = 100;

  // `where` is a path (`secondary_tiers[0].root_dir`) or a position in the text.
  void Add(std::string_view where, std::string_view what);
  bool empty() const { return lines_.empty(); }
  std::size_t count() const { return lines_.size() + left_out_; }
  // Whether Add() only counts from here on, so that wording a fault is a waste.
  bool full() const { return lines_.size() == kMaxKept; }
  // The lines, in the order of Add(), without a newline at the end.
  std::string ToString() const;

 private:
  std::vector<std::string> lines_;
  std::size_t left_out_ = 0;
};

// `text` as a JSON string in quotes: printable ASCII only, long ones cut with "...".
std::string Quote(std::string_view text);

// "parent.key", or "key" at the top; an odd key comes quoted: parent["a b"].
std::string ChildPath(std::string_view parent, std::string_view key);
// "parent[index]".
std::string ItemPath(std::string_view parent, std::size_t index);

// The candidate that `word` is probably a slip of (case aside), or nullopt if none is close.
// Cost: O(candidates), whatever the length of `word`.
std::optional<std::string_view> Nearest(std::string_view word,
                                        std::span<const std::string_view> candidates);

}  // namespace terrace
