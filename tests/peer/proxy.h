// A TCP proxy between two nodes of a test, with faults.
//
// It listens at 127.0.0.2 and forwards to the same port of 127.0.0.1. Whoever dials a node by its
// proxy's address reaches the node's control port and, if that has a proxy too, its data port.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"

namespace terrace::testing {

inline constexpr char kProxyHost[] = "127.0.0.2";

// Thread-safe.
class Proxy {
 public:
  enum class Way : std::uint8_t { kToHolder, kToAsker };
  struct Fault {
    enum class Kind : std::uint8_t {
      kNone,
      kBlackHole,   // Accepts, forwards nothing either way; connections stay, nothing is lost.
      kOneWayHole,  // From byte `after` on nothing that way, nor the end of it; all the other way.
      kDelay,       // Each piece is 5 ms late, either way.
      kSlow,        // A byte each ms, either way.
      kCut,         // Behind byte `after` that way: reset, both ends.
      kTruncate,    // Behind byte `after` that way: closed in order, both ends.
      kFlip,        // A bit of byte `after` that way.
    };
    Kind kind = Kind::kNone;
    Way way = Way::kToAsker;
    std::size_t after = 0;  // Counted from Set() on, over all connections.
  };

  // Aborts if it can't listen.
  explicit Proxy(std::uint32_t port);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  void Set(const Fault& fault);
  // Whether a kCut, kTruncate or kFlip has happened since it was set.
  bool happened() const;
  // Bytes that went that way since the last Set().
  std::size_t forwarded(Way way) const;
  // Until so many bytes went that way since the last Set(); false after kPatience.
  bool AwaitForwarded(Way way, std::size_t bytes) const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Piece {
    TimePoint due;
    std::vector<std::byte> bytes;
  };
  struct Stream {
    int from = -1, to = -1;
    std::deque<Piece> pieces;
    std::size_t held = 0;  // Bytes of them.
    bool ended = false;
  };
  struct Connection {
    UniqueFd asker, holder;
    Stream to_holder, to_asker;
    bool over = false;
    Stream& Of(Way way) { return way == Way::kToHolder ? to_holder : to_asker; }
  };

  Fault CurrentFault() const;
  // How many bytes may be taken that way now.
  std::size_t Room(Way way) const TERRACE_REQUIRES(mutex_);
  void Run();
  void Accept();
  void Wait();
  void Take(Connection& connection, Way way, const Fault& fault);
  void Forward(Connection& connection, Way way, const Fault& fault);
  void End(Connection& connection, Fault::Kind how);

  const std::uint32_t port_;
  UniqueFd listener_;
  std::list<Connection> connections_;  // The thread's.
  mutable Mutex mutex_;
  mutable CondVar counted_;
  Fault fault_ TERRACE_GUARDED_BY(mutex_);
  bool happened_ TERRACE_GUARDED_BY(mutex_) = false;
  std::size_t counts_[2] TERRACE_GUARDED_BY(mutex_) = {};  // By Way.
  std::atomic<bool> stopping_ = false;                     // Relaxed: nothing else depends on it.
  std::thread thread_;
};

}  // namespace terrace::testing
