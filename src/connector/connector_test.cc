#include "terrace/connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "manager/tiering_manager.h"
#include "terrace/eviction_policy.h"
#include "tests/support/fake_tier.h"
#include "tests/support/keys.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::FakeTier;
using testing_support::Key;
using testing_support::Keys;
using Status = MatchedTokens::Status;

constexpr RequestId kA{1};
constexpr RequestId kB{2};
constexpr std::uint32_t kChunk = 16;

// An engine in miniature: requests with blocks, steps, and copies that end when the test says so.
class ConnectorTest : public testing::Test {
 protected:
  void Make(std::uint32_t slots, ConnectorOptions options = {.tokens_per_chunk = kChunk}) {
    auto tier = std::make_unique<FakeTier>();
    tier_ = tier.get();
    std::vector<std::unique_ptr<SecondaryTier>> tiers;
    tiers.push_back(std::move(tier));
    manager_ = std::make_unique<TieringManager>(
        std::make_unique<HostTier>(slots, MakeEvictionPolicy("lru", slots).value(),
                                   EventRecording::kOff),
        std::move(tiers));
    connector_ = Connector::Create(*manager_, options).value();
  }
  static std::vector<BlockId> Blocks(std::int64_t first, std::size_t count) {
    std::vector<BlockId> blocks;
    for (std::size_t i = 0; i < count; ++i)
      blocks.emplace_back(first + static_cast<std::int64_t>(i));
    return blocks;
  }
  void Begin(RequestId id, std::size_t chunks, std::uint64_t first_key = 1,
             RequestOptions options = {}) {
    options.prompt_tokens = static_cast<std::uint32_t>(chunks) * kChunk;
    connector_->OnNewRequest(id, options);
    connector_->AppendKeys(id, Keys(first_key, chunks));
  }
  // A step that computes `tokens` tokens of one request behind `computed`, with new blocks.
  StepPlan Step(RequestId id, std::uint32_t computed, std::uint32_t tokens,
                std::span<const BlockId> blocks) {
    const ScheduledRequest scheduled{id, blocks, computed, tokens};
    return connector_->BuildStep({.scheduled = {&scheduled, 1}, .preempted = {}});
  }
  StepPlan EmptyStep() { return connector_->BuildStep({}); }
  void Done(const EngineJob& job, CopyOutcome outcome = CopyOutcome::kOk) {
    TransferResult result;
    result.id = job.id;
    result.request = job.request;
    result.outcome = outcome;
    connector_->OnTransfersDone({&result, 1});
  }
  // Stores `chunks` chunks as request `id` and forgets the request.
  void StoreAll(RequestId id, std::size_t chunks, std::uint64_t first_key = 1) {
    Begin(id, chunks, first_key);
    const auto tokens = static_cast<std::uint32_t>(chunks) * kChunk;
    connector_->UpdateAfterAlloc(id, {}, 0, 0);
    const StepPlan plan = Step(id, 0, tokens, Blocks(0, chunks));
    for (const EngineJob& job : plan.stores) Done(job);
    connector_->OnRequestFinished(id, tokens);
    EmptyStep();
    while (!tier_->stores.empty()) tier_->FinishStore();
    EmptyStep();
  }
  ManagerStats Stats() {
    ManagerRegion region(*manager_);
    return manager_->Stats();
  }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<TieringManager> manager_;
  std::unique_ptr<Connector> connector_;
};

TEST_F(ConnectorTest, RefusesImpossibleOptions) {
  Make(1);
  EXPECT_FALSE(Connector::Create(*manager_, {.tokens_per_chunk = 0}).ok());
  EXPECT_FALSE(Connector::Create(*manager_, {.tokens_per_chunk = 16, .blocks_per_chunk = 3}).ok());
}

