#include "tier/peer/data_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/log_limiter.h"
#include "base/mutex.h"
#include "tier/peer/holder_link.h"
#include "tier/peer/link_poller.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCheckEvery{50};
// How long it waits for descriptors to become free in a process that has none left.
constexpr std::chrono::milliseconds kNoDescriptorsPause{100};
// A flood of connections gets this many of them accepted between two looks at the links.
constexpr int kAcceptsAtOnce = 32;

constexpr std::uint64_t kWakeId = 0;
constexpr std::uint64_t kListenerId = 1;
constexpr std::uint64_t kFirstLinkId = 2;

}  // namespace

// Confined to the server's thread, but for what is said otherwise.
class DataServer::Loop {
 public:
  Loop(int wake, UniqueFd listener, UniqueFd epoll, DataServerOptions options, TierHost& host,
       LeaseTable& leases, std::function<void()> on_event)
      : wake_(wake),
        listener_(std::move(listener)),
        poller_(std::move(epoll), options.plane),
        options_(std::move(options)),
        on_event_(std::move(on_event)),
        shared_{.options = options_, .host = host, .leases = leases, .opened = {}, .refusal = {}} {}

  // From any thread; then wake it.
  void Stop() { stopping_.store(true, std::memory_order_release); }
  void SetDetail(std::vector<std::byte> detail) {
    MutexLock lock(mutex_);
    detail_ = std::move(detail);
  }
  void SetRefusal(std::string why) {
    MutexLock lock(mutex_);
    refusal_ = std::move(why);
  }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  void Run() {
    poller_.Watch(wake_, kWakeId, EPOLLIN, EPOLL_CTL_ADD);
    poller_.Watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
    while (!stopping_.load(std::memory_order_acquire)) {
      Wait();
      if (listener_ready_) Accept();
      for (auto& [id, link] : links_) {
        if (link->HasWork()) link->Turn();
      }
      CheckAll();
      Sweep();
      Tell();
    }
    links_.clear();
    Tell();
  }

 private:
  // Sleeps until there is something to do.
  void Wait() {
    listener_ready_ = false;
    const auto may_sleep = [] { return true; };
    const auto patience = static_cast<int>(Patience().count());
    poller_.Wait(patience, may_sleep, [&](std::uint64_t id, std::uint32_t events) {
      if (id == kWakeId) {
        OnWake();
      } else if (id == kListenerId) {
        listener_ready_ = true;
      } else if (const auto link = links_.find(id); link != links_.end()) {
        link->second->OnReady(events);
      }
      return true;
    });
  }

  // 0 if a link has work; without connections it sleeps as long as nothing comes.
  std::chrono::milliseconds Patience() const {
    for (const auto& [id, link] : links_) {
      if (link->HasWork()) return std::chrono::milliseconds(0);
    }
    if (!links_.empty() || paused_) return kCheckEvery;
    return std::chrono::milliseconds(-1);
  }

  void OnWake() {
    std::uint64_t ignored = 0;
    (void)::eventfd_read(wake_, &ignored);
    MutexLock lock(mutex_);
    shared_.refusal = refusal_;
    if (!detail_ || shared_.opened) return;
    shared_.opened.emplace();
    AppendDataFrame(DataOpened{.plane = static_cast<std::uint8_t>(options_.plane),
                               .chunk_bytes = shared_.host.identity().fields().chunk_bytes,
                               .stride_bytes = shared_.host.slot_stride_bytes(),
                               .region_bytes = shared_.host.Memory().bytes.size(),
                               .detail = *detail_},
                    *shared_.opened);
  }

  void Accept() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      UniqueFd fd(KeepAwayFromStdio(
          ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
      if (!fd.valid()) {
        const bool short_of =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (short_of) Pause();
        return;
      }
      if (shared_.open_links >= options_.links_max) {
        Refused(crowd_log_, "there are too many links");
        continue;
      }
      if (options_.check_connection) {
        if (auto checked = options_.check_connection(fd.get()); !checked.ok()) {
          Refused(wrong_log_, checked.error().message);
          continue;
        }
      }
      AddStranger(std::move(fd));
    }
  }

  void AddStranger(UniqueFd fd) {
    if (strangers_.size() >= options_.strangers_max) {
      links_.erase(strangers_.front());
      strangers_.pop_front();
      Refused(crowd_log_, "too many connections have not shown a token yet; the oldest gave way");
    }
    const std::uint64_t id = next_id_++;
    strangers_.push_back(id);
    auto link =
        std::make_unique<HolderLink>(std::move(fd), shared_, Clock::now() + options_.stranger_time);
    link->asked_events = EPOLLIN;
    poller_.Watch(link->fd(), id, EPOLLIN, EPOLL_CTL_ADD);
    link->OnReady(EPOLLIN);  // Most have spoken already.
    links_.emplace(id, std::move(link));
  }

