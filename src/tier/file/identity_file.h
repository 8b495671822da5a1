// The text of identity.json, which says whose chunks a directory holds. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "terrace/cache_identity.h"
#include "terrace/result.h"

namespace terrace {

// Of identity.json and of the layout of the directory around it.
inline constexpr std::uint64_t kFileTierFormatVersion = 1;

std::string EncodeIdentityFile(const CacheIdentity& identity);

// Ok if `text` was written for `identity`. kCorrupt: not an identity file. kIncompatible: of a
// newer format, or of another cache. Messages do not name the file; the caller does.
Result<void> CheckIdentityFile(std::string_view text, const CacheIdentity& identity);

}  // namespace terrace
