#include "tier/peer/data_client.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "tier/peer/asker_link.h"
#include "tier/peer/link_poller.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// In place of the id of a link. Links have their own numbers here, since epoll may still tell of a
// descriptor that was closed.
constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
constexpr std::uint64_t kPlaneId = ~std::uint64_t{1};

constexpr const char* kClosed = "closed";

// How long news may wait while there is more to do.
constexpr std::chrono::milliseconds kHoldBackMax{1};

}  // namespace

// Confined to the client's thread.
class DataClient::Loop {
 public:
  Loop(DataClient& client, PlaneKind plane, std::unique_ptr<PlaneDialer> dialer, TierHost& host,
       UniqueFd epoll)
      : client_(client),
        poller_(std::move(epoll), plane),
        dialer_(std::move(dialer)),
        shared_{.plane = plane, .host = host, .dialer = *dialer_, .events = {}, .corrupt_log = {}} {
  }

  void Run() {
    poller_.Watch(client_.wake_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
    if (dialer_->descriptor() >= 0) {
      poller_.Watch(dialer_->descriptor(), kPlaneId, EPOLLIN, EPOLL_CTL_ADD);
    }
    while (!stopped_ || !links_.empty()) {
      Wait();
      for (Command& command : client_.TakeCommands()) {
        Obey(command);
      }
      if (client_.stopping() && !std::exchange(stopped_, true)) {
        for (auto& [id, link] : links_) link->End("this node is shutting down");
      }
      if (dialer_->Progress()) poller_.NoteActivity();
      const auto now = Clock::now();
      for (auto& [id, link] : links_) {
        if (link->HasWork()) link->Turn();
        link->Check(now);
      }
      Sweep();
    }
  }

 private:
  // Sleeps until there is something to do.
  void Wait() {
    const auto may_sleep = [&] { return dialer_->Arm(); };
    poller_.Wait(PatienceMs(), may_sleep, [&](std::uint64_t id, std::uint32_t events) {
      if (id == kWakeId) {
        std::uint64_t ignored = 0;
        (void)::eventfd_read(client_.wake_.get(), &ignored);
      } else if (const auto link = links_.find(DataLinkId(id)); link != links_.end()) {
        link->second->OnReady(events);
      }
      // The plane's stays readable until it is armed; Progress() says what it was worth.
      return id != kPlaneId;
    });
  }

  int PatienceMs() const {
    auto next = Clock::time_point::max();
    for (const auto& [id, link] : links_) {
      if (link->HasWork()) return 0;
      next = std::min(next, link->next_check());
    }
    if (next == Clock::time_point::max()) return stopped_ ? 10 : -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }

  void Obey(Command& command) {
    if (command.kind == Command::Kind::kOpen) {
      auto dial = dialer_->Begin(command.host, command.offer);
      links_.emplace(command.link,
                     std::make_unique<AskerLink>(command.link, shared_, std::move(dial),
                                                 command.token, command.deadline));
      return;
    }
    const auto link = links_.find(command.link);
    if (link == links_.end()) return;  // It is lost, and Publish() saw to this.
    if (command.kind == Command::Kind::kRead) return link->second->Read(std::move(command.reads));
    link->second->End(kClosed);
  }

  // Tells of what has happened, and asks for the events that the links wait for.
  void Sweep() {
    std::vector<LostLink> lost;
    for (auto at = links_.begin(); at != links_.end();) {
      AskerLink& link = *at->second;
      if (link.over()) {
        lost.push_back({at->first, link.why_over()});
        at = links_.erase(at);
        continue;
      }
      WatchLink(at->first, link);
      ++at;
    }
    if (lost.empty() && MayHoldBack()) return;
    client_.Publish(shared_.events, lost);
    shared_.events.clear();
    held_back_since_.reset();
  }

  // Whoever waits for a prompt is not woken for each of its chunks.
  bool MayHoldBack() {
    if (shared_.events.empty()) return true;
    const auto now = Clock::now();
    if (!held_back_since_) held_back_since_ = now;
    const bool busy = std::any_of(links_.begin(), links_.end(),
                                  [](const auto& link) { return link.second->HasWork(); });
    return busy && now - *held_back_since_ < kHoldBackMax;
  }

  void WatchLink(DataLinkId id, AskerLink& link) {
    const std::uint32_t wanted = link.awaited_events();
    if (link.fd() < 0 || (link.fd() == link.asked_fd && wanted == link.asked_events)) return;
    poller_.Watch(link.fd(), id.value, wanted,
                  link.fd() == link.asked_fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD);
    link.asked_fd = link.fd();
    link.asked_events = wanted;
  }

  DataClient& client_;
  LinkPoller poller_;
  const std::unique_ptr<PlaneDialer> dialer_;
  AskerShared shared_;
  std::unordered_map<DataLinkId, std::unique_ptr<AskerLink>> links_;
  bool stopped_ = false;
  std::optional<Clock::time_point> held_back_since_;
};

Result<std::unique_ptr<DataClient>> DataClient::Start(PlaneKind plane,
                                                      std::unique_ptr<PlaneDialer> dialer,
                                                      TierHost& host,
                                                      std::function<void()> on_event) {
  UniqueFd wake(KeepAwayFromStdio(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  UniqueFd epoll(KeepAwayFromStdio(::epoll_create1(EPOLL_CLOEXEC)));
  if (!wake.valid() || !epoll.valid()) return ErrnoError("start a peer data plane", errno);
  std::unique_ptr<DataClient> client(new DataClient(std::move(wake), std::move(on_event)));
  client->loop_ = std::make_unique<Loop>(*client, plane, std::move(dialer), host, std::move(epoll));
  const std::string suffix{PlaneName(plane)[0], 'a'};
  auto started =
      client->thread_.Start("terrace-peer-", suffix, [loop = client->loop_.get()] { loop->Run(); });
  if (!started.ok()) return std::move(started).error();
  return client;
}

DataClient::DataClient(UniqueFd wake, std::function<void()> on_event)
    : wake_(std::move(wake)), on_event_(std::move(on_event)) {}

DataClient::~DataClient() {
  TERRACE_CHECK(Shutdown(DeadlineIn(kDestructorPatience)), "a data plane's thread does not end");
}

void DataClient::Open(DataLinkId link, const std::string& host, const std::string& offer,
                      const SessionToken& token, std::chrono::steady_clock::time_point deadline) {
  bool refused = false;
  {
    MutexLock lock(mutex_);
    refused = closed_;
    if (refused) {
      events_.push_back(
          {link, DataEvent::Kind::kLost, 0, ReadEnd::kOk, "this node is shutting down"});
      NotePending();
    } else {
      links_.insert(link);
      commands_.push_back({Command::Kind::kOpen, link, host, offer, token, deadline, {}});
    }
  }
  if (!refused) return Wake();
  if (on_event_) on_event_();
}

void DataClient::Read(DataLinkId link, std::span<const ChunkRead> reads) {
  bool lost = false;
  {
    MutexLock lock(mutex_);
    lost = !links_.contains(link);
    if (lost) {
      EndReads(link, reads);
      NotePending();
    } else {
      commands_.emplace_back();
      commands_.back().kind = Command::Kind::kRead;
      commands_.back().link = link;
      commands_.back().reads.assign(reads.begin(), reads.end());
    }
  }
  if (!lost) return Wake();
  if (on_event_) on_event_();
}

void DataClient::Close(DataLinkId link) {
  {
    MutexLock lock(mutex_);
    if (!links_.contains(link)) return;
    commands_.emplace_back();
    commands_.back().link = link;
  }
  Wake();
}

void DataClient::Take(std::vector<DataEvent>& events) {
  if (!pending_.load(std::memory_order_acquire)) return;
  MutexLock lock(mutex_);
  std::move(events_.begin(), events_.end(), std::back_inserter(events));
  events_.clear();
  NotePending();
}

bool DataClient::Shutdown(std::chrono::steady_clock::time_point deadline) {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  stopping_.store(true, std::memory_order_release);
  Wake();
  return thread_.JoinUntil(deadline);
}

void DataClient::Wake() { (void)::eventfd_write(wake_.get(), 1); }

std::vector<DataClient::Command> DataClient::TakeCommands() {
  MutexLock lock(mutex_);
  return std::exchange(commands_, {});
}

void DataClient::Publish(std::vector<DataEvent>& events, const std::vector<LostLink>& lost) {
  if (events.empty() && lost.empty()) return;
  {
    MutexLock lock(mutex_);
    std::move(events.begin(), events.end(), std::back_inserter(events_));
    for (const LostLink& one : lost) {
      for (const Command& command : commands_) {
        if (command.link == one.link) EndReads(one.link, command.reads);
      }
      links_.erase(one.link);
      events_.push_back({one.link, DataEvent::Kind::kLost, 0, ReadEnd::kOk, one.why});
    }
    NotePending();
  }
  if (on_event_) on_event_();
}

// In front of the link's kLost, if nobody has taken that yet.
void DataClient::EndReads(DataLinkId link, std::span<const ChunkRead> reads) {
  auto at = std::find_if(events_.begin(), events_.end(), [&](const DataEvent& event) {
    return event.link == link && event.kind == DataEvent::Kind::kLost;
  });
  for (const ChunkRead& read : reads) {
    at =
        std::next(events_.insert(at, {link, DataEvent::Kind::kRead, read.tag, ReadEnd::kLost, {}}));
  }
}

}  // namespace terrace
