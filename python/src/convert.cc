#include "convert.h"

#include <nanobind/stl/string.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>

namespace terrace_kv {

using terrace::ChunkKey;
using terrace::SlotId;

namespace {

bool InterpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

std::atomic<std::uint32_t> forks{0};

}  // namespace

// Once it ends, only the thread that ends it has the interpreter, and may come back.
WithoutInterpreter::WithoutInterpreter()
    : ends_it_(InterpreterEnds()), state_(PyEval_SaveThread()) {}

WithoutInterpreter::~WithoutInterpreter() {
  while (InterpreterEnds() && !ends_it_) ::pause();
  PyEval_RestoreThread(state_);
}

std::uint32_t Forks() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

void Raise(const terrace::Error& error) {
  const nb::object raised =
      nb::module_::import_("terrace_kv.errors")
          .attr("make_error")(std::string(ErrorCodeName(error.code)), error.message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

ChunkKey KeyOf(nb::handle bytes) {
  if (!PyBytes_Check(bytes.ptr())) {
    PyErr_Format(PyExc_TypeError, "a chunk's key is bytes, not %.100s",
                 Py_TYPE(bytes.ptr())->tp_name);
    throw nb::python_error();
  }
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()));
  const auto* data = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(bytes.ptr()));
  if (size < 5 || size > ChunkKey::kMaxHashSize + 4) {
    PyErr_Format(
        PyExc_ValueError,
        "a chunk's key is a hash of 1 to 32 bytes and a group of 4; this one has %zd bytes",
        static_cast<Py_ssize_t>(size));
    throw nb::python_error();
  }
  const std::uint8_t* group = data + size - 4;
  return ChunkKey({data, size - 4}, std::uint32_t{group[0]} << 24 | std::uint32_t{group[1]} << 16 |
                                        std::uint32_t{group[2]} << 8 | group[3]);
}

nb::bytes BytesOf(const ChunkKey& key) {
  std::uint8_t bytes[ChunkKey::kMaxHashSize + 4];
  const auto hash = key.hash();
  std::memcpy(bytes, hash.data(), hash.size());
  for (int i = 0; i < 4; ++i) {
    bytes[hash.size() + i] = static_cast<std::uint8_t>(key.group() >> (24 - 8 * i));
  }
  return nb::bytes(bytes, hash.size() + 4);
}

nb::handle Keys::item(std::size_t i) const {
  return PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
}

void KeysOf(nb::handle iterable, Keys& keys) {
  keys.items = nb::steal(PySequence_Fast(iterable.ptr(), "keys must be an iterable of bytes"));
  if (!keys.items.is_valid()) throw nb::python_error();
  if (PyList_Check(keys.items.ptr())) {
    // Whoever has the list may change it while a tier in Python is asked.
    keys.items = nb::steal(PyList_AsTuple(keys.items.ptr()));
    if (!keys.items.is_valid()) throw nb::python_error();
  }
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(keys.items.ptr()));
  keys.keys.clear();
  keys.keys.reserve(count);
  for (std::size_t i = 0; i < count; ++i) keys.keys.push_back(KeyOf(keys.item(i)));
}

bool HasRepeats(const std::vector<ChunkKey>& keys) {
  // Hashes: those that begin alike are alike, but for tests' short ones. A table of what they begin
  // with, a quarter of it used; 0 is a place without one.
  static thread_local std::vector<std::uint64_t> begins;
  begins.assign(std::bit_ceil(4 * keys.size() + 1), 0);
  const std::size_t mask = begins.size() - 1;
  const int shift = 64 - std::countr_zero(begins.size());
  bool alike = false;
  for (const ChunkKey& key : keys) {
    std::uint64_t begin = 0;
    std::memcpy(&begin, key.hash().data(), std::min(sizeof(begin), key.hash().size()));
    begin = (begin + key.group()) | 1;
    // The product's highest bits: they depend on all of what is multiplied.
    std::size_t i = begin * 0x9e3779b97f4a7c15 >> shift;
    while (begins[i] != 0 && begins[i] != begin) i = (i + 1) & mask;
    alike = alike || begins[i] == begin;
    begins[i] = begin;
  }
  if (!alike) return false;
  std::vector<ChunkKey> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

nb::list ListOf(const std::vector<SlotId>& slots) {
  nb::list list;
  for (const SlotId slot : slots) list.append(slot.value);
  return list;
}

nb::bytes PackedOf(const std::vector<SlotId>& slots) {
  static_assert(sizeof(SlotId) == 4 && std::is_trivially_copyable_v<SlotId>);
  return nb::bytes(slots.data(), slots.size() * sizeof(SlotId));
}

}  // namespace terrace_kv
