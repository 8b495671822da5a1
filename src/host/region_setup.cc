#include "host/region_setup.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/same_user.h"
#include "base/thread.h"
#include "host/region_socket.h"

namespace terrace {
namespace {

// A process that connected. Strangers that never say hello are among them.
struct Peer {
  UniqueFd socket;
  pid_t pid = 0;
  std::uint32_t rank = RegionMessage::kNoRank;
  bool said_hello = false;
  bool mapped = false;
};

std::string Describe(const Peer& peer) {
  if (peer.rank == RegionMessage::kNoRank) {
    return fmt::format("the process without a rank (pid {})", peer.pid);
  }
  return fmt::format("rank {} (pid {})", peer.rank, peer.pid);
}

Error Unavailable(std::string message) { return {ErrorCode::kUnavailable, std::move(message)}; }

class Creator final : public RegionSetup {
 public:
  Creator(const RegionSharing& sharing, const RegionHeader& header, int memory_fd)
      : sharing_(sharing),
        header_(header),
        memory_fd_(memory_fd),
        deadline_(DeadlineIn(sharing.timeout)) {}

  ~Creator() override {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  Result<void> Start() {
    auto listener = ListenForRegion(sharing_.name);
    if (!listener.ok()) return Failed(listener.error());
    listener_ = std::move(listener).value();
    stop_ = UniqueFd(KeepAwayFromStdio(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!stop_.valid()) return Failed(ErrnoError("eventfd", errno));
    auto thread = StartThread("terrace-region", "", [this] { Run(); });
    if (!thread.ok()) return Failed(thread.error());
    thread_ = std::move(thread).value();
    return {};
  }

  Result<void> AwaitAll() override {
    MutexLock lock(mutex_);
    while (!verdict_) verdict_came_.Wait(mutex_);  // Run() ends at the deadline.
    return *verdict_;
  }

 private:
  void Reach(RegionStage stage) const {
    if (sharing_.at_stage) sharing_.at_stage(stage);
  }
  Error Failed(const Error& error) const {
    return {error.code, fmt::format("create host region \"{}\": {}", sharing_.name, error.message)};
  }

  // The thread's. Serves joiners until all have mapped or the set-up has failed, tells all, and
  // frees the name.
  void Run() {
    Reach(RegionStage::kListening);
    Result<void> served;
    while (served.ok() && MappedCount() + 1 < sharing_.process_count) served = ServeOnce();
    if (served.ok()) Reach(RegionStage::kCompleting);
    Result<void> verdict = served.ok() ? served : Failed(served.error());
    if (!verdict.ok()) TERRACE_LOG_ERROR("{}", verdict.error().message);
    if (!verdict.ok()) AcceptAll();  // They would wait for another creator.
    // Before they are told: a process that knows that all is done finds the name free.
    listener_.Reset();
    TellAll(verdict);
    peers_.clear();
    {
      MutexLock lock(mutex_);
      verdict_ = std::move(verdict);
    }
    verdict_came_.NotifyAll();
  }

  std::uint32_t MappedCount() const {
    return static_cast<std::uint32_t>(
        std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.mapped; }));
  }

  // Waits for something to happen and takes it up. An error ends the set-up.
  Result<void> ServeOnce() {
    std::vector<pollfd> wait{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) wait.push_back({peer.socket.get(), POLLIN, 0});
    const int ready = ::poll(wait.data(), wait.size(), PollTimeoutMs(deadline_));
    if (ready < 0 && errno != EINTR) return ErrnoError("wait for processes", errno);
    if (std::chrono::steady_clock::now() >= deadline_) {
      return Unavailable(
          fmt::format("not all have come after {} ms{}", sharing_.timeout.count(), Missing()));
    }
    if (ready <= 0) return {};
    if (wait[0].revents != 0) return Unavailable("the creator stopped before all had mapped it");
    for (std::size_t i = 2; i < wait.size(); ++i) {
      if (wait[i].revents == 0) continue;
      if (auto heard = Hear(peers_[i - 2]); !heard.ok()) return heard;
    }
    std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.valid(); });
    return wait[1].revents != 0 ? Accept() : Result<void>();
  }

