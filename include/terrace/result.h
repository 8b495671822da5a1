// A value, or why there is none.
//
// Terrace throws nothing. What the world does wrong (a disk, a config file, a peer, a caller at the
// edge) comes back as an Error whose message says what was attempted, on what, and what came back.
// Expected answers such as a miss or "full" are not errors and have types of their own. Dropping a
// Result is a compiler warning; to drop one on purpose, say why: `IgnoreError(result, "the peer may
// be gone")`.
//
// Thread-compatible.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "terrace/export.h"

namespace terrace {

// Chosen by what the caller does next.
enum class ErrorCode : unsigned char {
  kInvalidArgument,    // The caller or a config is wrong: fix it; trying again is useless.
  kNotFound,           // The thing named does not exist.
  kPermissionDenied,   // It exists, but this process may not use it.
  kResourceExhausted,  // Memory, disk or descriptors ran out: free some, or ask for less.
  kIncompatible,       // Written by another model, layout or a newer format: use another place, or
                       // upgrade.
  kCorrupt,            // Bytes are not what was written: drop them and recompute.
  kUnavailable,        // The world failed for now: trying again may help.
  kCancelled,          // Stopped because the caller asked for it.
};

TERRACE_API std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
};

namespace internal {
[[noreturn]] TERRACE_API void DieOnBadResult(const Error* error);
}  // namespace internal

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: converts on return
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: converts on return

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Pre: ok(); aborts otherwise, with the error's message.
  T& value() & {
    if (!ok()) internal::DieOnBadResult(&std::get<1>(state_));
    return std::get<0>(state_);
  }
  const T& value() const& { return const_cast<Result*>(this)->value(); }
  T&& value() && { return std::move(value()); }

  // Pre: !ok(); aborts otherwise.
  const Error& error() const& {
    if (ok()) internal::DieOnBadResult(nullptr);
    return std::get<1>(state_);
  }
  Error&& error() && { return std::move(const_cast<Error&>(error())); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT: converts on return

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  void value() const {
    if (!ok_) internal::DieOnBadResult(&error_);
  }
  const Error& error() const& {
    if (ok_) internal::DieOnBadResult(nullptr);
    return error_;
  }
  Error&& error() && { return std::move(const_cast<Error&>(error())); }

 private:
  Error error_{};
  bool ok_ = true;
};

// Drops an error on purpose. `why` is for the reader.
template <typename T>
void IgnoreError(const Result<T>& /*result*/, std::string_view /*why*/) {}

}  // namespace terrace
