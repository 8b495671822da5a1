// Copies bytes out of memory that somebody else may be writing, and says what it wrote.
//
// To copy and then hash the source proves nothing about the copy: the source may have changed in
// between. To copy and then hash the copy reads it once more from memory. This hashes what it has
// in registers and writes that, past the caches, which costs no more than a copy alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// Returns Xxh3() of the bytes that are in `to` now.
// Pre: equal sizes; they do not overlap.
// Cost: about that of a copy with non-temporal stores; with AVX2 if `to` is aligned to 32 bytes,
// else twice that.
std::uint64_t CopyHashed(std::span<std::byte> to, std::span<const std::byte> from);

// What CopyHashed() does where there is no AVX2; for the test.
std::uint64_t CopyHashedPortably(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace terrace