TEST_F(ConnectorTest, StoresWholeChunksOnceTheyAreComputed) {
  Make(8);
  Begin(kA, 3);
  StepPlan plan = Step(kA, 0, kChunk + 5, Blocks(100, 2));
  ASSERT_THAT(plan.stores, SizeIs(1));
  ASSERT_THAT(plan.stores[0].chunks, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks[0].blocks, ElementsAre(BlockId(100)));
  plan = Step(kA, kChunk + 5, kChunk - 5, {});
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks[0].blocks, ElementsAre(BlockId(101)));
}

TEST_F(ConnectorTest, LoadsWhatIsThereAndStoresOnlyTheRest) {
  Make(8);
  StoreAll(kA, 2);
  Begin(kB, 4);
  const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, 4 * kChunk - 1);
  EXPECT_EQ(match.status, Status::kKnown);
  EXPECT_EQ(match.tokens, 2 * kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(50, 2), 0, match.tokens);
  EXPECT_EQ(connector_->GetLoadedTokens(kB).by_source[0], 2 * kChunk);
  StepPlan plan = EmptyStep();
  ASSERT_THAT(plan.loads, SizeIs(1));
  ASSERT_THAT(plan.loads[0].chunks, SizeIs(2));
  EXPECT_THAT(plan.loads[0].chunks[1].blocks, ElementsAre(BlockId(51)));
  EXPECT_EQ(Stats().pinned_chunks, 2u);
  Done(plan.loads[0]);
  EXPECT_EQ(Stats().pinned_chunks, 0u);
  plan = Step(kB, 2 * kChunk, 2 * kChunk, Blocks(52, 2));
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks, SizeIs(2));
}

TEST_F(ConnectorTest, AMatchEndsAtTheLimitAndAtTheFirstGap) {
  Make(8);
  StoreAll(kA, 3);
  Begin(kB, 3);
  EXPECT_EQ(connector_->GetMatchedTokens(kB, 0, 3 * kChunk).tokens, 3 * kChunk);
  EXPECT_EQ(connector_->GetMatchedTokens(kB, 0, 3 * kChunk - 1).tokens, 2 * kChunk);
  EXPECT_EQ(connector_->GetMatchedTokens(kB, kChunk, 3 * kChunk).tokens, 2 * kChunk);
  EXPECT_EQ(connector_->GetMatchedTokens(kB, 3 * kChunk, 3 * kChunk).tokens, 0u);
  connector_->AbandonStep();
  Begin(RequestId(3), 0);
  connector_->AppendKeys(RequestId(3), std::vector{Key(1), Key(99), Key(3)});
  EXPECT_EQ(connector_->GetMatchedTokens(RequestId(3), 0, 3 * kChunk).tokens, kChunk);
  connector_->AbandonStep();
}

// A chunk behind a gap can't be used: it must not be fetched either.
TEST_F(ConnectorTest, NothingBehindAMissIsPromoted) {
  Make(8);
  tier_->chunks = {Key(2), Key(3)};
  Begin(kA, 3);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 3 * kChunk).tokens, 0u);
  EmptyStep();
  EXPECT_THAT(tier_->loads, IsEmpty());
}

TEST_F(ConnectorTest, AChunkOnItsWayIsWaitedFor) {
  Make(8);
  tier_->chunks = {Key(1), Key(2)};
  Begin(kA, 2);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 2 * kChunk).status, Status::kLater);
  EmptyStep();
  ASSERT_THAT(tier_->loads, SizeIs(1));
  EXPECT_TRUE(connector_->HasPendingWork());
  tier_->FinishLoad();
  EmptyStep();
  const MatchedTokens match = connector_->GetMatchedTokens(kA, 0, 2 * kChunk);
  EXPECT_EQ(match.status, Status::kKnown);
  EXPECT_EQ(match.tokens, 2 * kChunk);
  connector_->UpdateAfterAlloc(kA, Blocks(0, 2), 0, match.tokens);
  EXPECT_EQ(connector_->GetLoadedTokens(kA).by_source[static_cast<int>(LoadSource::kDisk)],
            2 * kChunk);
  Done(EmptyStep().loads[0]);
}

