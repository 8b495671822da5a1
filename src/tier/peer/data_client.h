// The asker's side of a data plane: one thread that reads from all holders.
//
// What comes is written into a slot by this thread alone (or, on its order, by a network card), so
// a read that has ended is not written afterwards.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "terrace/result.h"
#include "terrace/tier_host.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/plane_dialer.h"

namespace terrace {

// Thread-safe. Its methods are those of DataPlane.
class DataClient {
 public:
  static Result<std::unique_ptr<DataClient>> Start(PlaneKind plane,
                                                   std::unique_ptr<PlaneDialer> dialer,
                                                   TierHost& host, std::function<void()> on_event);
  // Pre: Shutdown() returned true, or nobody waits for longer than kDestructorPatience.
  ~DataClient();
  DataClient(const DataClient&) = delete;
  DataClient& operator=(const DataClient&) = delete;

  void Open(DataLinkId link, const std::string& host, const std::string& offer,
            const SessionToken& token, std::chrono::steady_clock::time_point deadline);
  void Read(DataLinkId link, std::span<const ChunkRead> reads);
  void Close(DataLinkId link);
  void Take(std::vector<DataEvent>& events);
  // Closes every link and ends the thread. False if that takes longer than until `deadline`.
  [[nodiscard]] bool Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  class Loop;

  struct Command {
    enum class Kind : std::uint8_t { kOpen, kRead, kClose };
    Kind kind = Kind::kClose;
    DataLinkId link;
    // If kOpen.
    std::string host, offer;
    SessionToken token{};
    std::chrono::steady_clock::time_point deadline{};
    // If kRead.
    std::vector<ChunkRead> reads;
  };
  struct LostLink {
    DataLinkId link;
    std::string why;
  };

  DataClient(UniqueFd wake, std::function<void()> on_event);

  void Wake();
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  std::vector<Command> TakeCommands();
  // Ends the links of `lost`: what was still to be read of them ends, too, and then they do.
  void Publish(std::vector<DataEvent>& events, const std::vector<LostLink>& lost);
  void EndReads(DataLinkId link, std::span<const ChunkRead> reads) TERRACE_REQUIRES(mutex_);
  void NotePending() TERRACE_REQUIRES(mutex_) {
    pending_.store(!events_.empty(), std::memory_order_release);
  }

  const UniqueFd wake_;  // An eventfd.
  const std::function<void()> on_event_;
  std::unique_ptr<Loop> loop_;
  EndingThread thread_;

  Mutex mutex_;
  std::vector<Command> commands_ TERRACE_GUARDED_BY(mutex_);
  std::vector<DataEvent> events_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_set<DataLinkId> links_ TERRACE_GUARDED_BY(mutex_);  // Whose kLost is to come.
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;

  std::atomic<bool> pending_ = false;   // Whether events_ has any; release with mutex_ held.
  std::atomic<bool> stopping_ = false;  // Set before wake_ is written.
};

}  // namespace terrace
