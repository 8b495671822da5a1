#include "terrace/result.h"

#include "base/check.h"

namespace terrace {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kPermissionDenied:
      return "permission denied";
    case ErrorCode::kResourceExhausted:
      return "resource exhausted";
    case ErrorCode::kIncompatible:
      return "incompatible";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

namespace internal {

void DieOnBadResult(const Error* error) {
  CheckFailed("result.h", 0, error != nullptr ? error->message.c_str() : "no error",
              "a Result was read as what it is not");
}

}  // namespace internal
}  // namespace terrace
