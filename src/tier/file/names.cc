#include "tier/file/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace terrace {
namespace {

constexpr std::size_t kModelNameSizeMax = 64;
constexpr std::size_t kDigestDigits = 16;
constexpr std::string_view kGroupMark = "_g";
constexpr std::string_view kChunkSuffix = ".chunk";
constexpr std::string_view kTempSuffix = ".tmp";

std::string Sanitised(std::string_view model) {
  std::string name(model.substr(0, kModelNameSizeMax));
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) c = '_';
  }
  if (name.front() == '.') name.front() = '_';
  return name;
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string IdentityDirName(const CacheIdentity& identity) {
  return fmt::format("{}-{}", Sanitised(identity.fields().model),
                     identity.ToHex().substr(0, kDigestDigits));
}

std::string ChunkFileName(const ChunkKey& key) {
  return fmt::format("{}{}{}{}", key.ToHex(), kGroupMark, key.group(), kChunkSuffix);
}

std::string ChunkFolderName(const ChunkKey& key) { return HexEncode(key.hash().first(1)); }

std::optional<ChunkKey> ParseChunkFileName(std::string_view folder, std::string_view file) {
  const std::size_t mark = file.find(kGroupMark);
  if (mark == std::string_view::npos || !file.ends_with(kChunkSuffix)) return std::nullopt;
  const std::string_view hex = file.substr(0, mark);
  if (hex.size() > 2 * ChunkKey::kMaxHashSize) return std::nullopt;
  std::vector<std::uint8_t> hash(hex.size() / 2);
  const std::size_t group_at = mark + kGroupMark.size();
  if (file.size() < group_at + kChunkSuffix.size()) return std::nullopt;
  const auto group = ParseNumber<std::uint32_t>(
      file.substr(group_at, file.size() - group_at - kChunkSuffix.size()));
  if (!group || !HexDecode(hex, hash)) return std::nullopt;
  auto key = ChunkKey::Make(hash, *group);
  if (!key) return std::nullopt;
  // One chunk, one name: "_g01" would be a second one for group 1.
  if (ChunkFileName(key.value()) != file || ChunkFolderName(key.value()) != folder) {
    return std::nullopt;
  }
  return key.value();
}

std::string InstanceFolderName(std::uint64_t id) { return fmt::format("{:016x}", id); }

bool IsInstanceFolderName(std::string_view name) {
  std::array<std::uint8_t, 8> id;
  return HexDecode(name, id);
}

std::string TempFileName(std::uint64_t number) { return fmt::format("{}{}", number, kTempSuffix); }

bool IsTempFileName(std::string_view name) {
  if (!name.ends_with(kTempSuffix)) return false;
  return ParseNumber<std::uint64_t>(name.substr(0, name.size() - kTempSuffix.size())).has_value();
}

std::string VllmChunkPath(const ChunkKey& key) {
  const std::string hex = key.ToHex();
  const std::string_view digits = hex;  // As few as two.
  const auto rest = digits.substr(std::min<std::size_t>(3, digits.size()), 2);
  return fmt::format("{}/{}{}{}/{}.bin", digits.substr(0, 3), rest, kGroupMark, key.group(), hex);
}

std::string VllmTempPath(const std::string& chunk_path, std::uint64_t id) {
  return fmt::format("{}_{}{}", chunk_path, id, kTempSuffix);
}

}  // namespace terrace
