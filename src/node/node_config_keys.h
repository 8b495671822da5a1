// The keys of a node's configuration: one table, from which come the parser, the JSON Schema and
// (checked by tests/cli/docs_test.py) docs/configuration.md, so that they can't drift apart.
//
// To add a key: a field in terrace/node_config.h, a line here, a line in the docs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "terrace/node_config.h"

namespace terrace {

// Where a key's value goes. Its type says what JSON is taken:
//   uint64_t  a size: a whole number of bytes, or a string with a unit
//   uint32_t  a whole number
//   double    a number
//   bool      true or false
//   string    one of `choices`, or of what `more_choices` returns, if there are any, else text
//             without NUL
//   object    an object, whose keys are somebody else's to check
//   strings   a list of different strings, each as a string alone would be
//   tiers     a list of tiers
//   others    an object with a table of keys of its own
using Field =
    std::variant<std::uint64_t*, std::uint32_t*, double*, bool*, std::string*, JsonObject*,
                 std::vector<std::string>*, std::vector<TierConfig>*, ControlThreadConfig*>;

struct KeySpec {
  std::string_view name;
  std::string_view what;       // A noun phrase, to stand in a message and, as a sentence, in docs.
  std::string_view unit = {};  // Empty if it has none.
  bool required = false;       // Else the field's initialiser is the default.
  std::uint64_t min = 0;       // Bounds of a number, of a text's length, of a list's length; of
  std::uint64_t max = 0;       // a text, and of those in a list, the least only.
  std::span<const std::string_view> choices = {};
  // Those that the program added, which no schema or document can know; nullptr if it may not.
  std::vector<std::string> (*more_choices)() = nullptr;
  std::string_view example;  // As JSON.
  // Of text that is more than any text: what it must look like, in words and (as far as that can be
  // said there) in the schema, and who decides.
  std::string_view form = {};
  std::string_view pattern = {};
  bool (*has_form)(std::string_view text) = nullptr;
};

template <typename Owner>
struct Key {
  KeySpec spec;
  Field (*field)(Owner& owner);
};

struct TierKind {
  std::string_view name;
  std::string_view alias;  // vLLM's word for it, to answer with ours; empty if it has none.
  TierConfig::Type type;
  std::string_view what;
  std::span<const Key<TierConfig>> keys;  // Without kTierTypeKey, which each kind has.
};

inline constexpr std::string_view kTierTypeKey = "type";

// Whether a configuration that was not read from JSON lies within the table's bounds: every fault
// with its path.
Result<void> CheckNodeConfig(const NodeConfig& config);

std::span<const Key<NodeConfig>> NodeKeys();
std::span<const Key<ControlThreadConfig>> ControlThreadKeys();
// Of every kind of tier, also of the program's own.
std::span<const Key<TierConfig>> CommonTierKeys();
// The kinds in this build.
std::span<const TierKind> TierKinds();

}  // namespace terrace
