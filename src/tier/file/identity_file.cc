#include "tier/file/identity_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

Json Parse(std::string_view text) {
  return Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
}

// Does not throw on text that is not UTF-8, unlike plain dump().
std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Result<void> CheckFormatVersion(const Json& found) {
  const auto version = found.is_object() ? found.find("format_version") : found.end();
  if (version == found.end() || !version->is_number_unsigned()) {
    return Error{ErrorCode::kCorrupt, "it is no JSON object with a format_version"};
  }
  const auto number = version->get<std::uint64_t>();
  if (number > kFileTierFormatVersion) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("written by a newer format ({}; this build knows up to {}): use "
                             "another root_dir or upgrade",
                             number, kFileTierFormatVersion)};
  }
  return {};
}

}  // namespace

std::string EncodeIdentityFile(const CacheIdentity& identity) {
  const CacheIdentityFields& fields = identity.fields();
  Json json;
  json["format_version"] = kFileTierFormatVersion;
  json["digest"] = identity.ToHex();
  json["model"] = fields.model;
  json["revision"] = fields.revision;
  json["dtype"] = fields.dtype;
  json["layout"] = fields.layout;
  json["layout_version"] = fields.layout_version;
  json["tokens_per_chunk"] = fields.tokens_per_chunk;
  json["chunk_bytes"] = fields.chunk_bytes;
  json["shard_index"] = fields.shard_index;
  json["shard_count"] = fields.shard_count;
  json["engine"] = fields.engine;
  return Dump(json, 2) + "\n";
}

Result<void> CheckIdentityFile(std::string_view text, const CacheIdentity& identity) {
  const Json found = Parse(text);
  if (auto known = CheckFormatVersion(found); !known) return known;
  const Json wanted = Parse(EncodeIdentityFile(identity));
  for (const auto& field : wanted.items()) {
    const auto value = found.find(field.key());
    if (value == found.end()) {
      return Error{ErrorCode::kCorrupt, fmt::format("{} is missing", field.key())};
    }
    if (*value != field.value()) {
      return Error{ErrorCode::kIncompatible,
                   fmt::format("of another cache: {} is {}, wanted {}: use another root_dir",
                               field.key(), Dump(*value), Dump(field.value()))};
    }
  }
  return {};
}

}  // namespace terrace