  Result<void> Accept() {
    auto accepted = AcceptForRegion(listener_.get());
    if (!accepted.ok()) return std::move(accepted).error();
    if (!accepted.value()) return {};
    Peer peer{.socket = std::move(*accepted.value())};
    auto pid = CheckSameUser(peer.socket.get());
    if (pid.ok() && peers_.size() > 2 * sharing_.process_count) {
      pid = Unavailable(fmt::format("process {}: too many connections", pid.value()));
    }
    if (!pid.ok()) {
      TERRACE_LOG_WARN("create host region \"{}\": refused: {}", sharing_.name,
                       pid.error().message);
      return {};
    }
    peer.pid = pid.value();
    peers_.push_back(std::move(peer));
    return {};
  }

  void AcceptAll() {
    std::size_t count = 0;
    do {
      count = peers_.size();
      IgnoreError(Accept(), "the set-up has failed already");
    } while (peers_.size() > count);
  }

  // One message of one process.
  Result<void> Hear(Peer& peer) {
    auto received = ReceiveRegionMessage(peer.socket.get());
    if (!peer.said_hello) return HearHello(peer, received);
    if (!received.ok()) {
      return Unavailable(Describe(peer) + " sent nonsense: " + received.error().message);
    }
    const bool is_there = received.value().has_value();
    if (is_there && received.value()->message.kind == RegionMessage::Kind::kMapped) {
      peer.mapped = true;
      return {};
    }
    peer.mapped = false;
    const std::string how =
        is_there ? std::string(" gave up: ") + received.value()->message.text : " went away";
    return Unavailable(Describe(peer) + how + Missing());
  }

  // Who has not said hello is nobody yet and can't end the set-up, but for a rank that is wrong.
  Result<void> HearHello(Peer& peer, const Result<std::optional<ReceivedRegionMessage>>& received) {
    if (!received.ok() || !received.value() ||
        received.value()->message.kind != RegionMessage::Kind::kHello) {
      if (!received.ok()) {
        Refuse(peer, fmt::format("process {}: {}", peer.pid, received.error().message));
      }
      peer.socket.Reset();
      return {};
    }
    const std::uint32_t rank = received.value()->message.rank;
    if (IsOfAnotherEngine(received.value()->message)) {
      Refuse(peer, fmt::format("process {} is rank {} of another engine of the same name", peer.pid,
                               rank));
      return {};
    }
    if (auto checked = CheckRank(rank, peer.pid); !checked.ok()) {
      Tell(peer, RegionMessage::Kind::kFailed, checked.error().message);
      return checked;
    }
    peer.rank = rank;
    peer.said_hello = true;
    Reach(RegionStage::kOffering);
    Tell(peer, RegionMessage::Kind::kOffer, "");
    return {};
  }

  void Refuse(Peer& peer, const std::string& why) const {
    TERRACE_LOG_WARN("create host region \"{}\": refused: {}", sharing_.name, why);
    Tell(peer, RegionMessage::Kind::kFailed, why);
    peer.socket.Reset();
  }

  bool IsOfAnotherEngine(const RegionMessage& hello) const {
    return hello.rank != RegionMessage::kNoRank && hello.text[0] != '\0' &&
           !sharing_.instance.empty() && sharing_.instance != hello.text;
  }

  Result<void> CheckRank(std::uint32_t rank, pid_t pid) const {
    if (rank == RegionMessage::kNoRank) {
      const std::uint32_t most = sharing_.process_count - sharing_.rank_count;
      if (CountOf(rank) < most) return {};
      return Unavailable(fmt::format(
          "process {} has no rank, and there are {} such processes already", pid, most));
    }
    if (rank >= sharing_.rank_count) {
      return Unavailable(
          fmt::format("process {} is rank {}, of {} ranks", pid, rank, sharing_.rank_count));
    }
    if (CountOf(rank) == 0) return {};
    return Unavailable(fmt::format("process {} is rank {}, and so is another", pid, rank));
  }

