// What the two sides of a data plane sleep on: sockets, each under a number that its owner chose.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "tier/peer/data_plane.h"

namespace terrace {

// Confined to one thread.
class LinkPoller {
 public:
  // `epoll` is of epoll_create1(); `plane` is for the log.
  LinkPoller(UniqueFd epoll, PlaneKind plane) : epoll_(std::move(epoll)), plane_(plane) {}

  // `operation` is EPOLL_CTL_ADD or EPOLL_CTL_MOD. A descriptor that is closed is forgotten, though
  // what it had to tell may still come.
  void Watch(int fd, std::uint64_t id, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
      TERRACE_LOG_ERROR("peer data plane {}: epoll: {}", PlaneName(plane_),
                        ErrnoError("watch a socket", errno).message);
    }
  }

  // Sleeps until something happens, at most `patience_ms` (-1: for ever), and calls on_event(id,
  // events) for each, which says whether that was something. Looks without sleeping if may_sleep()
  // forbids it, which is asked right before that, and for a moment after something has happened or
  // its owner had work (a patience of 0): the next thing is often near, and waking a thread takes
  // longer.
  template <typename MaySleep, typename OnEvent>
  void Wait(int patience_ms, const MaySleep& may_sleep, const OnEvent& on_event) {
    if (std::exchange(active_, patience_ms == 0)) spin_until_ = Clock::now() + kSpin;
    if (patience_ms != 0) {
      if (Clock::now() < spin_until_) {
        patience_ms = 0;
        std::this_thread::yield();
      } else if (!may_sleep()) {
        patience_ms = 0;
        active_ = true;
      }
    }
    std::array<epoll_event, 64> events{};
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience_ms);
    for (int i = 0; i < count; ++i) {
      // Copies: the kernel packs its events, so that they lie anywhere.
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      const std::uint32_t happened = events[static_cast<std::size_t>(i)].events;
      if (on_event(id, happened)) active_ = true;
    }
  }

  // Something has happened that no descriptor told.
  void NoteActivity() { active_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{50};

  const UniqueFd epoll_;
  const PlaneKind plane_;
  bool active_ = false;  // Since the last Wait() began.
  Clock::time_point spin_until_{};
};

}  // namespace terrace
