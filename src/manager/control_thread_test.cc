// The thread around the control loop. Waits are on conditions, with a bound that only a failure
// meets; where nothing is to happen inside a region there is none to wait for, and sleeps give it
// the chance.
#include "manager/control_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/manager_test.h"

namespace terrace {
namespace {

using namespace std::chrono_literals;
using testing_support::Eventually;
using testing_support::FakeTier;
using testing_support::kA;

// One of this process.
bool AThreadIsCalled(const std::string& name) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string called;
    if (std::getline(file, called) && called == name) return true;
  }
  return false;
}

class ControlThreadTest : public testing_support::ManagerTest {
 protected:
  ControlThreadTest() { options_.poll_interval = 1ms; }

  void MakeServing(int descriptor = -1) {
    Make(8, 1, [&](int, FakeTier& tier) {
      tier.descriptor = descriptor;
      tier.serve = [this](TierServer&) {
        ++served_;
        if (serve_) serve_();
      };
    });
  }
  bool Running() {
    ManagerRegion region(*manager_);
    return manager_->Stats().control.running;
  }

  std::atomic<int> served_{0};
  std::function<void()> serve_;
};

TEST_F(ControlThreadTest, RunsOnlyIfATierServesAndTheIntervalIsAboveZero) {
  Make(8, 1);
  ASSERT_TRUE(manager_->StartControlThread().ok());
  EXPECT_FALSE(Running());

  tiers_.clear();
  options_.poll_interval = 0ms;
  MakeServing();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  EXPECT_FALSE(Running());
  EndStep();
  EXPECT_EQ(served_, 1) << "without a thread, once a step";

  tiers_.clear();
  options_.poll_interval = 1ms;
  MakeServing();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  EXPECT_TRUE(Running());
}

TEST_F(ControlThreadTest, ServesWhileTheEngineDoesNothing) {
  MakeServing();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  EXPECT_TRUE(Eventually([&] { return served_ >= 3; }));
}

TEST_F(ControlThreadTest, DoesNotServeInsideARegionOfTheEngine) {
  MakeServing();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ >= 1; }));
  {
    ManagerRegion region(*manager_);
    const int before = served_;
    for (int i = 0; i < 20; ++i) {
      manager_->WakeControlThread();
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(served_, before);
  }
  const int before = served_;
  EXPECT_TRUE(Eventually([&] { return served_ > before; }));
}

// With an interval of an hour, only the descriptor or a wake-up can be the reason.
TEST_F(ControlThreadTest, AReadableDescriptorAndAWakeUpMakeItLook) {
  options_.poll_interval = 1h;
  const UniqueFd descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  MakeServing(descriptor.get());
  serve_ = [&] {
    std::uint64_t count = 0;
    (void)!::read(descriptor.get(), &count, sizeof count);
  };
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ == 1; }));
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(descriptor.get(), &one, sizeof one), 8);
  EXPECT_TRUE(Eventually([&] { return served_ == 2; }));
  manager_->WakeControlThread();
  EXPECT_TRUE(Eventually([&] { return served_ >= 3; }));
  manager_->Shutdown();  // Before the descriptor is closed.
}

TEST_F(ControlThreadTest, ADescriptorThatStaysReadableIsNoBusyLoop) {
  options_.poll_interval = 50ms;
  const UniqueFd descriptor(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  MakeServing(descriptor.get());
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ >= 20; }));
  EXPECT_GT(std::chrono::steady_clock::now() - began, 200ms);
  manager_->Shutdown();
}

// Of what it asks for; what is granted is up to the machine.
TEST_F(ControlThreadTest, TellsWhatPriorityItWasGranted) {
  options_.control_priority = ThreadPriority::kHigh;
  std::atomic<int> nice{0};
  MakeServing();
  serve_ = [&] { nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid))); };
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ >= 2; }));
  ManagerRegion region(*manager_);
  EXPECT_EQ(manager_->Stats().control.priority,
            nice == -10 ? ThreadPriority::kHigh : ThreadPriority::kNormal);
}

TEST_F(ControlThreadTest, IsGoneBeforeAnyTierIsShutDown) {
  MakeServing();
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ >= 1; }));
  ASSERT_TRUE(AThreadIsCalled("terrace-control"));
  manager_->Shutdown();
  EXPECT_EQ(log_.back(), "0: shutdown");
  EXPECT_FALSE(Running());
  const int before = served_;
  manager_->Shutdown();
  // The system may show a thread that has been joined a moment longer.
  EXPECT_TRUE(Eventually([] { return !AThreadIsCalled("terrace-control"); }));
  EXPECT_EQ(served_, before);
}

TEST_F(ControlThreadTest, ATierThatDoesNotReturnDoesNotHangTheShutdown) {
  options_.shutdown_timeout = 20ms;
  std::atomic<bool> go_on{false};
  MakeServing();
  serve_ = [&] {
    while (!go_on) std::this_thread::sleep_for(1ms);
  };
  ASSERT_TRUE(manager_->StartControlThread().ok());
  ASSERT_TRUE(Eventually([&] { return served_ >= 1; }));
  manager_->Shutdown();
  EXPECT_TRUE(manager_->tiers_still_run());
  EXPECT_TRUE(log_.empty()) << "no tier is torn down under a round";
  go_on = true;
  EXPECT_TRUE(Eventually([&] {
    manager_->Shutdown();
    return !manager_->tiers_still_run();
  }));
}

TEST_F(ControlThreadTest, AThreadThatKeepsTheLockDoesNotHangDrainOrShutdown) {
  options_.shutdown_timeout = 20ms;
  Make(8, 1);
  std::atomic<bool> inside{false}, go_on{false};
  std::thread keeper([&] {
    ManagerRegion region(*manager_);
    inside = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
  });
  ASSERT_TRUE(Eventually([&] { return inside.load(); }));
  EXPECT_FALSE(manager_->Drain(20ms));
  manager_->Shutdown();
  EXPECT_TRUE(manager_->tiers_still_run());
  EXPECT_TRUE(log_.empty()) << "no tier is torn down under it";
  go_on = true;
  keeper.join();
  manager_->Shutdown();
  EXPECT_FALSE(manager_->tiers_still_run());
}

}  // namespace
}  // namespace terrace
