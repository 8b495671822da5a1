#include "host/region_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "host/region_memory.h"

namespace terrace {
namespace {

std::string Hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Result<void> CheckRegionHeader(const RegionHeader& expected, const RegionHeader& offered) {
  std::string faults;
  auto compare = [&faults](std::string_view field, const auto& ours, const auto& theirs,
                           std::string_view advice) {
    if (ours == theirs) return;
    faults += fmt::format("{}{} is {} here and {} at the creator ({})", faults.empty() ? "" : "; ",
                          field, ours, theirs, advice);
  };
  compare("identity", Hex(expected.identity), Hex(offered.identity),
          "another model, layout or chunk size");
  compare("chunk_bytes", expected.chunk_bytes, offered.chunk_bytes, "give all tokens_per_chunk");
  compare("stride_bytes", expected.stride_bytes, offered.stride_bytes, "give all tokens_per_chunk");
  compare("slot_count", expected.slot_count, offered.slot_count, "give all cpu_bytes_to_use");
  compare("rank_count", expected.rank_count, offered.rank_count, "give all the same ranks");
  compare("process_count", expected.process_count, offered.process_count,
          "give all the same processes");
  if (faults.empty() && offered.mapping_bytes < offered.stride_bytes * offered.slot_count) {
    faults = fmt::format("mapping_bytes is {}, less than {} slots of {} bytes take",
                         offered.mapping_bytes, offered.slot_count, offered.stride_bytes);
  }
  if (faults.empty() && offered.huge_pages > static_cast<std::uint32_t>(HugePages::kExplicit)) {
    faults = fmt::format("huge_pages is {}, which has no meaning", offered.huge_pages);
  }
  if (faults.empty()) return {};
  return Error{ErrorCode::kIncompatible, faults};
}

void RegionMessage::SetText(std::string_view value) {
  const std::size_t size = std::min(value.size(), sizeof(text) - 1);
  std::memcpy(text, value.data(), size);
  text[size] = '\0';
}

Result<void> CheckRegionMessage(const RegionMessage& message, std::size_t size_bytes) {
  if (size_bytes < offsetof(RegionMessage, kind) || message.magic != RegionMessage::kMagic) {
    return Error{ErrorCode::kIncompatible, "magic is wrong: no Terrace process answers there"};
  }
  if (message.version != RegionMessage::kVersion) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("version is {} here and {} there; run one version of Terrace",
                             RegionMessage::kVersion, message.version)};
  }
  if (size_bytes != sizeof(RegionMessage) ||
      std::memchr(message.text, '\0', sizeof(message.text)) == nullptr) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("a message of {} bytes, not {}", size_bytes, sizeof(RegionMessage))};
  }
  return {};
}

}  // namespace terrace
