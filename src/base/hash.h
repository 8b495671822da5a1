// Cryptographic and fast hashes, from OpenSSL and xxHash, behind two functions and a builder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "terrace/chunk_key.h"

namespace terrace {

// Incremental SHA-256. Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  // Appends tag, length of the value (8 bytes, little-endian) and the value, so that fields can't
  // run into each other.
  void UpdateField(std::string_view tag, std::span<const std::byte> value);
  void UpdateField(std::string_view tag, std::string_view value);
  void UpdateField(std::string_view tag, std::uint64_t value);

  // Ends the hash; the object starts anew.
  Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// XXH3 with 64 bits: the checksum of chunk records. Not for names.
std::uint64_t Xxh3(std::span<const std::byte> bytes);

// The same of bytes that come one piece after the other. Thread-compatible.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;

  // Starts anew.
  void Reset();
  void Update(std::span<const std::byte> bytes);
  // Of all bytes since the last Reset().
  std::uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string HexEncode(std::span<const std::uint8_t> bytes);
// False if `hex` is not exactly 2 * out.size() lower-case hex digits.
bool HexDecode(std::string_view hex, std::span<std::uint8_t> out);

}  // namespace terrace
