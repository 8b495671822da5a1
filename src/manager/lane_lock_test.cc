#include "manager/lane_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace terrace {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kLong = 10ms;

LaneLock::Clock::time_point In(std::chrono::nanoseconds time) {
  return LaneLock::Clock::now() + time;
}

// Spins until `condition`, at most a minute.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = In(60s);
  while (!condition()) {
    if (LaneLock::Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(DurationHistogram, QuantilesBoundFromAboveByAtMostTwice) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0ns);
  for (int i = 1; i <= 1000; ++i) histogram.Add(std::chrono::nanoseconds(i));
  EXPECT_GE(histogram.Quantile(0.5), 500ns);
  EXPECT_LE(histogram.Quantile(0.5), 1000ns);
  EXPECT_EQ(histogram.Quantile(1), 1000ns);
  EXPECT_EQ(histogram.max, 1000ns);
  histogram.Add(std::chrono::hours(10'000));
  EXPECT_EQ(histogram.Quantile(1), std::chrono::hours(10'000));
}

TEST(LaneLock, IsHeldByWhoTookIt) {
  LaneLock lock(kLong);
  EXPECT_FALSE(lock.HeldByThisThread());
  ASSERT_TRUE(lock.Lock(Lane::kEngine, "a"));
  EXPECT_TRUE(lock.HeldByThisThread());
  std::thread([&] { EXPECT_FALSE(lock.HeldByThisThread()); }).join();
  EXPECT_STREQ(lock.Unlock().holder, "a");
  EXPECT_FALSE(lock.HeldByThisThread());
}

TEST(LaneLock, EachHoldHasANumberOfItsOwn) {
  LaneLock lock(kLong);
  lock.Lock(Lane::kEngine, "a");
  const std::uint64_t first = lock.hold_number();
  lock.Unlock();
  lock.Lock(Lane::kControl, "a");
  EXPECT_NE(lock.hold_number(), first);
  lock.Unlock();
}

TEST(LaneLock, AWaitWithADeadlineEnds) {
  LaneLock lock(kLong);
  lock.Lock(Lane::kEngine, "a");
  for (const Lane lane : {Lane::kEngine, Lane::kControl}) {
    std::thread([&] { EXPECT_FALSE(lock.Lock(lane, "b", In(1ms))); }).join();
  }
  EXPECT_FALSE(lock.EngineWaits());
  lock.Unlock();
  EXPECT_TRUE(lock.Lock(Lane::kControl, "b", In(1ms)));
  lock.Unlock();
}

// Control asks first and engine second, while somebody is inside: engine is next.
TEST(LaneLock, TheEngineGoesBeforeTheControlLane) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    LaneLock lock(kLong);
    std::vector<Lane> order;  // Guarded by the lock.
    lock.Lock(Lane::kControl, "first");
    std::thread control([&] {
      lock.Lock(Lane::kControl, "control");
      order.push_back(Lane::kControl);
      lock.Unlock();
    });
    std::thread engine([&] {
      lock.Lock(Lane::kEngine, "engine");
      order.push_back(Lane::kEngine);
      lock.Unlock();
    });
    ASSERT_TRUE(Eventually([&] { return lock.EngineWaits(); }));
    lock.Unlock();
    engine.join();
    control.join();
    EXPECT_EQ(order[0], Lane::kEngine);
  }
}

// A holder of the control lane that asks again at once does not get in before a waiting engine,
// however long that takes to wake.
TEST(LaneLock, TheControlLaneCannotOvertakeAWaitingEngine) {
  LaneLock lock(kLong);
  for (int repetition = 0; repetition < 200; ++repetition) {
    lock.Lock(Lane::kControl, "control");
    bool engine_was_in = false;  // Guarded by the lock.
    std::thread engine([&] {
      lock.Lock(Lane::kEngine, "engine");
      engine_was_in = true;
      lock.Unlock();
    });
    ASSERT_TRUE(Eventually([&] { return lock.EngineWaits(); }));
    lock.Unlock();
    lock.Lock(Lane::kControl, "control again");
    EXPECT_TRUE(engine_was_in);
    lock.Unlock();
    engine.join();
  }
}

// An engine that gives up must not leave the control lane asleep before a free lock.
TEST(LaneLock, AnEngineThatGivesUpLetsTheControlLaneIn) {
  for (int repetition = 0; repetition < 200; ++repetition) {
    LaneLock lock(kLong);
    lock.Lock(Lane::kControl, "holder");
    std::thread engine([&] {
      if (lock.Lock(Lane::kEngine, "engine", In(std::chrono::microseconds(repetition))))
        lock.Unlock();
    });
    std::thread control([&] {
      EXPECT_TRUE(lock.Lock(Lane::kControl, "control", In(60s)));
      lock.Unlock();
    });
    lock.Unlock();
    engine.join();
    control.join();
  }
}

// Two lanes, several threads each: never two inside, and everybody gets through.
TEST(LaneLock, NobodyIsEverInsideTogetherAndBothLanesProgress) {
  LaneLock lock(kLong);
  std::uint64_t entered = 0;  // Not atomic: the lock guards it.
  int inside = 0;
  constexpr int kRounds = 20'000;
  auto work = [&](Lane lane) {
    for (int i = 0; i < kRounds; ++i) {
      lock.Lock(lane, "worker");
      ++inside;
      ASSERT_EQ(inside, 1);
      ++entered;
      --inside;
      lock.Unlock();
    }
  };
  std::vector<std::thread> threads;
  for (const Lane lane : {Lane::kEngine, Lane::kControl, Lane::kEngine, Lane::kControl}) {
    threads.emplace_back(work, lane);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(entered, 4u * kRounds);
  lock.Lock(Lane::kEngine, "reader");
  EXPECT_EQ(lock.stats().hold[0].count + lock.stats().hold[1].count, 4u * kRounds);
  lock.Unlock();
}

TEST(LaneLock, LongHoldsAreCountedWithTheirHolder) {
  LaneLock lock(0ns);
  lock.Lock(Lane::kControl, "slow");
  const LaneLock::Hold hold = lock.Unlock();
  EXPECT_TRUE(hold.is_long);
  EXPECT_STREQ(hold.holder, "slow");
  lock.Lock(Lane::kEngine, "reader");
  EXPECT_EQ(lock.stats().long_holds, 1u);
  EXPECT_EQ(lock.stats().hold[1].count, 1u);
  lock.Unlock();
}

}  // namespace
}  // namespace terrace
