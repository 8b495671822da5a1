// Between Python's values and Terrace's.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/result.h"
#include "terrace/types.h"

namespace terrace_kv {

namespace nb = nanobind;

// Never negative, and not so long that a clock overflows; what is no number is 0.
inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(seconds > 0 ? std::min(seconds, 1e9) * 1e3 : 0));
}

// Throws the Python exception of an error, with its text (terrace_kv/errors.py).
[[noreturn]] void Raise(const terrace::Error& error);

template <typename T>
T ValueOrRaise(terrace::Result<T> result) {
  if (!result.ok()) Raise(result.error());
  return std::move(result).value();
}
inline void OkOrRaise(const terrace::Result<void>& result) {
  if (!result.ok()) Raise(result.error());
}

// A key as bytes: 1 to 32 of the hash, then the group as 4, the highest first.
terrace::ChunkKey KeyOf(nb::handle bytes);
nb::bytes BytesOf(const terrace::ChunkKey& key);

// The keys of any iterable. `items` holds what it gave, co-indexed.
struct Keys {
  nb::object items;  // A tuple.
  std::vector<terrace::ChunkKey> keys;

  nb::handle item(std::size_t i) const;
};
void KeysOf(nb::handle iterable, Keys& keys);
bool HasRepeats(const std::vector<terrace::ChunkKey>& keys);

nb::list ListOf(const std::vector<terrace::SlotId>& slots);
// As 4-byte integers, in the machine's order.
nb::bytes PackedOf(const std::vector<terrace::SlotId>& slots);

}  // namespace terrace_kv
