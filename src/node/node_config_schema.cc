#include <nlohmann/json.hpp>

#include "node/byte_size.h"
#include "node/node_config_keys.h"
#include "terrace/node_config.h"

namespace terrace {
namespace {

// Keeps the order of the table.
using Json = nlohmann::ordered_json;

Json ParseExample(std::string_view text) { return Json::parse(text, nullptr, false); }

std::string Sentence(std::string_view what, std::string_view unit) {
  std::string text(what);
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  if (!unit.empty()) text += ", in " + std::string(unit);
  return text + ".";
}

std::string TierDefinition(const TierKind& kind) { return std::string(kind.name) + "_tier"; }

void DescribeType(const KeySpec& spec, std::uint64_t, Json& property) {
  property["anyOf"] = {{{"type", "integer"}, {"minimum", spec.min}, {"maximum", spec.max}},
                       {{"type", "string"}, {"pattern", kByteSizePattern}}};
}

void DescribeType(const KeySpec& spec, std::uint32_t, Json& property) {
  property["type"] = "integer";
  property["minimum"] = spec.min;
  property["maximum"] = spec.max;
}

void DescribeType(const KeySpec& spec, double, Json& property) {
  property["type"] = "number";
  property["minimum"] = spec.min;
  property["maximum"] = spec.max;
}

void DescribeType(const KeySpec&, bool, Json& property) { property["type"] = "boolean"; }

void DescribeText(const KeySpec& spec, Json& property) {
  property["type"] = "string";
  property["minLength"] = spec.min;
  property["pattern"] = spec.pattern.empty() ? "^[^\\u0000]*$" : spec.pattern;
}

void DescribeType(const KeySpec& spec, const std::string&, Json& property) {
  if (spec.choices.empty()) return DescribeText(spec, property);
  property["type"] = "string";
  property["enum"] = Json::array();
  for (const std::string_view choice : spec.choices) property["enum"].push_back(choice);
}

void DescribeType(const KeySpec& spec, const std::vector<std::string>&, Json& property) {
  property["type"] = "array";
  property["maxItems"] = spec.max;
  property["uniqueItems"] = true;
  DescribeText(spec, property["items"]);
}

void DescribeType(const KeySpec&, const JsonObject&, Json& property) {
  property["type"] = "object";
}

void DescribeType(const KeySpec& spec, const std::vector<TierConfig>&, Json& property) {
  property["type"] = "array";
  property["maxItems"] = spec.max;
  Json kinds = Json::array();
  for (const TierKind& kind : TierKinds()) {
    kinds.push_back({{"$ref", "#/$defs/" + TierDefinition(kind)}});
  }
  property["items"]["oneOf"] = std::move(kinds);
}

template <typename Owner>
void DescribeKeys(std::span<const Key<Owner>> keys, Json& object);

void DescribeType(const KeySpec&, const ControlThreadConfig&, Json& property) {
  property["type"] = "object";
  DescribeKeys(ControlThreadKeys(), property);
}

// A default list of tiers is empty: any other would have to be told here key by key.
Json DefaultOf(const std::vector<TierConfig>&) { return Json::array(); }
// What is left out of it has its own default.
Json DefaultOf(const ControlThreadConfig&) { return Json::object(); }
Json DefaultOf(const JsonObject& value) { return Json::parse(value.text, nullptr, false); }
template <typename T>
Json DefaultOf(const T& value) {
  return Json(value);
}

// Adds `keys` to an object's schema.
template <typename Owner>
void DescribeKeys(std::span<const Key<Owner>> keys, Json& object) {
  Owner defaults;
  for (const Key<Owner>& key : keys) {
    const KeySpec& spec = key.spec;
    Json property;
    property["description"] = Sentence(spec.what, spec.unit);
    std::visit(
        [&](auto* value) {
          DescribeType(spec, *value, property);
          if (!spec.required) property["default"] = DefaultOf(*value);
        },
        key.field(defaults));
    property["examples"] = Json::array({ParseExample(spec.example)});
    object["properties"][std::string(spec.name)] = std::move(property);
    if (spec.required) object["required"].push_back(spec.name);
  }
  object["additionalProperties"] = false;
}

Json DescribeTier(const TierKind& kind) {
  Json tier = {{"description", "A tier that " + std::string(kind.what) + "."}, {"type", "object"}};
  tier["properties"][std::string(kTierTypeKey)] = {{"description", "The kind of tier."},
                                                   {"const", kind.name}};
  tier["required"] = Json::array({kTierTypeKey});
  DescribeKeys(kind.keys, tier);
  return tier;
}

}  // namespace

std::string NodeConfigSchema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "Configuration of a Terrace node"},
                 {"type", "object"}};
  DescribeKeys(NodeKeys(), schema);
  for (const TierKind& kind : TierKinds()) {
    schema["$defs"][TierDefinition(kind)] = DescribeTier(kind);
  }
  return schema.dump(2) + "\n";
}

}  // namespace terrace
