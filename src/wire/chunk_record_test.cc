#include "wire/chunk_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/hash.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr std::size_t kHeaderChecksumAt = 104;

Digest Identity() {
  Digest identity;
  for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<std::uint8_t>(i + 1);
  return identity;
}

ChunkKey Key() {
  std::array<std::uint8_t, 32> hash;
  for (std::size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<std::uint8_t>(0xa0 + i);
  return ChunkKey(hash, 7);
}

std::vector<std::byte> Payload() { return std::vector<std::byte>(1000, std::byte{0x5c}); }

std::vector<std::byte> Header() {
  std::vector<std::byte> header(kChunkRecordHeaderSize, std::byte{0xff});
  EncodeChunkRecord(MakeChunkRecord(Identity(), Key(), Payload()), header);
  return header;
}

// A header that a future or a faulty encoder could have written: changed, and hashed again.
std::vector<std::byte> Rehashed(std::size_t at, std::vector<std::uint8_t> bytes) {
  auto header = Header();
  for (std::size_t i = 0; i < bytes.size(); ++i) header[at + i] = std::byte{bytes[i]};
  const std::uint64_t checksum = Xxh3(std::span(header).first(kHeaderChecksumAt));
  for (std::size_t i = 0; i < 8; ++i) {
    header[kHeaderChecksumAt + i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
  }
  return header;
}

void ExpectError(const Result<ChunkRecord>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(text));
}

void ExpectError(const Result<void>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(text));
}

TEST(ChunkRecord, ReadsWhatItWrote) {
  const auto record = DecodeChunkRecord(Header());
  ASSERT_TRUE(record.ok()) << record.error().message;
  EXPECT_EQ(record.value().identity, Identity());
  EXPECT_EQ(record.value().key, Key());
  EXPECT_EQ(record.value().payload_size, 1000u);
  EXPECT_TRUE(MatchChunkRecord(record.value(), {Identity(), Key(), 1000}).ok());
  EXPECT_TRUE(VerifyChunkPayload(record.value(), Payload()).ok());
}

TEST(ChunkRecord, KeepsShortHashes) {
  const ChunkKey key(std::vector<std::uint8_t>{1}, 0xffffffffu);
  std::vector<std::byte> header(kChunkRecordFieldsSize);
  EncodeChunkRecord(MakeChunkRecord(Identity(), key, Payload()), header);
  EXPECT_EQ(DecodeChunkRecord(header).value().key, key);
}

// The layout is a format: files live longer than a build. If this fails, the version must change.
TEST(ChunkRecord, LayoutIsStable) {
  const auto header = Header();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(header.data());
  EXPECT_EQ(HexEncode({bytes, kChunkRecordFieldsSize}),
            "54524348554e4b1a0100010000100000"
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
            "2000000007000000"
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
            "e803000000000000"
            "1d3c1ddb3a9a218f1213808622390b8e");
  for (std::size_t i = kChunkRecordFieldsSize; i < header.size(); ++i) {
    ASSERT_EQ(header[i], std::byte{0}) << i;
  }
}

