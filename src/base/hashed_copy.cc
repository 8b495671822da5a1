#include "base/hashed_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

// For XXH3's published constants, and its last step; the vector part below is our own, since the
// library's reads memory and never says what it read.
#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace {
namespace {

constexpr std::size_t kStripe = 64;    // What XXH3 takes in at a time.
constexpr std::size_t kBlock = 1'024;  // 16 stripes; then its state is stirred.
constexpr std::size_t kStripes = kBlock / kStripe;
constexpr std::size_t kVectorMin = 2 * kBlock;

#if defined(__x86_64__)

// Half of XXH3's state. The names of its steps are those of its specification.
struct Half {
  __m256i value;

  __attribute__((target("avx2"), always_inline)) void Accumulate(__m256i data,
                                                                 const unsigned char* secret) {
    const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret));
    const __m256i keyed = _mm256_xor_si256(data, key);
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
    value = _mm256_add_epi64(product, _mm256_add_epi64(value, swapped));
  }
  __attribute__((target("avx2"), always_inline)) void Scramble(const unsigned char* secret) {
    const __m256i prime = _mm256_set1_epi32(static_cast<int>(XXH_PRIME32_1));
    const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret));
    const __m256i keyed =
        _mm256_xor_si256(_mm256_xor_si256(value, _mm256_srli_epi64(value, 47)), key);
    const __m256i low = _mm256_mul_epu32(keyed, prime);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
    value = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
  }
};

struct Stripe {
  __m256i low, high;

  __attribute__((target("avx2"), always_inline)) static Stripe Load(const std::byte* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
  }
  __attribute__((target("avx2"), always_inline)) void Stream(std::byte* to) const {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
  }
  __attribute__((target("avx2"), always_inline)) void Store(std::byte* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), high);
  }
};

__attribute__((target("avx2"))) std::uint64_t CopyHashedAvx2(std::byte* to, const std::byte* from,
                                                             std::size_t size) {
  // Farther than the processor looks ahead by itself while it also writes.
  constexpr std::size_t kPrefetchAhead = 4'096;
  constexpr std::size_t kSecretSize = sizeof(XXH3_kSecret);
  const unsigned char* const secret = XXH3_kSecret;
  alignas(32) XXH64_hash_t state[8] = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                                       XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};
  Half low{_mm256_load_si256(reinterpret_cast<const __m256i*>(state))};
  Half high{_mm256_load_si256(reinterpret_cast<const __m256i*>(state) + 1)};
  // What is left behind the whole blocks, 1 to kBlock bytes, with the stripe before it in front:
  // XXH3's last stripe is the last 64 bytes, wherever it begins.
  alignas(32) std::array<std::byte, kStripe + kBlock> end;
  const std::size_t blocks = (size - 1) / kBlock;
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t i = 0; i < kStripes; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchAhead), _MM_HINT_T0);
      const Stripe stripe = Stripe::Load(from);
      stripe.Stream(to);
      low.Accumulate(stripe.low, secret + 8 * i);
      high.Accumulate(stripe.high, secret + 8 * i + 32);
      if (i + 1 == kStripes && block + 1 == blocks) stripe.Store(end.data());
      from += kStripe;
      to += kStripe;
    }
    low.Scramble(secret + kSecretSize - kStripe);
    high.Scramble(secret + kSecretSize - kStripe + 32);
  }
  const std::size_t rest = size - blocks * kBlock;
  std::memcpy(end.data() + kStripe, from, rest);
  std::memcpy(to, end.data() + kStripe, rest);
  _mm_sfence();  // What is streamed is seen by others before what is written after this.
  for (std::size_t i = 0; i < (rest - 1) / kStripe; ++i) {
    const Stripe stripe = Stripe::Load(end.data() + kStripe + i * kStripe);
    low.Accumulate(stripe.low, secret + 8 * i);
    high.Accumulate(stripe.high, secret + 8 * i + 32);
  }
  const Stripe last = Stripe::Load(end.data() + rest);
  low.Accumulate(last.low, secret + kSecretSize - kStripe - 7);
  high.Accumulate(last.high, secret + kSecretSize - kStripe - 7 + 32);
  _mm256_store_si256(reinterpret_cast<__m256i*>(state), low.value);
  _mm256_store_si256(reinterpret_cast<__m256i*>(state) + 1, high.value);
  return XXH3_mergeAccs(state, secret + 11, size * XXH_PRIME64_1);
}

bool CanUseAvx2(const std::byte* to) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 && reinterpret_cast<std::uintptr_t>(to) % 32 == 0;
}

#endif

}  // namespace

std::uint64_t CopyHashed(std::span<std::byte> to, std::span<const std::byte> from) {
  TERRACE_CHECK(to.size() == from.size(), "a copy is as large as its source");
#if defined(__x86_64__)
  if (to.size() >= kVectorMin && CanUseAvx2(to.data())) {
    return CopyHashedAvx2(to.data(), from.data(), from.size());
  }
#endif
  return CopyHashedPortably(to, from);
}

std::uint64_t CopyHashedPortably(std::span<std::byte> to, std::span<const std::byte> from) {
  // Fits the first cache, so that the second and third access are cheap.
  alignas(64) std::array<std::byte, 8'192> piece;
  Xxh3Stream hash;
  while (!from.empty()) {
    const std::size_t size = std::min(piece.size(), from.size());
    std::memcpy(piece.data(), from.data(), size);
    hash.Update(std::span(piece).first(size));
    std::memcpy(to.data(), piece.data(), size);
    from = from.subspan(size);
    to = to.subspan(size);
  }
  return hash.Value();
}

}  // namespace terrace
