// Node: host memory that processes share, and tiers that the program makes.
#include "terrace/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "terrace/secondary_tier.h"
#include "terrace/tier_host.h"
#include "tests/support/fake_tier.h"
#include "tests/support/keys.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kChunkBytes = 8192;

CacheIdentity Identity(const std::string& model = "node-test") {
  return CacheIdentity::Create({.model = model,
                                .revision = "1",
                                .dtype = "f16",
                                .layout = "test",
                                .layout_version = 1,
                                .tokens_per_chunk = 16,
                                .chunk_bytes = kChunkBytes,
                                .shard_index = 0,
                                .shard_count = 1,
                                .engine = "test"})
      .value();
}

NodeConfig Config() {
  NodeConfig config;
  config.cpu_bytes_to_use = 16 * kChunkBytes;
  config.prefault_threads = 0;
  return config;
}

HostSharing Sharing(std::optional<std::uint32_t> rank) {
  return {.name = "node-test-" + std::to_string(::getpid()),
          .rank_count = 2,
          .process_count = 3,
          .rank = rank,
          .timeout = milliseconds(20'000)};
}

// Two ranks and a scheduler, here in one process: each maps the memory for itself.
TEST(HostMemory, IsOneForRanksAndScheduler) {
  auto first = HostMemory::CreateShared(Config(), Identity(), Sharing(0));
  ASSERT_TRUE(first.ok());
  auto second = HostMemory::Join(Config(), Identity(), Sharing(1));
  ASSERT_TRUE(second.ok());
  auto scheduler = HostMemory::Join(Config(), Identity(), Sharing(std::nullopt));
  ASSERT_TRUE(scheduler.ok());
  for (auto* memory : {&first, &second, &scheduler}) {
    EXPECT_TRUE(memory->value()->AwaitAll().ok());
  }
  EXPECT_EQ(first.value()->rank_count(), 2u);

  std::fill_n(first.value()->rank_slots(0).Slot(SlotId(3)).data(), kChunkBytes / 2, std::byte{1});
  std::fill_n(second.value()->rank_slots(1).Slot(SlotId(3)).data(), kChunkBytes / 2, std::byte{2});
  const auto chunk = scheduler.value()->slots().Slot(SlotId(3));
  EXPECT_EQ(std::count(chunk.begin(), chunk.begin() + kChunkBytes / 2, std::byte{1}),
            static_cast<std::ptrdiff_t>(kChunkBytes / 2));
  EXPECT_EQ(std::count(chunk.begin() + kChunkBytes / 2, chunk.end(), std::byte{2}),
            static_cast<std::ptrdiff_t>(kChunkBytes / 2));

  std::shared_ptr<HostMemory> shared = std::move(scheduler).value();
  auto node = Node::Create(Config(), Identity(), shared);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node.value()->host_slots().base, shared->slots().base);
  EXPECT_EQ(node.value()->host_slots().slot_count, 16u);
}

// Two engines were given one name: a rank of the other one takes no place, and harms nobody.
TEST(HostMemory, ARankOfAnotherEngineIsRefusedAndTheSetUpGoesOn) {
  const auto of = [](std::optional<std::uint32_t> rank, const std::string& instance) {
    auto sharing = Sharing(rank);
    sharing.name += "-twice";
    sharing.instance = instance;
    return sharing;
  };
  auto first = HostMemory::CreateShared(Config(), Identity(), of(0, "a"));
  ASSERT_TRUE(first.ok());
  const auto stranger = HostMemory::Join(Config(), Identity(), of(1, "b"));
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(stranger.error().message,
              AllOf(HasSubstr("-twice\""), HasSubstr("is rank 1 of another engine")));
  auto second = HostMemory::Join(Config(), Identity(), of(1, "a"));
  ASSERT_TRUE(second.ok()) << second.error().message;
  auto scheduler = HostMemory::Join(Config(), Identity(), of(std::nullopt, ""));
  ASSERT_TRUE(scheduler.ok()) << scheduler.error().message;
  for (auto* memory : {&first, &second, &scheduler}) {
    EXPECT_TRUE(memory->value()->AwaitAll().ok());
  }
}

TEST(HostMemory, SaysWhatDiffersAndWhoDidNotCome) {
  auto sharing = Sharing(0);
  sharing.name += "-differs";
  auto creator = HostMemory::CreateShared(Config(), Identity(), sharing);
  ASSERT_TRUE(creator.ok());
  sharing.rank = 1;
  const auto other = HostMemory::Join(Config(), Identity("another"), sharing);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kIncompatible);
  sharing.timeout = milliseconds(50);
  sharing.name += "-nobody";
  const auto alone = HostMemory::Join(Config(), Identity(), sharing);
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.error().code, ErrorCode::kUnavailable);
}

TEST(Node, RefusesMemoryOfAnotherChunkSize) {
  NodeConfig config = Config();
  CacheIdentityFields fields = Identity().fields();
  fields.chunk_bytes = kChunkBytes / 2;
  std::shared_ptr<HostMemory> memory =
      HostMemory::Create(config, CacheIdentity::Create(fields).value()).value();
  const auto node = Node::Create(config, Identity(), memory);
  ASSERT_FALSE(node.ok());
  EXPECT_EQ(node.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(node.error().message, HasSubstr("4096 bytes, one of its identity 8192"));
}

// With peers a worker is to hash what it stores.
TEST(Node, KeepsChecksumsForPeers) {
  NodeConfig config = Config();
  EXPECT_EQ(Node::Create(config, Identity()).value()->host_slots().checksums, nullptr);
  TierConfig peer;
  peer.type = TierConfig::Type::kPeer;
  peer.peer.port = 0;
  config.secondary_tiers.push_back(peer);
  const auto node = Node::Create(config, Identity());
  ASSERT_TRUE(node.ok()) << node.error().message;
  EXPECT_NE(node.value()->host_slots().checksums, nullptr);
}

TierConfig Custom(std::function<Result<std::unique_ptr<SecondaryTier>>(TierHost&)> make) {
  TierConfig tier;
  tier.type = TierConfig::Type::kCustom;
  tier.custom = {"mine", LoadSource::kMemory, std::move(make)};
  return tier;
}

TEST(Node, HasTiersThatTheProgramMakes) {
  NodeConfig config = Config();
  testing_support::FakeTier* made = nullptr;
  config.secondary_tiers.push_back(Custom([&](TierHost& host) {
    EXPECT_EQ(host.identity().fields().model, "node-test");
    auto tier = std::make_unique<testing_support::FakeTier>();
    made = tier.get();
    return Result<std::unique_ptr<SecondaryTier>>(std::move(tier));
  }));
  auto node = Node::Create(config, Identity());
  ASSERT_TRUE(node.ok());
  ASSERT_NE(made, nullptr);
  OffloadingManager& manager = node.value()->manager();
  ManagerRegion region(manager);
  EXPECT_EQ(manager.Stats().tiers.size(), 1u);
}

TEST(Node, SaysWhyATierOfTheProgramDoesNotStart) {
  NodeConfig config = Config();
  config.secondary_tiers.push_back(Custom([](TierHost&) {
    return Result<std::unique_ptr<SecondaryTier>>(Error{ErrorCode::kUnavailable, "no luck"});
  }));
  const auto node = Node::Create(config, Identity());
  ASSERT_FALSE(node.ok());
  EXPECT_EQ(node.error().message, "start secondary_tiers[0]: no luck");

  config.secondary_tiers[0].custom.make = nullptr;
  const auto none = Node::Create(config, Identity());
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("secondary_tiers[0].custom.make: must not be empty"));
}

}  // namespace
}  // namespace terrace
