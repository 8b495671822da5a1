#include "node/node_config_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <type_traits>

#include "tier/peer/peer_options.h"

namespace terrace {
namespace {

std::string PathOf(std::size_t tier) { return ItemPath("secondary_tiers", tier); }

// Two tiers in one directory would count, evict and sweep each other's records.
void ReportSharedDirectories(std::span<const TierConfig> tiers, Faults& faults) {
  std::map<std::filesystem::path, std::size_t> owners;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (tiers[i].type != TierConfig::Type::kFile || tiers[i].file.root_dir.empty()) continue;
    // With a "/" at the end, "a" and "a/" become one.
    const auto directory = (std::filesystem::path(tiers[i].file.root_dir) / "").lexically_normal();
    const auto [owner, is_new] = owners.emplace(directory, i);
    if (is_new) continue;
    faults.Add(ChildPath(PathOf(i), "root_dir"), "is the directory of " + PathOf(owner->second) +
                                                     " too; each file tier needs its own");
  }
}

// A node has one address for its peers, who would get each chunk from either.
void ReportSecondPeerTier(std::span<const TierConfig> tiers, Faults& faults) {
  const auto is_peer = [](const TierConfig& tier) { return tier.type == TierConfig::Type::kPeer; };
  const auto first = std::find_if(tiers.begin(), tiers.end(), is_peer);
  if (first == tiers.end()) return;
  for (auto other = std::find_if(first + 1, tiers.end(), is_peer); other != tiers.end();
       other = std::find_if(other + 1, tiers.end(), is_peer)) {
    faults.Add(ChildPath(PathOf(static_cast<std::size_t>(other - tiers.begin())), kTierTypeKey),
               "is that of " + PathOf(static_cast<std::size_t>(first - tiers.begin())) +
                   " too; a node has at most one peer tier");
  }
}

// The bounds of the table for a configuration that was not read from JSON.
class Checker {
 public:
  explicit Checker(Faults& faults) : faults_(faults) {}

  template <typename Owner>
  void Check(std::span<const Key<Owner>> keys, Owner& owner, const std::string& parent) {
    for (const Key<Owner>& key : keys) {
      std::visit([&](auto* value) { Check(key.spec, *value, ChildPath(parent, key.spec.name)); },
                 key.field(owner));
    }
  }

 private:
  template <typename Number>
  requires std::is_arithmetic_v<Number>
  void Check(const KeySpec& spec, Number value, const std::string& path) {
    if (value >= static_cast<Number>(spec.min) && value <= static_cast<Number>(spec.max)) return;
    faults_.Add(path, "must be from " + std::to_string(spec.min) + " to " +
                          std::to_string(spec.max) + ", is " + std::to_string(value));
  }
  void Check(const KeySpec&, bool, const std::string&) {}
  void Check(const KeySpec&, const JsonObject&, const std::string&) {}
  void Check(const KeySpec& spec, const std::string& value, const std::string& path) {
    if (const auto fault = FaultOfChoice(spec, value)) return faults_.Add(path, *fault);
    if (!spec.choices.empty()) return;
    if (value.size() < spec.min) {
      faults_.Add(path, "must not be empty");
    } else if (spec.has_form != nullptr && !spec.has_form(value)) {
      faults_.Add(path, "must be " + std::string(spec.form) + ", is " + Quote(value));
    }
  }
  void Check(const KeySpec& spec, const std::vector<std::string>& items, const std::string& path) {
    if (items.size() > spec.max) {
      return faults_.Add(path, "must have at most " + std::to_string(spec.max) + " items, has " +
                                   std::to_string(items.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) Check(spec, items[i], ItemPath(path, i));
  }
  void Check(const KeySpec&, ControlThreadConfig& control, const std::string& path) {
    Check(ControlThreadKeys(), control, path);
  }
  void Check(const KeySpec& spec, std::vector<TierConfig>& tiers, const std::string& path) {
    if (tiers.size() > spec.max) {
      return faults_.Add(path, "must have at most " + std::to_string(spec.max) + " tiers, has " +
                                   std::to_string(tiers.size()));
    }
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      const auto kinds = TierKinds();
      const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                     [&](const TierKind& k) { return k.type == tiers[i].type; });
      if (kind != kinds.end()) Check(kind->keys, tiers[i], ItemPath(path, i));
      if (tiers[i].type == TierConfig::Type::kCustom) {
        Check(CommonTierKeys(), tiers[i], ItemPath(path, i));
      }
      ReportFaultsWithin(tiers[i], ItemPath(path, i), faults_);
    }
    ReportFaultsAcrossTiers(tiers, faults_);
  }

  Faults& faults_;
};

}  // namespace

std::string QuotedList(std::span<const std::string_view> words) {
  std::string list;
  for (const std::string_view word : words) {
    if (!list.empty()) list += ", ";
    list += Quote(word);
  }
  return list;
}

std::optional<std::string> FaultOfChoice(const KeySpec& spec, const std::string& text) {
  if (spec.choices.empty()) return std::nullopt;
  std::vector<std::string> added;
  if (spec.more_choices != nullptr) added = spec.more_choices();
  std::vector<std::string_view> choices(spec.choices.begin(), spec.choices.end());
  for (const std::string& name : added) {
    if (std::find(choices.begin(), choices.end(), name) == choices.end()) choices.push_back(name);
  }
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::nullopt;
  return "must be one of " + QuotedList(choices) + ", is " + Quote(text);
}

void ReportFaultsWithin(const TierConfig& tier, const std::string& path, Faults& faults) {
  if (tier.type == TierConfig::Type::kCustom && !tier.custom.make) {
    faults.Add(ChildPath(ChildPath(path, "custom"), "make"), "must not be empty");
  }
  if (tier.type != TierConfig::Type::kPeer) return;
  for (const auto& [key, fault] : FaultsOf(tier.peer)) faults.Add(ChildPath(path, key), fault);
}

void ReportFaultsAcrossTiers(std::span<const TierConfig> tiers, Faults& faults) {
  ReportSharedDirectories(tiers, faults);
  ReportSecondPeerTier(tiers, faults);
}

Result<void> CheckNodeConfig(const NodeConfig& config) {
  Faults faults;
  NodeConfig copy = config;  // The table's fields are for writing, too.
  Checker(faults).Check(NodeKeys(), copy, "");
  if (!faults.empty()) return Error{ErrorCode::kInvalidArgument, faults.ToString()};
  return {};
}

}  // namespace terrace