  // Processes of that rank, this one included.
  std::uint32_t CountOf(std::uint32_t rank) const {
    const bool is_ours = sharing_.rank.value_or(RegionMessage::kNoRank) == rank;
    return static_cast<std::uint32_t>(
        std::count_if(peers_.begin(), peers_.end(),
                      [rank](const Peer& peer) { return peer.said_hello && peer.rank == rank; }) +
        (is_ours ? 1 : 0));
  }

  bool HasMapped(std::uint32_t rank) const {
    if (sharing_.rank == rank) return true;
    return std::any_of(peers_.begin(), peers_.end(),
                       [rank](const Peer& peer) { return peer.mapped && peer.rank == rank; });
  }

  // For the end of a message: how far it has come.
  std::string Missing() const {
    std::string missing;
    for (std::uint32_t rank = 0; rank < sharing_.rank_count; ++rank) {
      if (!HasMapped(rank)) {
        missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank);
      }
    }
    if (missing.empty()) missing = "a process without a rank";
    return fmt::format("; {} of {} processes have mapped it; missing: {}", MappedCount() + 1,
                       sharing_.process_count, missing);
  }

  void TellAll(const Result<void>& verdict) const {
    for (const Peer& peer : peers_) {
      if (!verdict.ok()) {
        Tell(peer, RegionMessage::Kind::kFailed, verdict.error().message);
      } else if (peer.said_hello) {
        Tell(peer, RegionMessage::Kind::kComplete, "");
      }
    }
  }

  void Tell(const Peer& peer, RegionMessage::Kind kind, const std::string& text) const {
    RegionMessage message;
    message.kind = kind;
    message.header = header_;
    message.SetText(text);
    const int memory = kind == RegionMessage::Kind::kOffer ? memory_fd_ : -1;
    IgnoreError(SendRegionMessage(peer.socket.get(), message, memory),
                "if it is gone, that is heard from its socket");
  }

  const RegionSharing sharing_;
  const RegionHeader header_;
  const int memory_fd_;
  const std::chrono::steady_clock::time_point deadline_;

  Mutex mutex_;
  CondVar verdict_came_;
  std::optional<Result<void>> verdict_ TERRACE_GUARDED_BY(mutex_);

  UniqueFd stop_;
  std::thread thread_;
  // The thread's, once it runs.
  UniqueFd listener_;
  std::vector<Peer> peers_;
};

}  // namespace

Result<void> CheckRegionSharing(const RegionSharing& sharing) {
  constexpr std::uint32_t kProcessCountMax = 1024;
  std::string faults;
  auto blame = [&faults](const std::string& fault) {
    faults += (faults.empty() ? "" : "; ") + fault;
  };
  if (sharing.name.empty() || sharing.name.size() > kRegionNameSizeMax) {
    blame(fmt::format("name has {} characters, not 1 to {}", sharing.name.size(),
                      kRegionNameSizeMax));
  }
  constexpr std::size_t kInstanceSizeMax = 255;
  if (sharing.instance.size() > kInstanceSizeMax) {
    blame(fmt::format("instance has {} characters, not at most {}", sharing.instance.size(),
                      kInstanceSizeMax));
  }
  const std::uint32_t others = sharing.rank ? 0 : 1;
  if (sharing.rank_count == 0) blame("rank_count is 0");
  if (sharing.process_count > kProcessCountMax ||
      sharing.process_count < std::uint64_t{sharing.rank_count} + others) {
    blame(fmt::format("process_count is {}, for {} ranks{}, at most {}", sharing.process_count,
                      sharing.rank_count, sharing.rank ? "" : " and this process without one",
                      kProcessCountMax));
  }
  if (sharing.rank && *sharing.rank >= sharing.rank_count) {
    blame(fmt::format("rank is {}, of {} ranks", *sharing.rank, sharing.rank_count));
  }
  if (faults.empty()) return {};
  return Error{ErrorCode::kInvalidArgument, "share host memory: " + faults};
}

Result<std::unique_ptr<RegionSetup>> StartRegionSetup(const RegionSharing& sharing,
                                                      const RegionHeader& header, int memory_fd) {
  auto creator = std::make_unique<Creator>(sharing, header, memory_fd);
  if (auto started = creator->Start(); !started.ok()) return std::move(started).error();
  return std::unique_ptr<RegionSetup>(std::move(creator));
}

}  // namespace terrace
