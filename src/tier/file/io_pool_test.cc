#include "tier/file/io_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <future>
#include <mutex>
#include <string>

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
  IoPool::Task Task(std::string name) {
    return [this, name](Fate fate) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(name + (fate == Fate::kRun ? "" : " cancelled"));
    };
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
    return [this](Fate) {
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
  pool->Submit(Kind::kLoad, {gate.Task()});
  gate.AwaitEntered();
  pool->Submit(Kind::kStore, {diary.Task("s1"), diary.Task("s2")});
  pool->Submit(Kind::kLoad, {diary.Task("l1"), diary.Task("l2")});
  pool->Submit(Kind::kStore, {diary.Task("s3")});
  gate.Open();
  EXPECT_TRUE(pool->WaitIdle(Later()));
  return diary.lines();
}

TEST(IoPool, ReadThreadsTakeLoadsFirstAndEachClassInOrder) {
  EXPECT_THAT(OrderWith(1, 0), ElementsAre("l1", "l2", "s1", "s2", "s3"));
}

TEST(IoPool, WriteThreadsTakeStoresFirstAndEachClassInOrder) {
  EXPECT_THAT(OrderWith(0, 1), ElementsAre("s1", "s2", "s3", "l1", "l2"));
}

TEST(IoPool, IsNotIdleWhileATaskRuns) {
  Gate gate;
  auto pool = MakePool(1, 0);
  pool->Submit(Kind::kLoad, {gate.Task()});
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
  pool->Submit(Kind::kLoad, {[&](Fate) {
                 entered.set_value();
                 cancelled.get_future().wait();  // Cancelling waits for nobody.
                 diary.Task("running")(Fate::kRun);
               }});
  entered.get_future().wait();
  pool->Submit(Kind::kLoad, {diary.Task("l")});
  pool->Submit(Kind::kStore, {[&](Fate fate) {
                 diary.Task("s")(fate);
                 cancelled.set_value();
               }});
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_THAT(diary.lines(), ElementsAre("l cancelled", "s cancelled", "running"));
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_TRUE(pool->WaitIdle(std::chrono::steady_clock::now()));
}

TEST(IoPool, CancelsWhatComesAfterShutdown) {
  Diary diary;
  auto pool = MakePool(1, 1);
  EXPECT_TRUE(pool->Shutdown(Later()));
  pool->Submit(Kind::kStore, {diary.Task("s")});
  EXPECT_THAT(diary.lines(), ElementsAre("s cancelled"));
}

TEST(IoPool, ShutdownLeavesAHangingTaskAtItsDeadline) {
  Diary diary;
  Gate gate;
  auto pool = MakePool(1, 1);
  pool->Submit(Kind::kLoad, {gate.Task()});
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
                              .at_end = [&] { diary.Task("end")(Fate::kRun); }})
                  .value();
  Gate gate;
  pool->Submit(Kind::kLoad, {gate.Task()});
  gate.AwaitEntered();
  EXPECT_FALSE(pool->Shutdown(std::chrono::steady_clock::now()));
  EXPECT_THAT(diary.lines(), ElementsAre());
  gate.Open();
  EXPECT_TRUE(pool->Shutdown(Later()));
  EXPECT_THAT(diary.lines(), ElementsAre("end"));
}

TEST(IoPool, NamesItsThreads) {
  std::array<char, 16> found{};
  auto pool = MakePool(0, 1);
  pool->Submit(Kind::kLoad,
               {[&](Fate) { pthread_getname_np(pthread_self(), found.data(), found.size()); }});
  ASSERT_TRUE(pool->WaitIdle(Later()));
  EXPECT_STREQ(found.data(), "terrace-test-w0");
}

}  // namespace
}  // namespace terrace