  // Out of descriptors: a listener that stays readable would be a spin.
  void Pause() {
    paused_ = true;
    resume_at_ = Clock::now() + kNoDescriptorsPause;
    poller_.Watch(listener_.get(), kListenerId, 0, EPOLL_CTL_MOD);
  }

  void CheckAll() {
    const auto now = Clock::now();
    if (now < next_check_) return;
    next_check_ = now + kCheckEvery;
    for (auto& [id, link] : links_) {
      if (!link->over()) link->Check(now);
    }
    if (paused_ && now >= resume_at_) {
      paused_ = false;
      poller_.Watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_MOD);
    }
  }

  // Drops what is over, and asks for the events that the others wait for.
  void Sweep() {
    std::erase_if(strangers_, [&](std::uint64_t id) {
      const auto link = links_.find(id);
      return link == links_.end() || link->second->open() || link->second->over();
    });
    for (auto at = links_.begin(); at != links_.end();) {
      HolderLink& link = *at->second;
      if (link.over()) {
        if (link.open()) {
          Lost(link.why_over());
        } else {
          Refused(link.was_silent() ? silent_log_ : wrong_log_, link.why_over());
        }
        at = links_.erase(at);
        continue;
      }
      if (const std::uint32_t wanted = link.awaited_events(); wanted != link.asked_events) {
        link.asked_events = wanted;
        poller_.Watch(link.fd(), at->first, wanted, EPOLL_CTL_MOD);
      }
      ++at;
    }
  }

  void Tell() {
    if (std::exchange(shared_.something_ended, false) && on_event_) on_event_();
  }

  // `log`: of its kind.
  void Refused(LogLimiter& log, std::string_view why) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    TERRACE_LOG_WARN_LIMITED(log, Clock::now(), "peer data plane {}: a connection was refused: {}",
                             PlaneName(options_.plane), why);
  }
  void Lost(std::string_view why) {
    TERRACE_LOG_INFO_LIMITED(lost_log_, Clock::now(),
                             "peer data plane {}: a peer's link has ended: {}",
                             PlaneName(options_.plane), why);
  }

  const int wake_;
  const UniqueFd listener_;
  LinkPoller poller_;
  const DataServerOptions options_;
  const std::function<void()> on_event_;
  HolderShared shared_;
  std::unordered_map<std::uint64_t, std::unique_ptr<HolderLink>> links_;
  std::list<std::uint64_t> strangers_;  // Oldest first.
  std::uint64_t next_id_ = kFirstLinkId;
  bool listener_ready_ = false;
  bool paused_ = false;
  Clock::time_point resume_at_{};
  Clock::time_point next_check_{};
  LogLimiter crowd_log_, silent_log_, wrong_log_;
  LogLimiter lost_log_;

  Mutex mutex_;
  std::optional<std::vector<std::byte>> detail_ TERRACE_GUARDED_BY(mutex_);
  std::string refusal_ TERRACE_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_ = false;  // Release and acquire, though nothing else depends on it.
  std::atomic<std::uint64_t> refused_ = 0;  // Relaxed: it only counts.
};

Result<std::unique_ptr<DataServer>> DataServer::Start(UniqueFd listener, DataServerOptions options,
                                                      TierHost& host, LeaseTable& leases,
                                                      std::function<void()> on_event) {
  UniqueFd wake(KeepAwayFromStdio(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  UniqueFd epoll(KeepAwayFromStdio(::epoll_create1(EPOLL_CLOEXEC)));
  if (!wake.valid() || !epoll.valid()) return ErrnoError("start a peer data plane", errno);
  const PlaneKind plane = options.plane;
  std::unique_ptr<DataServer> server(new DataServer(std::move(wake)));
  server->loop_ = std::make_unique<Loop>(server->wake_.get(), std::move(listener), std::move(epoll),
                                         std::move(options), host, leases, std::move(on_event));
  const std::string suffix{PlaneName(plane)[0], 'h'};
  auto started =
      server->thread_.Start("terrace-peer-", suffix, [loop = server->loop_.get()] { loop->Run(); });
  if (!started.ok()) return std::move(started).error();
  return server;
}

DataServer::DataServer(UniqueFd wake) : wake_(std::move(wake)) {}

DataServer::~DataServer() {
  TERRACE_CHECK(Shutdown(DeadlineIn(kDestructorPatience)), "a data plane's thread does not end");
}

void DataServer::Open(std::vector<std::byte> detail) {
  loop_->SetDetail(std::move(detail));
  (void)::eventfd_write(wake_.get(), 1);
}

void DataServer::Refuse(std::string why) {
  loop_->SetRefusal(std::move(why));
  (void)::eventfd_write(wake_.get(), 1);
}

std::uint64_t DataServer::refused_connections() const { return loop_->refused(); }

bool DataServer::Shutdown(std::chrono::steady_clock::time_point deadline) {
  if (!thread_.runs()) return true;
  loop_->Stop();
  (void)::eventfd_write(wake_.get(), 1);
  return thread_.JoinUntil(deadline);
}

}  // namespace terrace
