#include "tier/peer/asker_link.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace terrace {
namespace {

constexpr std::size_t kDescriptorRoom = 64;

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string ErrorText(std::string_view attempt, int error) {
  return fmt::format("{}: {}", attempt, std::generic_category().message(error));
}

// The first one is kept; a peer that passes more loses them.
void TakeDescriptors(msghdr& message, UniqueFd& passed) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      UniqueFd taken(KeepAwayFromStdio(fd));
      if (!passed.valid()) passed = std::move(taken);
    }
  }
}

}  // namespace

std::uint32_t AskerLink::awaited_events() const {
  switch (state_) {
    case State::kDialing:
    case State::kEnding:
      return 0;
    case State::kConnecting:
      return EPOLLOUT;
    case State::kOpening:
    case State::kOpen:
      break;
  }
  return (in_size_ < in_.size() ? EPOLLIN : 0U) | (blocked_ ? EPOLLOUT : 0U);
}

void AskerLink::Read(std::vector<ChunkRead> reads) {
  waiting_.insert(waiting_.end(), reads.begin(), reads.end());
  if (state_ == State::kEnding) {
    for (const ChunkRead& read : std::exchange(waiting_, {})) {
      shared_.events.push_back({id_, DataEvent::Kind::kRead, read.tag, ReadEnd::kLost, {}});
    }
    return;
  }
  AskMore();
}

void AskerLink::End(std::string why) {
  if (state_ == State::kEnding) return;
  state_ = State::kEnding;
  why_over_ = std::move(why);
  fd_.Reset();
  dial_.reset();
  found_.clear();
  if (remote_) remote_->Cancel();
  std::vector<std::uint64_t> ended;
  for (const auto& [tag, asked] : asked_) {
    if (!asked.fetching) ended.push_back(tag);
  }
  for (const std::uint64_t tag : ended) EndRead(tag, ReadEnd::kLost);
  Read({});
  TakeFetched();
}

void AskerLink::OnReady(std::uint32_t events) {
  if (state_ == State::kConnecting) return OnConnected();
  if (state_ != State::kOpening && state_ != State::kOpen) return;
  if ((events & EPOLLOUT) != 0) blocked_ = false;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Receive();
}

bool AskerLink::HasWork() const {
  if (state_ == State::kEnding) return false;
  return !found_.empty() || (out_sent_ < out_.size() && !blocked_ && state_ >= State::kOpening);
}

void AskerLink::Turn() {
  if (!found_.empty()) FetchNext();
  // To wake the holder for each chunk would cost more than it tells it.
  if (!found_.empty() && ++fetched_unsaid_ < kFetchedUnsaidMax) return;
  if (state_ == State::kOpening || state_ == State::kOpen) Send();
}

AskerLink::TimePoint AskerLink::next_check() const {
  if (state_ == State::kDialing) return std::min(dial_at_, open_by_);
  if (state_ == State::kConnecting || state_ == State::kOpening) return open_by_;
  // A plane that is cancelling tells nobody when it is quiet.
  if (state_ == State::kEnding) return std::chrono::steady_clock::now() + kLookAgain;
  return TimePoint::max();
}

void AskerLink::Check(TimePoint now) {
  if (state_ < State::kOpen && now >= open_by_) return End("it was not open in time");
  if (state_ == State::kDialing && now >= dial_at_) DialNext();
  if (remote_) {
    TakeFetched();
    if (state_ == State::kOpen && !remote_->Fault().empty()) End(remote_->Fault());
  }
}

void AskerLink::DialNext() {
  auto next = dial_->Next();
  if (!next.ok()) return End(next.error().message);
  if (!next.value()) {
    state_ = State::kDialing;
    dial_at_ = std::chrono::steady_clock::now() + kDialAgain;
    return;
  }
  fd_ = std::move(*next.value());
  asked_fd = -1;  // Also if it has the number of the one before.
  state_ = State::kConnecting;
}

void AskerLink::OnConnected() {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    fd_.Reset();
    return DialNext();  // Perhaps there is another address.
  }
  if (auto checked = shared_.dialer.CheckConnection(fd_.get()); !checked.ok()) {
    return End(checked.error().message);
  }
  state_ = State::kOpening;
  AppendDataFrame(DataOpen{.plane = static_cast<std::uint8_t>(shared_.plane), .token = token_},
                  out_);
  Send();
}