TEST(ChunkRecord, CatchesEveryFlippedBitOfTheHeader) {
  for (std::size_t bit = 0; bit < 8 * kChunkRecordFieldsSize; ++bit) {
    auto header = Header();
    header[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto record = DecodeChunkRecord(header);
    ASSERT_FALSE(record.ok()) << bit;
    EXPECT_EQ(record.error().code, ErrorCode::kCorrupt) << bit;
  }
}

TEST(ChunkRecord, RefusesEveryTruncation) {
  const auto header = Header();
  for (std::size_t size = 0; size < kChunkRecordFieldsSize; ++size) {
    ExpectError(DecodeChunkRecord(std::span(header).first(size)), ErrorCode::kCorrupt,
                std::to_string(size) + " bytes, a header has 112");
  }
}

TEST(ChunkRecord, TellsWhatIsNoRecord) {
  ExpectError(DecodeChunkRecord(std::vector<std::byte>(4096)), ErrorCode::kCorrupt,
              "starts with 0000000000000000, not with 54524348554e4b1a");
  auto header = Header();
  header[20] ^= std::byte{1};
  ExpectError(DecodeChunkRecord(header), ErrorCode::kCorrupt, "the header states checksum");
}

TEST(ChunkRecord, TellsANewerFormatFromDamage) {
  ExpectError(DecodeChunkRecord(Rehashed(8, {2, 0})), ErrorCode::kIncompatible,
              "newer format (2; this build knows up to 1)");
  ExpectError(DecodeChunkRecord(Rehashed(8, {0, 1})), ErrorCode::kIncompatible, "(256;");
  ExpectError(DecodeChunkRecord(Rehashed(10, {2, 0})), ErrorCode::kIncompatible,
              "checksum algorithm 2");
}

TEST(ChunkRecord, RefusesImpossibleFields) {
  ExpectError(DecodeChunkRecord(Rehashed(8, {0, 0})), ErrorCode::kCorrupt, "format version 0");
  ExpectError(DecodeChunkRecord(Rehashed(12, {0, 32})), ErrorCode::kCorrupt, "header size 8192");
  ExpectError(DecodeChunkRecord(Rehashed(48, {0})), ErrorCode::kCorrupt, "key hash of 0 bytes");
  ExpectError(DecodeChunkRecord(Rehashed(48, {33})), ErrorCode::kCorrupt, "key hash of 33 bytes");
  ExpectError(DecodeChunkRecord(Rehashed(48, {31})), ErrorCode::kCorrupt, "must be zero");
  ExpectError(DecodeChunkRecord(Rehashed(49, {1})), ErrorCode::kCorrupt, "must be zero");
  ExpectError(DecodeChunkRecord(Rehashed(88, {0, 0})), ErrorCode::kCorrupt, "payload of 0 bytes");
}

TEST(ChunkRecord, RefusesWhatWasNotWanted) {
  const ChunkRecord record = MakeChunkRecord(Identity(), Key(), Payload());
  Digest other_identity = Identity();
  other_identity[31] ^= 1;
  ExpectError(MatchChunkRecord(record, {other_identity, Key(), 1000}), ErrorCode::kIncompatible,
              "wanted " + HexEncode(other_identity));
  const ChunkKey other_group(Key().hash(), 8);
  ExpectError(MatchChunkRecord(record, {Identity(), other_group, 1000}), ErrorCode::kCorrupt,
              "holds chunk " + Key().ToHex() + "_g7, wanted " + Key().ToHex() + "_g8");
  const ChunkKey other_hash(Key().hash().first(31), 7);
  ExpectError(MatchChunkRecord(record, {Identity(), other_hash, 1000}), ErrorCode::kCorrupt,
              "holds chunk");
  ExpectError(MatchChunkRecord(record, {Identity(), Key(), 1001}), ErrorCode::kCorrupt,
              "has 1000 bytes, wanted 1001");
}

TEST(ChunkRecord, CatchesDamagedPayload) {
  const ChunkRecord record = MakeChunkRecord(Identity(), Key(), Payload());
  auto payload = Payload();
  ExpectError(VerifyChunkPayload(record, std::span(payload).first(999)), ErrorCode::kCorrupt,
              "999 bytes, the record states 1000");
  for (const std::size_t at : {0, 500, 999}) {
    payload = Payload();
    payload[at] ^= std::byte{0x80};
    ExpectError(VerifyChunkPayload(record, payload), ErrorCode::kCorrupt, "it hashes to");
  }
}

TEST(ChunkRecordDeathTest, RefusesToEncodeNonsense) {
  std::vector<std::byte> small(kChunkRecordFieldsSize - 1);
  std::vector<std::byte> header(kChunkRecordHeaderSize);
  EXPECT_DEATH(EncodeChunkRecord(MakeChunkRecord(Identity(), Key(), Payload()), small), "no room");
  EXPECT_DEATH(EncodeChunkRecord(MakeChunkRecord(Identity(), {}, Payload()), header), "key");
  EXPECT_DEATH(EncodeChunkRecord(MakeChunkRecord(Identity(), Key(), {}), header), "payload");
}

}  // namespace
}  // namespace terrace
