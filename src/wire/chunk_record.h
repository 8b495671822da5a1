// The record in front of every chunk that is kept outside host memory.
//
// It says whose bytes follow (identity and key), how many, and what they hash to, so that a reader
// can refuse torn, foreign and damaged bytes before anybody computes with them. The byte layout is
// in docs/formats.md. Pure functions, no I/O, thread-safe.
//
// A reader calls all three, in this order, and serves the payload only if all say ok:
//
//   auto record = DecodeChunkRecord(header);           // Is it a record, and one we can read?
//   MatchChunkRecord(record.value(), {identity, key, chunk_bytes});   // Of the chunk we want?
//   VerifyChunkPayload(record.value(), payload);       // And the bytes that were written?
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/chunk_key.h"
#include "terrace/result.h"

namespace terrace {

// What a header takes on disk: a page, so that the payload behind it is aligned for O_DIRECT.
inline constexpr std::size_t kChunkRecordHeaderSize = 4096;
// The part of it that means something; the rest is written as zeros and ignored.
inline constexpr std::size_t kChunkRecordFieldsSize = 112;
inline constexpr std::uint16_t kChunkRecordVersion = 1;

struct ChunkRecord {
  Digest identity{};
  ChunkKey key;
  std::uint64_t payload_size = 0;      // >= 1
  std::uint64_t payload_checksum = 0;  // XXH3-64 of the payload.
};

struct WantedChunk {
  const Digest& identity;
  const ChunkKey& key;
  std::uint64_t payload_size = 0;
};

// The record of `payload`. Cost: one XXH3 over it.
ChunkRecord MakeChunkRecord(const Digest& identity, const ChunkKey& key,
                            std::span<const std::byte> payload);

// Writes `record` to the front of `header` and zeros behind it.
// Pre: header.size() >= kChunkRecordFieldsSize; the key has a hash; payload_size >= 1.
void EncodeChunkRecord(const ChunkRecord& record, std::span<std::byte> header);

// kCorrupt: no record, or a damaged one. kIncompatible: sound, but of a newer format or with a
// checksum that this build does not know; leave it to who can read it.
Result<ChunkRecord> DecodeChunkRecord(std::span<const std::byte> header);

// kIncompatible: of another identity. kCorrupt: of another chunk, or of another size.
Result<void> MatchChunkRecord(const ChunkRecord& record, const WantedChunk& wanted);

// kCorrupt if `payload` is not what the record was made of. Cost: one XXH3 over it.
Result<void> VerifyChunkPayload(const ChunkRecord& record, std::span<const std::byte> payload);

}  // namespace terrace