void AskerLink::Receive() {
  // What is left of a piece goes where it belongs; the frames behind it into the buffer.
  std::array<iovec, 2> pieces{};
  std::size_t count = 0;
  std::size_t room = 0;
  if (piece_left_ > 0) {
    const Asked& asked = asked_.at(*receiving_);
    room = std::min(piece_left_, kReceiveMax);
    pieces[count++] = {shared_.host.Slot(asked.read.slot).data() + asked.received, room};
  }
  if (room == piece_left_) {
    pieces[count++] = {in_.data() + in_size_, in_.size() - in_size_};
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<char, kDescriptorRoom> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  TakeDescriptors(message, passed_);
  if (got < 0) {
    if (!IsTransient(errno)) End(ErrorText("the holder is gone", errno));
    return;
  }
  if (got == 0) {
    return End(state_ == State::kOpening ? "the holder hung up: it does not know the token, or "
                                           "has too many links"
                                         : "the holder hung up");
  }
  const auto size = static_cast<std::size_t>(got);
  const std::size_t payload = std::min(size, room);
  in_size_ += size - payload;
  if (payload > 0) OnPayload(payload);
  TakeFrames();
  if (state_ == State::kOpening || state_ == State::kOpen) Send();
}

void AskerLink::TakeFrames() {
  std::size_t taken = 0;
  while (state_ != State::kEnding && taken < in_size_) {
    const auto rest = std::span(in_).first(in_size_).subspan(taken);
    if (piece_left_ > 0) {
      const auto payload = rest.first(std::min(rest.size(), piece_left_));
      TakePayload(payload);
      taken += payload.size();
      continue;
    }
    auto decoded = DecodeDataFrame(rest);
    if (!decoded.ok()) return End(decoded.error().message);
    if (!decoded.value()) break;
    taken += decoded.value()->size;
    if (state_ == State::kOpening && !std::holds_alternative<DataOpened>(decoded.value()->frame)) {
      return End("the holder answers before it has opened the link");
    }
    std::visit([&](const auto& frame) { Take(frame); }, decoded.value()->frame);
  }
  std::copy(in_.begin() + static_cast<std::ptrdiff_t>(taken),
            in_.begin() + static_cast<std::ptrdiff_t>(in_size_), in_.begin());
  in_size_ -= taken;
}

void AskerLink::Take(const DataOpened& opened) {
  if (state_ == State::kOpen) return End("the holder opens the link twice");
  if (opened.version != kDataLinkVersion ||
      opened.plane != static_cast<std::uint8_t>(shared_.plane)) {
    return End(fmt::format("the holder speaks version {} of plane {}, this build {} of {}",
                           opened.version, opened.plane, kDataLinkVersion,
                           static_cast<int>(shared_.plane)));
  }
  if (opened.chunk_bytes != chunk_bytes()) {
    return End(fmt::format("the holder's chunks have {} bytes, ours {}", opened.chunk_bytes,
                           chunk_bytes()));
  }
  auto remote = shared_.dialer.Reach(opened, std::exchange(passed_, UniqueFd()));
  if (!remote.ok()) return End(remote.error().message);
  remote_ = std::move(remote).value();
  state_ = State::kOpen;
  shared_.events.push_back({id_, DataEvent::Kind::kOpened, 0, ReadEnd::kOk, {}});
  AskMore();
}

void AskerLink::Take(const DataBytes& bytes) {
  const auto asked = asked_.find(bytes.tag);
  if (asked == asked_.end() || remote_) return End("the holder sends bytes that nobody asked for");
  if (!receiving_) {
    receiving_ = bytes.tag;
    hash_.Reset();
  }
  if (*receiving_ != bytes.tag) return End("the holder mixes two chunks");
  if (bytes.size > chunk_bytes() - asked->second.received) {
    return End("the holder sends more bytes than a chunk has");
  }
  piece_left_ = bytes.size;
}

void AskerLink::TakePayload(std::span<const std::byte> bytes) {
  const Asked& asked = asked_.at(*receiving_);
  std::copy(
      bytes.begin(), bytes.end(),
      shared_.host.Slot(asked.read.slot).begin() + static_cast<std::ptrdiff_t>(asked.received));
  OnPayload(bytes.size());
}

void AskerLink::OnPayload(std::size_t size) {
  Asked& asked = asked_.at(*receiving_);
  hash_.Update(shared_.host.Slot(asked.read.slot).subspan(asked.received, size));
  asked.received += size;
  piece_left_ -= size;
}

void AskerLink::Take(const DataChunk& chunk) {
  const auto asked = asked_.find(chunk.tag);
  if (asked == asked_.end() || asked->second.granted) {
    return End("the holder answers what nobody asked for");
  }
  const bool carried = receiving_ == chunk.tag;
  if (carried) receiving_.reset();
  if (chunk.status == DataStatus::kGone) return EndRead(chunk.tag, ReadEnd::kGone);
  const ChunkRead& read = asked->second.read;
  if (!remote_ && (!carried || asked->second.received != chunk_bytes())) {
    return End("the holder has not sent a whole chunk");
  }
  asked->second.granted = remote_ != nullptr;
  const auto record = CheckRecord(chunk, read);
  if (!record) return EndRead(chunk.tag, ReadEnd::kCorrupt);
  asked->second.checksum = record->payload_checksum;
  if (remote_) {
    found_.push_back({chunk.tag, chunk.where, *record});
    return;
  }
  if (hash_.Value() == record->payload_checksum) return EndRead(chunk.tag, ReadEnd::kOk);
  LogCorrupt(read, "its bytes do not hash to what its record states");
  EndRead(chunk.tag, ReadEnd::kCorrupt);
}

std::optional<ChunkRecord> AskerLink::CheckRecord(const DataChunk& chunk, const ChunkRead& read) {
  auto record = DecodeChunkRecord(chunk.record);
  if (!record.ok()) {
    LogCorrupt(read, record.error().message);
    return std::nullopt;
  }
  const WantedChunk wanted{
      .identity = shared_.host.identity().digest(), .key = read.key, .payload_size = chunk_bytes()};
  if (auto matched = MatchChunkRecord(record.value(), wanted); !matched.ok()) {
    LogCorrupt(read, matched.error().message);
    return std::nullopt;
  }
  return record.value();
}

void AskerLink::FetchNext() {
  const Found found = found_.front();
  found_.pop_front();
  Asked& asked = asked_.at(found.tag);
  asked.fetching = true;
  const ChunkRead& read = asked.read;
  const auto end = remote_->Begin({.tag = found.tag,
                                   .where = found.where,
                                   .record = &found.record,
                                   .slot = shared_.host.Slot(read.slot)});
  if (!end) return;
  if (*end == ReadEnd::kCorrupt) LogCorrupt(read, "its bytes are not what its record states");
  EndRead(found.tag, *end);
}

void AskerLink::TakeFetched() {
  if (!remote_) return;
  std::vector<RemoteChunks::Ended> ended;
  remote_->TakeEnded(ended);
  for (const RemoteChunks::Ended& one : ended) {
    if (one.end == ReadEnd::kCorrupt) {
      LogCorrupt(asked_.at(one.tag).read, "its bytes are not what its record states");
    }
    EndRead(one.tag, one.end);
  }
  if (!ended.empty() && state_ == State::kOpen) Send();
}

void AskerLink::AskMore() {
  if (state_ != State::kOpen) return;
  while (!waiting_.empty() && asked_.size() < Window()) {
    const ChunkRead read = waiting_.front();
    waiting_.pop_front();
    const bool is_new = asked_.emplace(read.tag, Asked{.read = read}).second;
    TERRACE_CHECK(is_new, "two reads under way have one tag");
    AppendDataFrame(DataRead{read.tag, read.lease.value, read.index}, out_);
  }
}

void AskerLink::Send() {
  fetched_unsaid_ = 0;
  while (out_sent_ < out_.size()) {
    const ssize_t sent = ::send(fd_.get(), out_.data() + out_sent_, out_.size() - out_sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // If it is gone, Receive() finds out, after what it said before.
      blocked_ = true;
      return;
    }
    out_sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  out_sent_ = 0;
}

void AskerLink::EndRead(std::uint64_t tag, ReadEnd end) {
  const auto asked = asked_.find(tag);
  if (end == ReadEnd::kOk) {
    shared_.host.NoteChecksum(asked->second.read.slot, asked->second.checksum);
  }
  shared_.events.push_back({id_, DataEvent::Kind::kRead, tag, end, {}});
  if (asked->second.granted && state_ == State::kOpen) AppendDataFrame(DataDone{tag}, out_);
  asked_.erase(asked);
  AskMore();
}

void AskerLink::LogCorrupt(const ChunkRead& read, const std::string& why) {
  TERRACE_LOG_WARN_LIMITED(shared_.corrupt_log, std::chrono::steady_clock::now(),
                           "peer data plane {}: chunk {} of a peer is dropped: {}",
                           PlaneName(shared_.plane), read.key.ToHex(), why);
}

std::size_t AskerLink::Window() const {
  if (shared_.plane == PlaneKind::kSharedMemory) return kWindowMax;  // Only headers come.
  return std::clamp(kWindowBytes / chunk_bytes(), kWindowMin, kWindowMax);
}

}  // namespace terrace
