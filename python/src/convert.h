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

// Lets go of the interpreter, which is held, until the end of the scope. A thread that comes back
// when the interpreter ends (a daemon) sleeps for ever, as since Python 3.14; before, Python would
// end it in the middle of our frames, which aborts.
class WithoutInterpreter {
 public:
  WithoutInterpreter();
  ~WithoutInterpreter();
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  const bool ends_it_;
  PyThreadState* const state_;
};

// How often this process, or one before it, was forked: differs from what it was where something
// was made if that has another process's threads.
std::uint32_t Forks();

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

// Raises a TypeError that names the attribute if it is of another type.
template <typename T>
T AttributeOf(nb::handle tier, const char* name) {
  const nb::object value = tier.attr(name);
  T out;
  if (nb::try_cast(value, out)) return out;
  PyErr_Format(PyExc_TypeError, "a tier's %s is of a wrong type: %R", name, value.ptr());
  throw nb::python_error();
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
