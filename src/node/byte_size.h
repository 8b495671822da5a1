// Sizes as people write them: "512MiB", "1.5 GiB", "4GB".
#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/result.h"

namespace terrace {

// What ParseByteSize() takes, as a regular expression of JSON Schema. It can't tell that a size is
// too large, nor that less than a byte is none.
inline constexpr std::string_view kByteSizePattern =
    "^(?=.*[1-9])[0-9]+(\\.[0-9]{1,6})? ?[KMGT]i?B$";

// A decimal number with at most six digits after the point, at most one space, and a unit: KiB,
// MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000). Rounded down to whole bytes.
// The message of an error reads on from the key's path: `"2gib" is not a size: ...`.
Result<std::uint64_t> ParseByteSize(std::string_view text);

}  // namespace terrace
