// Reads one byte behind a heap buffer for an input that starts with "can": must crash within
// seconds.
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> copy(data, data + size);
  if (size >= 3 && data[0] == 'c' && data[1] == 'a' && data[2] == 'n') {
    volatile std::uint8_t sink = copy.data()[size];
    static_cast<void>(sink);
  }
  return 0;
}
