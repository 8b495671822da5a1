#include "terrace/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/lru_policy.h"
#include "terrace/node_config.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

std::unique_ptr<EvictionPolicy> MakeLru(std::uint32_t slot_count) {
  return std::make_unique<LruPolicy>(slot_count);
}

TEST(EvictionPolicies, AreMadeByName) {
  EXPECT_THAT(EvictionPolicyNames(), IsSupersetOf({"lru", "arc", "s3fifo", "sieve"}));
  for (const std::string& name : EvictionPolicyNames()) {
    EXPECT_TRUE(MakeEvictionPolicy(name, 8).ok()) << name;
  }
}

TEST(EvictionPolicies, AnUnknownNameIsAnErrorThatListsTheNames) {
  const auto policy = MakeEvictionPolicy("clock", 8);
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(policy.error().message,
              HasSubstr(R"("clock": there are "lru", "arc", "s3fifo", "sieve")"));
}

// A program's own policy works wherever a built-in one does, the configuration included.
TEST(EvictionPolicies, AProgramsOwnCanBeNamedOnceRegistered) {
  const char* const json = R"({"cpu_bytes_to_use": 1, "eviction_policy": "test_own"})";
  EXPECT_FALSE(ParseNodeConfig(json).ok());
  ASSERT_TRUE(RegisterEvictionPolicy("test_own", MakeLru).ok());
  EXPECT_TRUE(MakeEvictionPolicy("test_own", 8).ok());
  const auto config = ParseNodeConfig(json);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config.value().eviction_policy, "test_own");
}

TEST(EvictionPolicies, ATakenNameNoNameAndNoFactoryAreErrors) {
  for (const char* name : {"lru", "sieve"}) {
    const auto taken = RegisterEvictionPolicy(name, MakeLru);
    ASSERT_FALSE(taken.ok());
    EXPECT_THAT(taken.error().message, HasSubstr(name));
  }
  ASSERT_TRUE(RegisterEvictionPolicy("test_twice", MakeLru).ok());
  EXPECT_FALSE(RegisterEvictionPolicy("test_twice", MakeLru).ok());
  EXPECT_FALSE(RegisterEvictionPolicy("", MakeLru).ok());
  EXPECT_FALSE(RegisterEvictionPolicy("test_empty", {}).ok());
}

TEST(EvictionPolicies, AFactoryThatReturnsNothingIsAnError) {
  ASSERT_TRUE(RegisterEvictionPolicy("test_null", [](std::uint32_t) { return nullptr; }).ok());
  EXPECT_FALSE(MakeEvictionPolicy("test_null", 8).ok());
}

}  // namespace
}  // namespace terrace