TEST_F(ConnectorTest, AFailedPromotionEndsTheWait) {
  Make(8);
  tier_->chunks = {Key(1)};
  Begin(kA, 1);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, kChunk).status, Status::kLater);
  EmptyStep();
  tier_->chunks = {};
  tier_->FinishLoad({CopyOutcome::kFailed});
  EmptyStep();
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, kChunk).status, Status::kKnown);
  connector_->AbandonStep();
}

TEST_F(ConnectorTest, BackPressureIsTriedAgainNextStep) {
  Make(1);
  Begin(kA, 1, 1);
  Begin(kB, 1, 50);
  const StepPlan first = Step(kA, 0, kChunk, Blocks(0, 1));
  ASSERT_THAT(first.stores, SizeIs(1));
  EXPECT_THAT(Step(kB, 0, kChunk, Blocks(10, 1)).stores, IsEmpty());
  EXPECT_EQ(Stats().store_refusals, 1u);
  Done(first.stores[0]);
  tier_->FinishStore();
  const StepPlan second = Step(kB, kChunk, 1, Blocks(11, 1));
  ASSERT_THAT(second.stores, SizeIs(1));
  EXPECT_THAT(second.stores[0].chunks[0].blocks, ElementsAre(BlockId(10)));
}

// A backlog larger than host memory must not wait until it fits whole: it only grows.
TEST_F(ConnectorTest, ABacklogIsStoredAsFarAsItFitsFrontFirst) {
  Make(4);
  Begin(kA, 6);
  const StepPlan first = Step(kA, 0, 6 * kChunk, Blocks(0, 6));
  ASSERT_THAT(first.stores, SizeIs(1));
  ASSERT_THAT(first.stores[0].chunks, SizeIs(3));
  EXPECT_THAT(first.stores[0].chunks[0].blocks, ElementsAre(BlockId(0)));
  const StepPlan second = Step(kA, 6 * kChunk, 1, {});
  ASSERT_THAT(second.stores, SizeIs(1));
  EXPECT_THAT(second.stores[0].chunks[0].blocks, ElementsAre(BlockId(3)));
  Done(first.stores[0]);
  Done(second.stores[0]);
  while (!tier_->stores.empty()) tier_->FinishStore();
  EXPECT_THAT(Step(kA, 6 * kChunk + 1, 1, {}).stores, IsEmpty()) << "evicted its own prefix";
}

// What the engine had in a prefix cache of its own is offered like what it computed.
TEST_F(ConnectorTest, ChunksThatTheEngineHadItselfAreStoredToo) {
  Make(8);
  Begin(kA, 2);
  connector_->UpdateAfterAlloc(kA, Blocks(0, 2), 2 * kChunk, 0);
  const StepPlan plan = Step(kA, 2 * kChunk, 1, {});
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks, SizeIs(2));
}

TEST_F(ConnectorTest, GeneratedTokensAreStoredOnlyIfAsked) {
  for (const bool prompt_only : {true, false}) {
    Make(8, {.tokens_per_chunk = kChunk, .offload_prompt_only = prompt_only});
    connector_->OnNewRequest(kA, {.prompt_tokens = kChunk});
    connector_->AppendKeys(kA, Keys(1, 2));
    Done(Step(kA, 0, kChunk, Blocks(0, 1)).stores.at(0));
    EXPECT_THAT(Step(kA, kChunk, kChunk, Blocks(1, 1)).stores, SizeIs(prompt_only ? 0 : 1));
  }
}

TEST_F(ConnectorTest, AFinishedRequestStoresItsLastChunksAndIsThenForgotten) {
  Make(8, {.tokens_per_chunk = kChunk, .offload_prompt_only = false});
  Begin(kA, 2);
  Done(Step(kA, 0, kChunk, Blocks(0, 2)).stores.at(0));
  connector_->OnRequestFinished(kA, 2 * kChunk);
  EXPECT_TRUE(connector_->HasTransfers(kA));
  EXPECT_TRUE(connector_->HasPendingWork());
  const StepPlan plan = EmptyStep();
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_TRUE(connector_->HasTransfers(kA));
  Done(plan.stores[0]);
  EXPECT_FALSE(connector_->HasTransfers(kA));
  Begin(kA, 1);  // The id is free again.
}

