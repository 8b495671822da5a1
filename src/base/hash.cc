#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // The same names, for the vectors that this machine has.
#endif

#include <algorithm>
#include <array>

#include "base/check.h"

namespace terrace {
namespace {

// What is larger comes out of memory, which is read a fifth faster than the library and the
// processor alone look ahead.
constexpr std::size_t kPrefetchMin = 256 << 10;
constexpr std::size_t kPrefetchBlock = 4'096;  // At a time,
constexpr std::size_t kPrefetchAhead = 1'024;  // and so far ahead of what is hashed.
constexpr std::size_t kCacheLine = 64;

std::array<std::byte, 8> LittleEndian(std::uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
  return bytes;
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TERRACE_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1, "no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  TERRACE_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1, "SHA-256");
}

void Sha256::UpdateField(std::string_view tag, std::span<const std::byte> value) {
  Update(LittleEndian(tag.size()));
  Update(std::as_bytes(std::span(tag)));
  Update(LittleEndian(value.size()));
  Update(value);
}

void Sha256::UpdateField(std::string_view tag, std::string_view value) {
  UpdateField(tag, std::as_bytes(std::span(value)));
}

void Sha256::UpdateField(std::string_view tag, std::uint64_t value) {
  UpdateField(tag, std::span<const std::byte>(LittleEndian(value)));
}

Digest Sha256::Finish() {
  Digest digest;
  TERRACE_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1, "SHA-256");
  TERRACE_CHECK(EVP_DigestInit_ex(context_->evp, nullptr, nullptr) == 1, "SHA-256");
  return digest;
}

std::uint64_t Xxh3(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefetchMin) return XXH3_64bits(bytes.data(), bytes.size());
  Xxh3Stream hash;
  for (std::size_t at = 0; at < bytes.size(); at += kPrefetchBlock) {
    const auto block = bytes.subspan(at, std::min(kPrefetchBlock, bytes.size() - at));
    // Beyond the end it does nothing.
    for (std::size_t i = 0; i < kPrefetchBlock; i += kCacheLine) {
      __builtin_prefetch(block.data() + kPrefetchAhead + i);
    }
    hash.Update(block);
  }
  return hash.Value();
}

struct Xxh3Stream::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Reset(); }

Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::Reset() {
  TERRACE_CHECK(XXH3_64bits_reset(state_->xxh3) == XXH_OK, "XXH3 starts");
}

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  TERRACE_CHECK(XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size()) == XXH_OK, "XXH3");
}

std::uint64_t Xxh3Stream::Value() const { return XXH3_64bits_digest(state_->xxh3); }

std::string HexEncode(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (std::uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

bool HexDecode(std::string_view hex, std::span<std::uint8_t> out) {
  if (hex.size() != 2 * out.size()) return false;
  auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace terrace
