// What is wrong with a configuration, apart from its JSON: shared by the parser and by
// CheckNodeConfig() (node_config_keys.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "node/faults.h"
#include "node/node_config_keys.h"

namespace terrace {

// "a", "b" and so on, for a message.
std::string QuotedList(std::span<const std::string_view> words);

// What is wrong with a text for a key that has choices.
std::optional<std::string> FaultOfChoice(const KeySpec& spec, const std::string& text);

// Of one tier, at `path`: keys that do not go together.
void ReportFaultsWithin(const TierConfig& tier, const std::string& path, Faults& faults);
// Of all of them: tiers that do not go together.
void ReportFaultsAcrossTiers(std::span<const TierConfig> tiers, Faults& faults);

}  // namespace terrace