TEST_F(ConnectorTest, AFailedLoadUnpinsAndCountsAsNothingLoaded) {
  Make(8);
  StoreAll(kA, 1);
  Begin(kB, 2);
  const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(0, 1), 0, match.tokens);
  Done(EmptyStep().loads.at(0), CopyOutcome::kFailed);
  EXPECT_EQ(connector_->GetLoadedTokens(kB).total(), 0u);
  EXPECT_EQ(Stats().pinned_chunks, 0u);
}

TEST_F(ConnectorTest, AFailedStoreLeavesTheChunkAbsent) {
  Make(8);
  Begin(kA, 1);
  Done(Step(kA, 0, kChunk, Blocks(0, 1)).stores.at(0), CopyOutcome::kFailed);
  EXPECT_THAT(tier_->stores, IsEmpty());
  EXPECT_EQ(Stats().writing_chunks, 0u);
  EXPECT_EQ(Stats().ready_chunks, 0u);
}

TEST_F(ConnectorTest, BlocksGivenAwayWhileAStoreReadsThemAreFlushedFirst) {
  Make(8);
  Begin(kA, 1, 1);
  Begin(kB, 1, 50);
  const StepPlan first = Step(kA, 0, kChunk, Blocks(7, 1));
  ASSERT_THAT(first.stores, SizeIs(1));
  EXPECT_THAT(first.jobs_to_flush, IsEmpty());
  const StepPlan second = Step(kB, 0, kChunk, Blocks(7, 1));
  EXPECT_THAT(second.jobs_to_flush, ElementsAre(first.stores[0].id));
}

TEST_F(ConnectorTest, APreemptedRequestsStoresAreFlushedAndItMatchesAgain) {
  Make(8);
  Begin(kA, 2);
  const StepPlan first = Step(kA, 0, kChunk, Blocks(0, 1));
  const StepPlan second = connector_->BuildStep({.scheduled = {}, .preempted = std::array{kA}});
  EXPECT_THAT(second.jobs_to_flush, ElementsAre(first.stores[0].id));
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 2 * kChunk).status, Status::kLater);
  connector_->AbandonStep();
  Done(first.stores[0]);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 2 * kChunk).tokens, kChunk);
  connector_->AbandonStep();
}

TEST_F(ConnectorTest, AnAbandonedStepHoldsNeitherLockNorPins) {
  Make(8);
  StoreAll(kA, 1);
  Begin(kB, 2);
  const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(0, 1), 0, match.tokens);
  connector_->AbandonStep();
  EXPECT_EQ(Stats().pinned_chunks, 0u);  // Takes the lock: it is free.
  EXPECT_THAT(EmptyStep().loads, IsEmpty());
}

// A caller that failed in the middle of a step and did not say so: the next hook gives the step up
// instead of waiting for itself.
TEST_F(ConnectorTest, AStepLeftOpenIsRecovered) {
  Make(8);
  StoreAll(kA, 1);
  Begin(kB, 2);
  const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(0, 1), 0, match.tokens);
  EXPECT_FALSE(connector_->HasPendingWork());
  EXPECT_EQ(Stats().pinned_chunks, 0u);
  connector_->GetMatchedTokens(kB, 0, kChunk);
  Begin(RequestId(3), 1, 50);
  EXPECT_EQ(Stats().slot_count, 8u);
}

// Between a match and the plan nobody else is inside; after BuildStep() anybody may be.
TEST_F(ConnectorTest, BuildStepGivesTheLockBack) {
  Make(8);
  Begin(kA, 1);
  connector_->GetMatchedTokens(kA, 0, kChunk);
  EmptyStep();
  EXPECT_EQ(Stats().slot_count, 8u);
}

