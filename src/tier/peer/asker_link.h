// One link to a holder, at the asker.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "base/log_limiter.h"
#include "terrace/tier_host.h"
#include "tier/peer/plane_dialer.h"

namespace terrace {

// What all links of a client share. Confined to its thread.
struct AskerShared {
  PlaneKind plane;
  TierHost& host;
  PlaneDialer& dialer;
  std::vector<DataEvent> events;  // Since they were last taken; without kLost.
  LogLimiter corrupt_log;
};

// Confined to the client's thread. Never blocks.
class AskerLink {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  AskerLink(DataLinkId id, AskerShared& shared, std::unique_ptr<Dial> dial,
            const SessionToken& token, TimePoint open_by)
      : id_(id), shared_(shared), dial_(std::move(dial)), token_(token), open_by_(open_by) {}
  AskerLink(const AskerLink&) = delete;
  AskerLink& operator=(const AskerLink&) = delete;

  // -1 while there is none.
  int fd() const { return fd_.get(); }
  std::uint32_t awaited_events() const;
  // Of epoll, as the client last asked for them, and for which descriptor.
  std::uint32_t asked_events = 0;
  int asked_fd = -1;

  void Read(std::vector<ChunkRead> reads);
  // Its reads end now, or, if they are being fetched, as soon as the plane is quiet.
  void End(std::string why);
  // No socket, no reads: only its kLost is left to be said.
  bool over() const { return state_ == State::kEnding && asked_.empty(); }
  const std::string& why_over() const { return why_over_; }

  void OnReady(std::uint32_t events);
  bool HasWork() const;
  void Turn();
  // When Check() is to be called next.
  TimePoint next_check() const;
  void Check(TimePoint now);

 private:
  enum class State { kDialing, kConnecting, kOpening, kOpen, kEnding };
  static constexpr std::chrono::milliseconds kDialAgain{5};
  static constexpr std::chrono::milliseconds kLookAgain{1};
  static constexpr std::size_t kReceiveMax = 256 << 10;  // At a time: to be hashed while in cache.
  static constexpr std::size_t kWindowBytes = 8 << 20;   // That are asked for at a time, but
  static constexpr std::size_t kWindowMin = 2;           // always that many chunks
  static constexpr std::size_t kWindowMax = 64;          // and at most so many.
  static constexpr std::size_t kFetchedUnsaidMax = 8;    // Before the holder is told.

  struct Asked {
    ChunkRead read;
    std::size_t received = 0;
    bool granted = false;        // The holder keeps it until it is told that it is done.
    bool fetching = false;       // The plane may write the slot.
    std::uint64_t checksum = 0;  // As the record states.
  };
  // A chunk that is there, to be fetched.
  struct Found {
    std::uint64_t tag = 0;
    std::uint64_t where = 0;
    ChunkRecord record;
  };

  void DialNext();
  void OnConnected();
  void Receive();
  void TakeFrames();
  void Take(const DataOpened& opened);
  void Take(const DataBytes& bytes);
  void Take(const DataChunk& chunk);
  template <typename Other>
  void Take(const Other&) {
    End("the holder sends what only an asker does");
  }
  void TakePayload(std::span<const std::byte> bytes);
  void OnPayload(std::size_t size);
  // Whether the record is of what was asked for; says why not in the log.
  std::optional<ChunkRecord> CheckRecord(const DataChunk& chunk, const ChunkRead& read);
  void FetchNext();
  void TakeFetched();
  void AskMore();
  void Send();
  void EndRead(std::uint64_t tag, ReadEnd end);
  void LogCorrupt(const ChunkRead& read, const std::string& why);
  std::size_t chunk_bytes() const { return shared_.host.identity().fields().chunk_bytes; }
  std::size_t Window() const;

  const DataLinkId id_;
  AskerShared& shared_;
  std::unique_ptr<Dial> dial_;
  const SessionToken token_;
  const TimePoint open_by_;

  State state_ = State::kDialing;
  TimePoint dial_at_{};
  UniqueFd fd_;
  std::string why_over_;
  bool blocked_ = false;  // The socket takes no more.

  std::array<std::byte, 2 * kDataFrameSizeMax> in_;
  std::size_t in_size_ = 0;
  UniqueFd passed_;  // What came along, until it is used.
  std::vector<std::byte> out_;
  std::size_t out_sent_ = 0;

  std::deque<ChunkRead> waiting_;                   // Not asked for yet.
  std::unordered_map<std::uint64_t, Asked> asked_;  // By tag.
  std::deque<Found> found_;
  std::size_t fetched_unsaid_ = 0;          // Since frames were last sent.
  std::unique_ptr<RemoteChunks> remote_;    // If the link does not carry the chunks.
  std::optional<std::uint64_t> receiving_;  // The tag of the chunk whose bytes come.
  std::size_t piece_left_ = 0;              // Bytes before the next frame.
  Xxh3Stream hash_;                         // Of what was received of it.
};

}  // namespace terrace
