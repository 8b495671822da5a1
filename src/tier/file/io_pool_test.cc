#include "tier/file/io_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace terrace {
namespace {

using Kind = IoPool::Kind;
using Fate = IoPool::Fate;
using testing::ElementsAre;

constexpr auto kForEver = std::chrono::hours(1);

auto Later() { return std::chrono::steady_clock::now() + kForEver; }

std::unique_ptr<IoPool> MakePool(std::uint32_t readers, std::uint32_t writers) {
  return IoPool::Create({readers, writers, "terrace-test-", {}}).value();
}

// What ran, in order.
class Diary {
 public:
  // Pieces are "name0", "name1" and so on.
  IoPool::Task Task(std::string name) {
    return [this, name](std::size_t piece, Fate fate) {
      Write(name + std::to_string(piece) + (fate == Fate::kRun ? "" : " cancelled"));
    };
  }
  void Write(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Occupies a thread of the pool until Open().
class Gate {
 public:
  IoPool::Task Task() {
    return [this](std::size_t, Fate) {
      entered_.set_value();
      open_.get_future().wait();
    };
  }
  void AwaitEntered() { entered_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> entered_;
  std::promise<void> open_;
};

std::vector<std::string> OrderWith(std::uint32_t readers, std::uint32_t writers) {
  Diary diary;
  Gate gate;
  auto pool = MakePool(readers, writers);
  pool->Submit(Kind::kLoad, 1, gate.Task());
  gate.AwaitEntered();
  pool->Submit(Kind::kStore, 2, diary.Task("s"));
  pool->Submit(Kind::kLoad, 2, diary.Task("l"));
  pool->Submit(Kind::kStore, 1, diary.Task("t"));
  gate.Open();
  EXPECT_TRUE(pool->WaitIdle(Later()));
  return diary.lines();
}

TEST(IoPool, ReadThreadsTakeLoadsFirstAndEachClassInOrder) {
  EXPECT_THAT(OrderWith(1, 0), ElementsAre("l0", "l1", "s0", "s1", "t0"));
}

TEST(IoPool, WriteThreadsTakeStoresFirstAndEachClassInOrder) {
  EXPECT_THAT(OrderWith(0, 1), ElementsAre("s0", "s1", "t0", "l0", "l1"));
}

// Each piece waits until all have begun. Again and again, for at first no thread is asleep.
TEST(IoPool, WakesAsManyThreadsAsAJobHasPieces) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kRounds = 20;
  std::mutex mutex;
  std::condition_variable began;
  std::size_t running = 0;
  std::size_t alone = 0;
  auto pool = MakePool(kThreads / 2, kThreads / 2);
  for (std::size_t round = 1; round <= kRounds && alone == 0; ++round) {
    pool->Submit(Kind::kStore, kThreads, [&](std::size_t, Fate) {
      std::unique_lock lock(mutex);
      ++running;
      began.notify_all();
      const auto all = [&] { return running >= kThreads * round; };
      if (!began.wait_for(lock, std::chrono::seconds(5), all)) ++alone;
    });
    EXPECT_TRUE(pool->WaitIdle(Later()));
  }
  EXPECT_EQ(alone, 0);
}

TEST(IoPool, LetsGoOfAJobBeforeItIsIdle) {
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> seen = held;
  auto pool = MakePool(1, 1);
  pool->Submit(Kind::kLoad, 8, [held = std::move(held)](std::size_t, Fate) {});
  EXPECT_TRUE(pool->WaitIdle(Later()));
  EXPECT_TRUE(seen.expired());
}

TEST(IoPool, IsNotIdleWhileAPieceRuns) {
  Gate gate;
  auto pool = MakePool(1, 0);
  pool->Submit(Kind::kLoad, 1, gate.Task());
  gate.AwaitEntered();
  EXPECT_FALSE(pool->WaitIdle(std::chrono::steady_clock::now()));
  gate.Open();
  EXPECT_TRUE(pool->WaitIdle(Later()));
  EXPECT_TRUE(pool->WaitIdle(std::chrono::steady_clock::now()));
}

TEST(IoPool, ShutdownCancelsTheQueuedAndWaitsForTheRunning) {
  Diary diary;
  std::promise<void> entered;
  std::promise<void> cancelled;
  auto pool = MakePool(1, 0);
  pool->Submit(Kind::kLoad, 3, [&](std::size_t piece, Fate fate) {
    if (fate == Fate::kRun) {
      entered.set_value();
      cancelled.get_future().wait();  // Cancelling waits for nobody.
    }
    diary.Task("l")(piece, fate);
  });
  entered.get_future().wait();
  pool->Submit(Kind::kStore, 1, [&](std::size_t piece, Fate fate) {
    diary.Task("s")(piece, fate);
    cancelled.set_value();
  });
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_THAT(diary.lines(), ElementsAre("l1 cancelled", "l2 cancelled", "s0 cancelled", "l0"));
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_TRUE(pool->WaitIdle(std::chrono::steady_clock::now()));
}

TEST(IoPool, CancelsWhatComesAfterShutdown) {
  Diary diary;
  auto pool = MakePool(1, 1);
  EXPECT_TRUE(pool->Shutdown(Later()));
  pool->Submit(Kind::kStore, 2, diary.Task("s"));
  EXPECT_THAT(diary.lines(), ElementsAre("s0 cancelled", "s1 cancelled"));
}

TEST(IoPool, ShutdownLeavesAHangingTaskAtItsDeadline) {
  Diary diary;
  Gate gate;
  auto pool = MakePool(1, 1);
  pool->Submit(Kind::kLoad, 1, gate.Task());
  gate.AwaitEntered();
  EXPECT_FALSE(pool->Shutdown(std::chrono::steady_clock::now()));
  EXPECT_FALSE(pool->Shutdown(std::chrono::steady_clock::now()));
  gate.Open();
  EXPECT_TRUE(pool->Shutdown(Later()));
}

TEST(IoPool, DoesItsLastThingOnceAfterAllTasks) {
  Diary diary;
  auto pool = IoPool::Create({.n_read_threads = 2,
                              .n_write_threads = 2,
                              .thread_name = "terrace-test-",
                              .at_end = [&] { diary.Write("end"); }})
                  .value();
  Gate gate;
  pool->Submit(Kind::kLoad, 1, gate.Task());
  gate.AwaitEntered();
  EXPECT_FALSE(pool->Shutdown(std::chrono::steady_clock::now()));
  EXPECT_THAT(diary.lines(), ElementsAre());
  gate.Open();
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_THAT(diary.lines(), ElementsAre("end"));
}

// Of threads that wake, those of this policy alone do not take the core from who runs there.
TEST(IoPool, LeavesTheCoreToWhoSubmits) {
  for (const auto& [readers, writers] : {std::pair{1, 0}, std::pair{0, 1}}) {
    int policy = -1;
    auto pool = MakePool(readers, writers);
    pool->Submit(Kind::kStore, 1, [&](std::size_t, Fate) { policy = ::sched_getscheduler(0); });
    ASSERT_TRUE(pool->WaitIdle(Later()));
    EXPECT_EQ(policy, SCHED_BATCH);
  }
}

TEST(IoPool, NamesItsThreads) {
  std::array<char, 16> found{};
  auto pool = MakePool(0, 1);
  pool->Submit(Kind::kLoad, 1, [&](std::size_t, Fate) {
    pthread_getname_np(pthread_self(), found.data(), found.size());
  });
  ASSERT_TRUE(pool->WaitIdle(Later()));
  EXPECT_STREQ(found.data(), "terrace-test-w0");
}

}  // namespace
}  // namespace terrace
