#include "base/hashed_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/hash.h"

namespace terrace {
namespace {

constexpr std::size_t kRoom = 3 << 20;

std::vector<std::byte> RandomBytes() {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(kRoom);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct AlignedFree {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(4096)); }
};
std::unique_ptr<std::byte[], AlignedFree> AlignedRoom() {
  return std::unique_ptr<std::byte[], AlignedFree>(
      static_cast<std::byte*>(::operator new[](kRoom, std::align_val_t(4096))));
}

// The library is the judge, for every size around a stripe's and a block's end.
TEST(HashedCopy, CopiesAllAndSaysTheirHash) {
  const auto from = RandomBytes();
  const auto to = AlignedRoom();
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size <= 4'400; ++size) sizes.push_back(size);
  for (const std::size_t size : {5'000U, 65'536U, (256U << 10) - 1, 256U << 10, (256U << 10) + 1,
                                 1'000'003U, 2U << 20, (2U << 20) + 1}) {
    sizes.push_back(size);
  }
  for (const std::size_t size : sizes) {
    for (const std::size_t shift : {0U, 32U, 1U}) {
      const auto source = std::span(from).subspan(shift, size);
      const std::span<std::byte> target(to.get() + shift, size);
      std::fill_n(to.get(), size + 128, std::byte{0xee});
      ASSERT_EQ(CopyHashed(target, source), Xxh3(source)) << size << " bytes, shift " << shift;
      ASSERT_TRUE(std::equal(source.begin(), source.end(), target.begin())) << size;
      ASSERT_EQ(to[shift + size], std::byte{0xee}) << "nothing behind it is touched";
      std::fill_n(to.get(), size, std::byte{0xee});
      ASSERT_EQ(CopyHashedPortably(target, source), Xxh3(source)) << size;
      ASSERT_TRUE(std::equal(source.begin(), source.end(), target.begin())) << size;
    }
  }
}

TEST(HashedCopy, AStreamHashesLikeTheWhole) {
  const auto bytes = RandomBytes();
  Xxh3Stream hash;
  for (const std::size_t piece : {1U, 64U, 1'000U, 65'536U}) {
    hash.Reset();
    const auto whole = std::span(bytes).first(300'001);
    for (std::size_t at = 0; at < whole.size(); at += piece) {
      hash.Update(whole.subspan(at, std::min(piece, whole.size() - at)));
    }
    EXPECT_EQ(hash.Value(), Xxh3(whole)) << piece;
  }
}

}  // namespace
}  // namespace terrace
