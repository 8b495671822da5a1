#include "terrace/chunk_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace terrace {
namespace {

KeyScope Scope() {
  KeyScope scope;
  scope.identity.fill(7);
  scope.tokens_per_chunk = 4;
  return scope;
}

std::vector<Token> Tokens(int count) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

std::vector<ChunkKey> Keys(const KeyScope& scope, std::span<const Token> tokens) {
  KeyChain chain(scope);
  chain.Append(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

TEST(KeyChain, NamesOnlyWholeChunks) {
  EXPECT_EQ(Keys(Scope(), Tokens(3)).size(), 0u);
  EXPECT_EQ(Keys(Scope(), Tokens(4)).size(), 1u);
  EXPECT_EQ(Keys(Scope(), Tokens(11)).size(), 2u);
}

TEST(KeyChain, DoesNotDependOnHowTokensArrive) {
  const auto tokens = Tokens(13);
  KeyChain chain(Scope());
  for (const Token& token : tokens) chain.Append({&token, 1});
  EXPECT_EQ(std::vector(chain.keys().begin(), chain.keys().end()), Keys(Scope(), tokens));
}

TEST(KeyChain, CommitsToTheWholePrefix) {
  auto tokens = Tokens(12);
  const auto before = Keys(Scope(), tokens);
  tokens[1] = 999;
  const auto after = Keys(Scope(), tokens);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NE(before[i], after[i]) << i;
}

TEST(KeyChain, SharesThePrefixAndNothingBehindADifference) {
  auto tokens = Tokens(12);
  const auto before = Keys(Scope(), tokens);
  tokens[5] = 999;
  const auto after = Keys(Scope(), tokens);
  EXPECT_EQ(before[0], after[0]);
  EXPECT_NE(before[1], after[1]);
  EXPECT_NE(before[2], after[2]);
}

// Salt and adapter that could run into each other, every single field of the scope: all name
// different chunks.
TEST(KeyChain, EveryFieldOfTheScopeSeparates) {
  std::vector<KeyScope> scopes(8, Scope());
  scopes[1].identity[31] = 8;
  scopes[2].salt = "tenant";
  scopes[3].adapter = "tenant";
  scopes[4].salt = "ten";
  scopes[4].adapter = "ant";
  scopes[5].group = 1;
  scopes[6].tokens_per_chunk = 2;
  scopes[7].salt = std::string("tenant\0", 7);
  std::set<ChunkKey> seen;
  for (const KeyScope& scope : scopes) {
    for (const ChunkKey& key : Keys(scope, Tokens(4))) EXPECT_TRUE(seen.insert(key).second);
  }
}

// The names are a format: caches on disk live longer than a build. If this fails, the chain's
// version field must change.
TEST(KeyChain, NamesAreStable) {
  const auto keys = Keys(Scope(), Tokens(8));
  EXPECT_EQ(keys[0].ToHex(), "ca766da8666440d42484e09f15330c24b29c8396f4ea91509b285fdba029e4ad");
  EXPECT_EQ(keys[1].ToHex(), "1a4a4f578505faf803d00d342721568935a5f795e0815d86ae9ecc04a80cd6fa");
}

TEST(ChunkKey, FullHashAndGroupAreCompared) {
  std::array<std::uint8_t, 32> a{}, b{};
  b[31] = 1;
  EXPECT_NE(ChunkKey(a, 0), ChunkKey(b, 0));
  EXPECT_NE(ChunkKey(a, 0), ChunkKey(a, 1));
  EXPECT_NE(ChunkKey(std::span(a).first(16), 0), ChunkKey(a, 0));
}

TEST(ChunkKey, RefusesHashesOfImpossibleSize) {
  const std::vector<std::uint8_t> long_hash(33);
  EXPECT_FALSE(ChunkKey::Make({}, 0).ok());
  EXPECT_FALSE(ChunkKey::Make(long_hash, 0).ok());
  EXPECT_TRUE(ChunkKey::Make(std::span(long_hash).first(32), 0).ok());
}

}  // namespace
}  // namespace terrace
