#include "wire/chunk_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/hash.h"

namespace terrace {
namespace {

// docs/formats.md has the same table. Magic, version and the header checksum keep their places in
// every future version, so that a newer record is told from a damaged one.
constexpr std::size_t kMagicAt = 0;             // 8 bytes
constexpr std::size_t kVersionAt = 8;           // u16
constexpr std::size_t kChecksumKindAt = 10;     // u16
constexpr std::size_t kHeaderSizeAt = 12;       // u32
constexpr std::size_t kIdentityAt = 16;         // 32 bytes
constexpr std::size_t kHashSizeAt = 48;         // u8, then 3 zeros
constexpr std::size_t kGroupAt = 52;            // u32
constexpr std::size_t kHashAt = 56;             // 32 bytes, zeros behind the hash
constexpr std::size_t kPayloadSizeAt = 88;      // u64
constexpr std::size_t kPayloadChecksumAt = 96;  // u64
constexpr std::size_t kHeaderChecksumAt = 104;  // u64, XXH3-64 of all bytes before it
static_assert(kHeaderChecksumAt + 8 == kChunkRecordFieldsSize);

// The last byte is not text, so that no text file starts like a record.
constexpr std::array<std::uint8_t, 8> kMagic = {'T', 'R', 'C', 'H', 'U', 'N', 'K', 0x1a};
constexpr std::uint16_t kChecksumXxh3 = 1;

template <typename T>
void Put(std::span<std::byte> out, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out[at + i] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff);
  }
}