TEST_F(ConnectorTest, ChunksOfSeveralBlocksAreCopiedBlockByBlock) {
  Make(8, {.tokens_per_chunk = kChunk, .blocks_per_chunk = 2});
  Begin(kA, 2);
  const StepPlan plan = Step(kA, 0, 2 * kChunk, Blocks(10, 4));
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks[1].blocks, ElementsAre(BlockId(12), BlockId(13)));
}

TEST_F(ConnectorTest, ARequestLoadsAndStoresNoMoreThanItAllows) {
  Make(16);
  StoreAll(kA, 4);
  const auto matched = [&](RequestOptions options) {
    Begin(kB, 4, 1, options);
    const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, 4 * kChunk);
    connector_->UpdateAfterAlloc(kB, {}, 0, 0);
    EmptyStep();
    connector_->OnRequestFinished(kB, 0);
    EmptyStep();
    return match.tokens;
  };
  EXPECT_EQ(matched({}), 4 * kChunk);
  EXPECT_EQ(matched({.max_load_tokens = 0}), 0u);
  EXPECT_EQ(matched({.max_load_tokens = 3 * kChunk - 1}), 2 * kChunk);
  Begin(kB, 4, 100, {.max_offload_tokens = 2 * kChunk + 5});
  const StepPlan plan = Step(kB, 0, 4 * kChunk, Blocks(0, 4));
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks, SizeIs(2));
}

TEST_F(ConnectorTest, ARequestIsServedOnlyFromTheTiersThatItAllows) {
  Make(4);
  tier_->chunks = {Key(1)};
  Begin(kA, 1, 1, {.load_from = LoadSourceSet::None()});
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, kChunk).status, Status::kKnown);
  EXPECT_EQ(tier_->lookups, 0);
}

TEST_F(ConnectorTest, ATierThatWantsTheWholeRequestIsOfferedWhatWasLoaded) {
  Make(8);
  StoreAll(kA, 2);
  tier_->interest = StoreInterest::kWholeRequest;
  Begin(kB, 3);
  const MatchedTokens match = connector_->GetMatchedTokens(kB, 0, 2 * kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(50, 2), 0, match.tokens);
  const StepPlan loading = EmptyStep();
  Done(loading.loads[0]);
  const StepPlan plan = Step(kB, 2 * kChunk, kChunk, Blocks(52, 1));
  ASSERT_THAT(tier_->stores, SizeIs(1));
  EXPECT_THAT(tier_->stores[0].keys, ElementsAre(Key(1), Key(2)));
  ASSERT_THAT(plan.stores, SizeIs(1));
  EXPECT_THAT(plan.stores[0].chunks, SizeIs(1)) << "the engine copies only what is new";
}

// W-43: the end of a conversation's turn is what the next turn needs first.
TEST_F(ConnectorTest, AFinishedRequestOffersWhatFoundNoRoomAgain) {
  Make(1);
  Begin(kA, 1, 1);
  const StepPlan first = Step(kA, 0, kChunk, Blocks(0, 1));
  Begin(kB, 1, 50);
  connector_->UpdateAfterAlloc(kB, Blocks(10, 1), 0, 0);
  connector_->OnRequestFinished(kB, kChunk);
  EXPECT_THAT(EmptyStep().stores, IsEmpty());
  EXPECT_TRUE(connector_->HasTransfers(kB)) << "its blocks must stay";
  EXPECT_TRUE(connector_->HasPendingWork());
  Done(first.stores[0]);
  tier_->FinishStore();
  EXPECT_THAT(EmptyStep().stores, SizeIs(1));
}

TEST_F(ConnectorTest, AFinishedRequestGivesUpInBoundedTime) {
  Make(1);
  Begin(kA, 1, 1);
  Step(kA, 0, kChunk, Blocks(0, 1));
  Begin(kB, 1, 50);
  connector_->UpdateAfterAlloc(kB, Blocks(10, 1), 0, 0);
  connector_->OnRequestFinished(kB, kChunk);
  int steps = 0;
  for (; connector_->HasTransfers(kB) && steps < 100; ++steps) EmptyStep();
  EXPECT_EQ(steps, static_cast<int>(ConnectorOptions{}.finished_store_retries) + 1);
}

