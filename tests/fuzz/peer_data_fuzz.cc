// Any bytes as what came on a data link: decoding never reads outside them, takes frames one after
// the other until it wants more or refuses, and what decodes is written back byte for byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "wire/peer_data.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> input(bytes, bytes + size);
  std::span<const std::byte> rest(input);
  while (!rest.empty()) {
    const auto decoded = DecodeDataFrame(rest);
    if (!decoded.ok()) {
      TERRACE_CHECK(!decoded.error().message.empty(), "an error says why");
      break;
    }
    if (!decoded.value().has_value()) {
      TERRACE_CHECK(rest.size() < kDataFrameSizeMax, "a frame is bounded");
      break;
    }
    const std::size_t taken = decoded.value()->size;
    std::vector<std::byte> again;
    AppendDataFrame(decoded.value()->frame, again);
    TERRACE_CHECK(taken <= rest.size() && again.size() == taken, "a frame is inside its bytes");
    TERRACE_CHECK(std::equal(again.begin(), again.end(), rest.begin()), "one frame, one encoding");
    rest = rest.subspan(taken);
  }
  return 0;
}
