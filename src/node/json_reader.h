// JSON text to a tree, stricter than nlohmann's own parser: a key given twice in one object, a NUL
// byte, text after the document and deep nesting are faults.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "node/faults.h"

namespace terrace {

// Far above what any configuration needs; bounds what a hostile one costs.
inline constexpr std::size_t kMaxDocumentBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxDocumentDepth = 16;

// The document, or nullopt if it is not well-formed or over the limits; `faults` says why, with
// line and column. A key given twice is a fault too, but the document comes back (with the last
// value), so that the caller can look for more. Throws nothing.
std::optional<nlohmann::json> ReadJson(std::string_view text, Faults& faults);

}  // namespace terrace