TEST_F(ConnectorTest, AResetWithTransfersUnderWayLosesNothingAndServesNothingOld) {
  Make(8);
  StoreAll(kA, 2);
  tier_->chunks.clear();
  Begin(kA, 4);
  connector_->GetMatchedTokens(kA, 0, 2 * kChunk);
  connector_->UpdateAfterAlloc(kA, Blocks(50, 2), 0, 2 * kChunk);
  const StepPlan loading = EmptyStep();
  const StepPlan storing = Step(kA, 2 * kChunk, kChunk, Blocks(52, 1));
  ASSERT_THAT(loading.loads, SizeIs(1));
  ASSERT_THAT(storing.stores, SizeIs(1));

  const ResetReport report = connector_->ResetCache();
  EXPECT_EQ(report.removed_chunks, 3u);
  EXPECT_EQ(report.busy_slots, 3u);
  Done(loading.loads[0]);
  Done(storing.stores[0]);
  EXPECT_EQ(Stats().orphaned_slots, 0u);
  EXPECT_EQ(Stats().ready_chunks, 0u);
  EXPECT_THAT(tier_->stores, IsEmpty()) << "of what was computed before the reset";
  const StepPlan anew = Step(kA, 3 * kChunk, kChunk, Blocks(53, 1));
  ASSERT_THAT(anew.stores, SizeIs(1));
  EXPECT_THAT(anew.stores[0].chunks, SizeIs(4)) << "a running request stores from its first chunk";
}

TEST_F(ConnectorTest, ReportingAJobTwiceIsABug) {
  Make(8);
  Begin(kA, 1);
  const StepPlan plan = Step(kA, 0, kChunk, Blocks(0, 1));
  Done(plan.stores[0]);
  EXPECT_DEATH(Done(plan.stores[0]), "reported twice");
}

class ConnectorStatsTest : public ConnectorTest {
 protected:
  ConnectorStats Counted() {
    ManagerRegion region(*manager_);
    return connector_->Stats();
  }
  static std::uint64_t Of(const ConnectorStats& stats, LoadSource source) {
    return stats.matched_chunks[static_cast<std::size_t>(source)];
  }
};

TEST_F(ConnectorStatsTest, ARequestIsCountedOnceHoweverOftenItIsLookedUp) {
  Make(8);
  StoreAll(kB, 1);
  tier_->chunks.insert(Key(2));
  Begin(kA, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 3 * kChunk).status, Status::kLater);
    EmptyStep();
  }
  EXPECT_EQ(Counted().asked_chunks, 0u) << "nothing is known yet";
  tier_->FinishLoad();
  EmptyStep();
  for (int i = 0; i < 3; ++i) {  // There are no blocks for it.
    EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, 3 * kChunk).tokens, 2 * kChunk);
    EmptyStep();
  }
  const ConnectorStats stats = Counted();
  EXPECT_EQ(stats.matched_requests, 1u);
  EXPECT_EQ(stats.asked_chunks, 3u);
  EXPECT_EQ(Of(stats, LoadSource::kHost), 1u);
  EXPECT_EQ(Of(stats, LoadSource::kDisk), 1u);
  EXPECT_EQ(stats.matched_tokens, 2u * kChunk);
  EXPECT_EQ(stats.lookup_sync.count, 6u);
  EXPECT_EQ(stats.lookup_async.count, 1u);
}

TEST_F(ConnectorStatsTest, ARequestThatEndsWhileItWaitsCountsAsAWaitOnly) {
  Make(8);
  tier_->chunks.insert(Key(1));
  Begin(kA, 1);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, kChunk).status, Status::kLater);
  EmptyStep();
  connector_->OnRequestFinished(kA, 0);
  EmptyStep();
  const ConnectorStats stats = Counted();
  EXPECT_EQ(stats.matched_requests, 0u);
  EXPECT_EQ(stats.asked_chunks, 0u);
  EXPECT_EQ(stats.lookup_async.count, 1u);
}

