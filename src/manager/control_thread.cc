#include "manager/control_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/thread_priority.h"

namespace terrace {
namespace {

constexpr std::chrono::microseconds kSpin{50};

timespec ToTimespec(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {seconds.count(), (time - seconds).count()};
}

}  // namespace

Result<std::unique_ptr<ControlThread>> ControlThread::Start(TieringManager& manager,
                                                            const ControlLoopOptions& options,
                                                            ThreadPriority priority) {
  UniqueFd wake(KeepAwayFromStdio(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  if (!wake.valid()) return ErrnoError("make the control thread's eventfd", errno);
  std::unique_ptr<ControlThread> control(
      new ControlThread(manager, options, priority, std::move(wake)));
  auto started =
      control->thread_.Start("terrace-control", "", [raw = control.get()] { raw->Run(); });
  if (!started.ok()) return std::move(started).error();
  return control;
}

ControlThread::ControlThread(TieringManager& manager, const ControlLoopOptions& options,
                             ThreadPriority priority, UniqueFd wake)
    : wake_(std::move(wake)), wanted_priority_(priority), loop_(manager, options) {
  polled_.push_back({wake_.get(), POLLIN, 0});
  for (int descriptor : manager.ServingDescriptors()) polled_.push_back({descriptor, POLLIN, 0});
}

ControlThread::~ControlThread() {
  TERRACE_CHECK(!thread_.runs(), "a control thread was destroyed before it was stopped");
}

void ControlThread::Wake() {
  const std::uint64_t one = 1;
  // Fails only when it is full, and then the thread is awake anyway.
  if (::write(wake_.get(), &one, sizeof one) < 0) return;
}

bool ControlThread::Stop(std::chrono::milliseconds timeout) {
  stop_.store(true, std::memory_order_release);
  Wake();
  if (thread_.JoinUntil(DeadlineIn(timeout))) return true;
  TERRACE_LOG_ERROR("the control thread does not stop: a tier that serves peers does not return");
  return false;
}

void ControlThread::TakePriority() {
  const GrantedPriority granted = SetThisThreadPriority(wanted_priority_);
  priority_.store(granted.priority, std::memory_order_relaxed);
  if (granted.why_not_more.empty()) {
    TERRACE_LOG_INFO("the control thread runs with priority {}",
                     ThreadPriorityName(granted.priority));
  } else {
    TERRACE_LOG_INFO("the control thread runs with priority {}, {} was not granted: {}",
                     ThreadPriorityName(granted.priority), ThreadPriorityName(wanted_priority_),
                     granted.why_not_more);
  }
}

void ControlThread::Run() {
  TakePriority();
  bool was_active = false;
  while (!stop_.load(std::memory_order_acquire)) {
    const ControlLoop::Next next =
        loop_.RunOnce(std::chrono::steady_clock::now(), std::exchange(woken_, false));
    // Readable, and yet nothing to do: the tier is left alone for now, or leaves its descriptor as
    // it is. Looking again at once would be a busy loop.
    const bool by_descriptor = std::exchange(woken_by_descriptor_, false);
    descriptors_rest_ = next.failed || (by_descriptor && !next.active);
    if (next.wait.count() > 0 && !(was_active && SomethingArrives(kSpin))) PollOnce(next.wait);
    was_active = next.active;
  }
}

// Looks again and again for `time`; true as soon as something is there.
bool ControlThread::SomethingArrives(std::chrono::nanoseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  do {
    if (PollOnce(std::chrono::nanoseconds(0))) return true;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// True if something is there within `timeout`.
bool ControlThread::PollOnce(std::chrono::nanoseconds timeout) {
  const std::size_t count = descriptors_rest_ ? 1 : polled_.size();
  const timespec time = ToTimespec(timeout);
  if (::ppoll(polled_.data(), count, &time, nullptr) <= 0) return false;
  woken_ = true;
  if (polled_.front().revents != 0) {
    std::uint64_t ignored = 0;
    if (::read(wake_.get(), &ignored, sizeof ignored) < 0) return true;  // Taken already.
  }
  for (std::size_t i = 1; i < count; ++i) {
    woken_by_descriptor_ = woken_by_descriptor_ || polled_[i].revents != 0;
  }
  return true;
}

}  // namespace terrace