template <typename T>
T Get(std::span<const std::byte> in, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(in[at + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

void PutBytes(std::span<std::byte> out, std::size_t at, std::span<const std::uint8_t> bytes) {
  const auto source = std::as_bytes(bytes);
  std::copy(source.begin(), source.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
}

std::span<const std::uint8_t> GetBytes(std::span<const std::byte> in, std::size_t at,
                                       std::size_t size) {
  return {reinterpret_cast<const std::uint8_t*>(in.data()) + at, size};
}

bool AllZero(std::span<const std::uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

Error Corrupt(std::string_view what) {
  return Error{ErrorCode::kCorrupt, fmt::format("decode chunk record: {}", what)};
}

Error Incompatible(std::string_view what) {
  return Error{ErrorCode::kIncompatible, fmt::format("decode chunk record: {}", what)};
}

std::string Name(const ChunkKey& key) { return fmt::format("{}_g{}", key.ToHex(), key.group()); }

// That the bytes are a record, whole, of any version.
Result<void> CheckEnvelope(std::span<const std::byte> header) {
  if (header.size() < kChunkRecordFieldsSize) {
    return Corrupt(fmt::format("{} bytes, a header has {}", header.size(), kChunkRecordFieldsSize));
  }
  const auto magic = GetBytes(header, kMagicAt, kMagic.size());
  if (!std::equal(kMagic.begin(), kMagic.end(), magic.begin())) {
    return Corrupt(
        fmt::format("it starts with {}, not with {}", HexEncode(magic), HexEncode(kMagic)));
  }
  const auto stated = Get<std::uint64_t>(header, kHeaderChecksumAt);
  const std::uint64_t actual = Xxh3(header.first(kHeaderChecksumAt));
  if (stated != actual) {
    return Corrupt(
        fmt::format("the header states checksum {:016x} and hashes to {:016x}", stated, actual));
  }
  return {};
}

Result<void> CheckVersion(std::span<const std::byte> header) {
  const auto version = Get<std::uint16_t>(header, kVersionAt);
  if (version > kChunkRecordVersion) {
    return Incompatible(fmt::format("written by a newer format ({}; this build knows up to {})",
                                    version, kChunkRecordVersion));
  }
  if (version == 0) return Corrupt("format version 0, versions start at 1");
  const auto kind = Get<std::uint16_t>(header, kChecksumKindAt);
  if (kind != kChecksumXxh3) {
    return Incompatible(
        fmt::format("checksum algorithm {}, this build knows {} (XXH3-64)", kind, kChecksumXxh3));
  }
  return {};
}

Result<void> CheckSizes(std::span<const std::byte> header) {
  const auto header_size = Get<std::uint32_t>(header, kHeaderSizeAt);
  if (header_size != kChunkRecordHeaderSize) {
    return Corrupt(
        fmt::format("header size {}, it must be {}", header_size, kChunkRecordHeaderSize));
  }
  const auto hash_size = Get<std::uint8_t>(header, kHashSizeAt);
  if (hash_size == 0 || hash_size > ChunkKey::kMaxHashSize) {
    return Corrupt(fmt::format("key hash of {} bytes, it must have 1 to {}", hash_size,
                               ChunkKey::kMaxHashSize));
  }
  if (!AllZero(GetBytes(header, kHashSizeAt + 1, kGroupAt - kHashSizeAt - 1)) ||
      !AllZero(GetBytes(header, kHashAt + hash_size, ChunkKey::kMaxHashSize - hash_size))) {
    return Corrupt("bytes that must be zero are not");
  }
  if (Get<std::uint64_t>(header, kPayloadSizeAt) == 0) {
    return Corrupt("payload of 0 bytes, it must have 1 or more");
  }
  return {};
}

}  // namespace

ChunkRecord MakeChunkRecord(const Digest& identity, const ChunkKey& key,
                            std::span<const std::byte> payload) {
  return {.identity = identity,
          .key = key,
          .payload_size = payload.size(),
          .payload_checksum = Xxh3(payload)};
}

void EncodeChunkRecord(const ChunkRecord& record, std::span<std::byte> header) {
  TERRACE_CHECK(header.size() >= kChunkRecordFieldsSize, "no room for a chunk record");
  TERRACE_CHECK(!record.key.hash().empty(), "a chunk record needs a key");
  TERRACE_CHECK(record.payload_size >= 1, "a chunk record needs a payload");
  std::fill(header.begin(), header.end(), std::byte{0});
  PutBytes(header, kMagicAt, kMagic);
  Put(header, kVersionAt, kChunkRecordVersion);
  Put(header, kChecksumKindAt, kChecksumXxh3);
  Put(header, kHeaderSizeAt, static_cast<std::uint32_t>(kChunkRecordHeaderSize));
  PutBytes(header, kIdentityAt, record.identity);
  Put(header, kHashSizeAt, static_cast<std::uint8_t>(record.key.hash().size()));
  Put(header, kGroupAt, record.key.group());
  PutBytes(header, kHashAt, record.key.hash());
  Put(header, kPayloadSizeAt, record.payload_size);
  Put(header, kPayloadChecksumAt, record.payload_checksum);
  Put(header, kHeaderChecksumAt, Xxh3(header.first(kHeaderChecksumAt)));
}

Result<ChunkRecord> DecodeChunkRecord(std::span<const std::byte> header) {
  if (auto sound = CheckEnvelope(header); !sound) return std::move(sound).error();
  if (auto known = CheckVersion(header); !known) return std::move(known).error();
  if (auto possible = CheckSizes(header); !possible) return std::move(possible).error();
  ChunkRecord record;
  const auto identity = GetBytes(header, kIdentityAt, record.identity.size());
  std::copy(identity.begin(), identity.end(), record.identity.begin());
  record.key = ChunkKey(GetBytes(header, kHashAt, Get<std::uint8_t>(header, kHashSizeAt)),
                        Get<std::uint32_t>(header, kGroupAt));
  record.payload_size = Get<std::uint64_t>(header, kPayloadSizeAt);
  record.payload_checksum = Get<std::uint64_t>(header, kPayloadChecksumAt);
  return record;
}

Result<void> MatchChunkRecord(const ChunkRecord& record, const WantedChunk& wanted) {
  if (record.identity != wanted.identity) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("match chunk record: of the cache {}, wanted {}",
                             HexEncode(record.identity), HexEncode(wanted.identity))};
  }
  if (record.key != wanted.key) {
    return Error{ErrorCode::kCorrupt, fmt::format("match chunk record: holds chunk {}, wanted {}",
                                                  Name(record.key), Name(wanted.key))};
  }
  if (record.payload_size != wanted.payload_size) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("match chunk record: chunk {} has {} bytes, wanted {}",
                             Name(record.key), record.payload_size, wanted.payload_size)};
  }
  return {};
}

Result<void> VerifyChunkPayload(const ChunkRecord& record, std::span<const std::byte> payload) {
  if (payload.size() != record.payload_size) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("verify chunk {}: {} bytes, the record states {}", Name(record.key),
                             payload.size(), record.payload_size)};
  }
  const std::uint64_t actual = Xxh3(payload);
  if (actual != record.payload_checksum) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("verify chunk {}: it hashes to {:016x}, the record states {:016x}",
                             Name(record.key), actual, record.payload_checksum)};
  }
  return {};
}

}  // namespace terrace