TEST_F(ConnectorStatsTest, TheWaitEndsAlsoWhereNothingIsLeftToAsk) {
  Make(8);
  tier_->unknown.insert(Key(1));
  Begin(kA, 1);
  EXPECT_EQ(connector_->GetMatchedTokens(kA, 0, kChunk).status, Status::kLater);
  EmptyStep();
  EXPECT_EQ(connector_->GetMatchedTokens(kA, kChunk, kChunk).status, Status::kKnown);
  EmptyStep();
  EXPECT_EQ(Counted().lookup_async.count, 1u);
  EXPECT_EQ(Counted().matched_requests, 0u);
}

TEST_F(ConnectorStatsTest, CopiesAreCountedWhenTheyEnd) {
  Make(8);
  Begin(kA, 3);
  const StepPlan plan = Step(kA, 0, 3 * kChunk, Blocks(0, 3));
  EXPECT_EQ(Counted().store.jobs_in_flight, 1u);
  EXPECT_EQ(Counted().store.chunks_in_flight, 3u);
  TransferResult stored{
      .id = plan.stores.at(0).id, .request = kA, .bytes = 65537, .seconds = 0.5, .error = ""};
  connector_->OnTransfersDone({&stored, 1});
  ConnectorStats stats = Counted();
  EXPECT_EQ(stats.store.jobs, 1u);
  EXPECT_EQ(stats.store.failed_jobs, 0u);
  EXPECT_EQ(stats.store.chunks, 3u);
  EXPECT_EQ(stats.store.bytes, 65537u);
  EXPECT_EQ(stats.store.time, std::chrono::milliseconds(500));
  EXPECT_EQ(stats.store.sizes[1], 1u) << "of at most 256 KiB";
  EXPECT_EQ(stats.store.jobs_in_flight, 0u);
  EXPECT_EQ(stats.store.chunks_in_flight, 0u);

  Begin(kB, 2);
  connector_->GetMatchedTokens(kB, 0, 2 * kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(10, 2), 0, 2 * kChunk);
  connector_->AbandonStep();
  EXPECT_EQ(Counted().load.jobs_in_flight, 0u) << "dropped";
  connector_->GetMatchedTokens(kB, 0, 2 * kChunk);
  connector_->UpdateAfterAlloc(kB, Blocks(10, 2), 0, 2 * kChunk);
  const StepPlan loads = EmptyStep();
  EXPECT_EQ(Counted().load.chunks_in_flight, 2u);
  Done(loads.loads.at(0), CopyOutcome::kFailed);
  stats = Counted();
  EXPECT_EQ(stats.load.jobs, 1u);
  EXPECT_EQ(stats.load.failed_jobs, 1u);
  EXPECT_EQ(stats.load.chunks, 0u);
  EXPECT_EQ(stats.load.failed_chunks, 2u);
}

// W-43: a turn's tail that is lost is at least seen.
TEST_F(ConnectorStatsTest, ChunksOfFinishedRequestsThatFoundNoRoomAreCounted) {
  Make(2);
  Begin(kA, 2, 1);
  const StepPlan first = Step(kA, 0, 2 * kChunk, Blocks(0, 2));
  Begin(kB, 3, 50);
  EXPECT_THAT(Step(kB, 0, 3 * kChunk, Blocks(10, 3)).stores, IsEmpty());
  EXPECT_EQ(Counted().store_refusals, 1u) << "one offer, however many parts were tried";
  EXPECT_EQ(Counted().unstored_chunks, 0u);
  connector_->OnRequestFinished(kB, 3 * kChunk);
  EmptyStep();
  EXPECT_EQ(Counted().store_refusals, 2u);
  EXPECT_EQ(Counted().unstored_chunks, 0u) << "it is tried again";
  while (connector_->HasTransfers(kB)) EmptyStep();
  EXPECT_EQ(Counted().unstored_chunks, 3u);
  Done(first.stores.at(0));
}

}  // namespace
}  // namespace terrace
