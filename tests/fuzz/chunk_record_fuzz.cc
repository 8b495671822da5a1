// Any bytes as a chunk record: decoding never reads outside them, and what decodes is written back
// byte for byte. Each input is tried as it is and with the header checksum put right, so that the
// checks behind it are reached too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "wire/chunk_record.h"

namespace terrace {
namespace {

constexpr std::size_t kHeaderChecksumAt = 104;

void Try(const std::vector<std::byte>& input) {
  const auto record = DecodeChunkRecord(input);
  if (!record.ok()) {
    TERRACE_CHECK(!record.error().message.empty(), "an error says why");
    return;
  }
  std::vector<std::byte> again(kChunkRecordFieldsSize);
  EncodeChunkRecord(record.value(), again);
  TERRACE_CHECK(std::equal(again.begin(), again.end(), input.begin()), "one record, one encoding");
  const auto payload = std::span(input).subspan(kChunkRecordFieldsSize);
  const bool sized = payload.size() == record.value().payload_size;
  const bool hashed = Xxh3(payload) == record.value().payload_checksum;
  TERRACE_CHECK(VerifyChunkPayload(record.value(), payload).ok() == (sized && hashed),
                "a payload is taken exactly if size and checksum agree");
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> input(bytes, bytes + size);
  terrace::Try(input);
  if (size < terrace::kChunkRecordFieldsSize) return 0;
  const std::uint64_t checksum = terrace::Xxh3(std::span(input).first(terrace::kHeaderChecksumAt));
  for (std::size_t i = 0; i < 8; ++i) {
    input[terrace::kHeaderChecksumAt + i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
  }
  terrace::Try(input);
  return 0;
}
