// One asker's link, at the holder.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "tier/peer/data_server.h"
#include "wire/peer_data.h"

namespace terrace {

// What all links of a server share. Confined to its thread.
struct HolderShared {
  const DataServerOptions& options;
  TierHost& host;
  LeaseTable& leases;
  // The OPENED frame, once askers are answered.
  std::optional<std::vector<std::byte>> opened;
  // Why none ever will be, if that is so.
  std::string refusal;
  std::uint32_t open_links = 0;
  // Since it was last cleared: a read has ended or a link is gone, which the tier should hear of.
  bool something_ended = false;
};

// Confined to the server's thread. Never blocks.
class HolderLink {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  HolderLink(UniqueFd fd, HolderShared& shared, TimePoint show_token_by)
      : fd_(std::move(fd)), shared_(shared), show_token_by_(show_token_by) {}
  // Ends its reads and, if it was open, tells the lease table that it is gone.
  ~HolderLink();
  HolderLink(const HolderLink&) = delete;
  HolderLink& operator=(const HolderLink&) = delete;

  int fd() const { return fd_.get(); }
  // Of epoll.
  std::uint32_t awaited_events() const;
  // Of epoll, as the server last asked for them.
  std::uint32_t asked_events = 0;

  bool open() const { return session_.has_value(); }
  // Whether it is over, and why, for a person.
  bool over() const { return !why_over_.empty(); }
  const std::string& why_over() const { return why_over_; }
  // Pre: over, and it was never open. Whether it said nothing, rather than something wrong.
  bool was_silent() const { return was_silent_; }

  // After the socket became readable or writable.
  void OnReady(std::uint32_t events);
  // Whether a turn would do something now.
  bool HasWork() const;
  // One piece of work.
  void Turn();
  // From time to time: deadlines, and leases that ended meanwhile.
  void Check(TimePoint now);

 private:
  static constexpr std::size_t kReadsMax = 64;        // That may wait here.
  static constexpr std::size_t kGrantedMax = 256;     // That the asker may fetch at a time.
  static constexpr std::size_t kOutMax = 16 << 10;    // Bytes that wait for the asker.
  static constexpr std::size_t kPieceSize = 1 << 20;  // Announced at a time.
  static constexpr std::size_t kDescriptorRoom = 64;

  // The chunk whose bytes are going out.
  struct Sending {
    std::uint64_t tag = 0;
    LeaseId lease;
    LeaseTable::Chunk chunk;
    std::span<const std::byte> payload;  // Of the whole chunk.
    std::optional<std::uint64_t> checksum;
    std::size_t sent = 0;
    std::size_t announced = 0;  // By BYTES.
  };

  void Receive();
  void TakeFrames();
  void Take(const DataOpen& open);
  void Take(const DataRead& read);
  void Take(const DataDone& done);
  template <typename Other>
  void Take(const Other&) {
    End("it sends what only a holder does");
  }
  void BeginNextRead();
  void Grant(const DataRead& read, const LeaseTable::Chunk& chunk);
  void AppendRecord(DataChunk answer, const ChunkKey& key, std::uint64_t checksum);
  void AnnouncePiece();
  void FinishSending();
  void RefuseSending();
  void Send();
  bool can_be_answered() const { return shared_.opened || !shared_.refusal.empty(); }
  bool out_empty() const { return out_sent_ == out_.size(); }
  void EndRead(LeaseId lease);
  void End(std::string why) {
    if (why_over_.empty()) why_over_ = std::move(why);
  }
  void EndSilent(std::string why) {
    was_silent_ = !over();
    End(std::move(why));
  }

  const UniqueFd fd_;
  HolderShared& shared_;
  const TimePoint show_token_by_;
  std::optional<DataOpen> shown_;  // Until it can be answered.
  std::optional<SessionId> session_;
  std::string why_over_;
  bool was_silent_ = false;
  bool blocked_ = false;  // The socket takes no more.
  bool descriptor_due_ = false;

  std::array<std::byte, 4'096> in_;
  std::size_t in_size_ = 0;
  std::vector<std::byte> out_;  // Frames; they go before what is announced of `sending_`.
  std::size_t out_sent_ = 0;

  std::deque<DataRead> reads_;
  std::optional<Sending> sending_;
  Xxh3Stream hash_;  // Of what was sent of it, if its checksum is not known.
  std::unordered_map<std::uint64_t, LeaseId> granted_;  // By tag, until the asker is done.
};

}  // namespace terrace
