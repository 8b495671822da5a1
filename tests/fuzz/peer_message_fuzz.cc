// Whatever bytes a peer sends: no undefined behaviour, and what is a message comes back the same
// from its own bytes.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "wire/peer_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = terrace::DecodePeerMessage({data, size});
  if (!message.ok()) {
    TERRACE_CHECK(!message.error().message.empty(), "an error says what is wrong");
    return 0;
  }
  const auto bytes = terrace::EncodePeerMessage(message.value());
  const auto again = terrace::DecodePeerMessage(bytes);
  TERRACE_CHECK(again.ok(), "what was read can be written and read");
  TERRACE_CHECK(terrace::EncodePeerMessage(again.value()) == bytes, "and is the same");
  return 0;
}
