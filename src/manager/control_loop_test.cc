// The control loop, driven by one thread and a clock that the test moves.
#include "manager/control_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/manager_test.h"

namespace terrace {
namespace {

using namespace std::chrono_literals;
using testing_support::FakeTier;
using testing_support::kA;
using testing_support::Key;

class ControlLoopTest : public testing_support::ManagerTest {
 protected:
  void MakeServing(int tier_count = 1, int descriptor = -1) {
    Make(8, tier_count, [this, descriptor](int, FakeTier& tier) {
      tier.descriptor = descriptor;
      tier.serve = [this](TierServer& server) {
        if (serve_) serve_(server);
      };
    });
    loop_ = std::make_unique<ControlLoop>(*manager_,
                                          ControlLoopOptions{.interval = 1ms, .lock_timeout = 1ms});
  }
  ControlLoop::Next RunOnce(bool woken = false) { return loop_->RunOnce(now_, woken); }

  std::function<void(TierServer&)> serve_;
  std::unique_ptr<ControlLoop> loop_;
};

TEST_F(ControlLoopTest, AQuietRoundIsFollowedByTheInterval) {
  MakeServing();
  const ControlLoop::Next next = RunOnce();
  EXPECT_EQ(next.wait, 1ms);
  EXPECT_FALSE(next.active);
  EXPECT_EQ(tiers_[0]->serves, 1);
  EXPECT_EQ(Stats().control.rounds, 1u);
  EXPECT_EQ(Stats().control.round.count, 1u);
}

// A round interrupts a model where all processors compute.
TEST_F(ControlLoopTest, TheLongerNothingHappensTheLongerItWaits) {
  constexpr int kSomeDescriptor = 1'000'000;  // Nobody looks at it here.
  MakeServing(1, kSomeDescriptor);
  std::vector<std::chrono::nanoseconds> waits;
  const auto wait_on = [&] {
    waits.clear();
    for (int i = 0; i < 40; ++i) {
      waits.push_back(RunOnce().wait);
      now_ += waits.back();
    }
  };
  wait_on();
  EXPECT_THAT(std::vector(waits.begin(), waits.begin() + 7),
              testing::ElementsAre(1ms, 1ms, 2ms, 4ms, 8ms, 16ms, 20ms));
  EXPECT_EQ(waits.back(), 20ms);
  EXPECT_EQ(RunOnce(true).wait, 1ms) << "something arrived";
  wait_on();
  std::optional<Request> waiting;
  serve_ = [&](TierServer& server) {
    if (!waiting) waiting = server.BeginRequest();
  };
  wait_on();
  EXPECT_EQ(waits.back(), 1ms) << "a peer waits for something";
  serve_ = [&](TierServer& server) {
    if (waiting) server.FinishRequest(*std::exchange(waiting, std::nullopt));
  };
  wait_on();
  EXPECT_EQ(waits.back(), 20ms);
}

TEST_F(ControlLoopTest, ATierWithoutADescriptorIsLookedAtAtEachInterval) {
  MakeServing();
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(RunOnce().wait, 1ms);
    now_ += 1ms;
  }
}

TEST_F(ControlLoopTest, AnActiveRoundIsFollowedByAnotherAtOnce) {
  MakeServing();
  serve_ = [](TierServer& server) { server.FinishRequest(server.BeginRequest()); };
  const ControlLoop::Next next = RunOnce();
  EXPECT_EQ(next.wait, 0ms);
  EXPECT_TRUE(next.active);
}

// W-11: counted, backed off and retried; never final.
TEST_F(ControlLoopTest, AFailedRoundIsCountedAndTriedAgainForEver) {
  MakeServing();
  tiers_[0]->throws = {"ServeExternalRequests"};
  std::vector<std::chrono::nanoseconds> waits;
  for (int i = 0; i < 3; ++i) {
    waits.push_back(RunOnce().wait);
    EXPECT_EQ(RunOnce().wait, waits.back()) << "nothing happens before its time";
    now_ += waits.back();
  }
  EXPECT_THAT(waits, testing::ElementsAre(1ms, 2ms, 4ms));
  EXPECT_EQ(Stats().control.failed_rounds, 3u);
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kDown);
  // Left alone now; an hour later it works again and is served.
  const int serves = tiers_[0]->serves;
  RunOnce();
  EXPECT_EQ(tiers_[0]->serves, serves);
  tiers_[0]->throws = {};
  now_ += 1h;
  RunOnce();
  EXPECT_EQ(tiers_[0]->serves, serves + 1);
  EXPECT_EQ(Stats().tiers[0].health, TierHealth::kUp);
}

TEST_F(ControlLoopTest, ATierThatFailsDoesNotKeepTheOthersFromBeingServed) {
  MakeServing(2);
  tiers_[0]->throws = {"ServeExternalRequests", "TakeFinished"};
  for (int i = 0; i < 6; ++i) {
    RunOnce();
    now_ += 1s;
  }
  EXPECT_EQ(tiers_[1]->serves, 6);
}

TEST_F(ControlLoopTest, WhoIsNotReachedBeforeTheEngineComesIsFirstNextTime) {
  MakeServing(2);
  std::vector<std::string> order;
  std::thread engine;
  bool came = false;
  tiers_[0]->serve = [&](TierServer& server) {
    order.push_back("0");
    if (std::exchange(came, true)) return;
    engine = std::thread([&] { ManagerRegion region(*manager_); });
    while (!server.ShouldYield()) std::this_thread::yield();
  };
  tiers_[1]->serve = [&](TierServer&) { order.push_back("1"); };
  EXPECT_EQ(RunOnce().wait, 0ms);
  engine.join();
  RunOnce();
  EXPECT_THAT(order, testing::ElementsAre("0", "1", "0"));
}

TEST_F(ControlLoopTest, WithoutTheLockARoundIsCountedAsFailedLater) {
  MakeServing();
  {
    ManagerRegion region(*manager_);
    std::thread other([&] { RunOnce(); });
    other.join();
    EXPECT_EQ(tiers_[0]->serves, 0);
  }
  RunOnce();
  EXPECT_EQ(Stats().control.failed_rounds, 1u);
  EXPECT_EQ(Stats().control.rounds, 1u);
}

}  // namespace
}  // namespace terrace
