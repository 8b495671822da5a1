// What the two sides of a data plane sleep on: sockets, each under a number that its owner chose.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstdint>
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
  // events) for each.
  template <typename OnEvent>
  void Wait(int patience_ms, const OnEvent& on_event) {
    std::array<epoll_event, 64> events{};
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience_ms);
    for (int i = 0; i < count; ++i) {
      // Copies: the kernel packs its events, so that they lie anywhere.
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      const std::uint32_t happened = events[static_cast<std::size_t>(i)].events;
      on_event(id, happened);
    }
  }

 private:
  const UniqueFd epoll_;
  const PlaneKind plane_;
};

}  // namespace terrace
