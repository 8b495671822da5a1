#include "tier/peer/holder_link.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string ErrnoText(std::string_view attempt) {
  return fmt::format("{}: {}", attempt, std::generic_category().message(errno));
}

}  // namespace

HolderLink::~HolderLink() {
  if (sending_) EndRead(sending_->lease);
  for (const auto& [tag, lease] : granted_) EndRead(lease);
  if (!session_) return;
  shared_.leases.CloseLink(*session_);
  --shared_.open_links;
  shared_.something_ended = true;
}

std::uint32_t HolderLink::awaited_events() const {
  std::uint32_t events = 0;
  // An asker that does not take its answers is not listened to.
  const bool listens = reads_.size() < kReadsMax && out_.size() - out_sent_ < kOutMax && !shown_;
  if (listens && in_size_ < in_.size()) events |= EPOLLIN;
  if (blocked_) events |= EPOLLOUT;
  return events;
}

void HolderLink::OnReady(std::uint32_t events) {
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 && (events & EPOLLIN) == 0) {
    return EndSilent("the asker is gone");
  }
  if ((events & EPOLLOUT) != 0) blocked_ = false;
  if ((events & (EPOLLIN | EPOLLHUP)) != 0) Receive();
}

bool HolderLink::HasWork() const {
  if (over() || blocked_) return false;
  return !out_empty() || sending_ || !reads_.empty() || (shown_ && can_be_answered());
}

void HolderLink::Turn() {
  if (shown_ && can_be_answered()) Take(*std::exchange(shown_, std::nullopt));
  if (over()) return;
  if (!sending_ && !reads_.empty()) BeginNextRead();
  if (sending_ && sending_->sent == sending_->announced) AnnouncePiece();
  Send();
  // What did not fit into the buffer waits here no longer than its turn.
  if (in_size_ > 0 && reads_.size() < kReadsMax) TakeFrames();
}

void HolderLink::Check(TimePoint now) {
  if (!session_) {
    // One that has shown its token waits for us.
    if (!shown_ && now >= show_token_by_) EndSilent("it showed no token in time");
    return;
  }
  if (!shared_.leases.IsOpen(*session_)) return End("its session has ended");
  // Bytes that were announced have to go out; an asker that does not take them holds up the slot.
  if (sending_ && blocked_ && shared_.leases.IsRevoked(sending_->lease)) {
    return End("it did not take the bytes that it asked for before the lease ended");
  }
  std::erase_if(granted_, [&](const auto& granted) {
    if (!shared_.leases.IsRevoked(granted.second)) return false;
    EndRead(granted.second);
    return true;
  });
}

void HolderLink::Receive() {
  const ssize_t size =
      ::recv(fd_.get(), in_.data() + in_size_, in_.size() - in_size_, MSG_DONTWAIT);
  if (size == 0 && in_size_ < in_.size()) return EndSilent("the asker hung up");
  if (size < 0) {
    if (!IsTransient(errno)) EndSilent(ErrnoText("the asker is gone"));
    return;
  }
  in_size_ += static_cast<std::size_t>(size);
  TakeFrames();
}

void HolderLink::TakeFrames() {
  std::size_t taken = 0;
  while (!over() && !shown_ && reads_.size() < kReadsMax) {
    const auto decoded = DecodeDataFrame(std::span(in_).first(in_size_).subspan(taken));
    if (!decoded.ok()) return End(decoded.error().message);
    if (!decoded.value()) break;
    taken += decoded.value()->size;
    if (!session_ && !std::holds_alternative<DataOpen>(decoded.value()->frame)) {
      return End("it asks before it has shown a token");
    }
    std::visit([&](const auto& frame) { Take(frame); }, decoded.value()->frame);
  }
  std::copy(in_.begin() + static_cast<std::ptrdiff_t>(taken),
            in_.begin() + static_cast<std::ptrdiff_t>(in_size_), in_.begin());
  in_size_ -= taken;
}

void HolderLink::Take(const DataOpen& open) {
  if (session_) return End("it opens its link twice");
  if (open.version != kDataLinkVersion) {
    return End(fmt::format("it speaks version {}, this build {}", open.version, kDataLinkVersion));
  }
  if (open.plane != static_cast<std::uint8_t>(shared_.options.plane)) {
    return End(fmt::format("it wants another plane ({})", open.plane));
  }
  if (!can_be_answered()) {
    shown_ = open;
    return;
  }
  if (!shared_.opened) return End(shared_.refusal);
  if (shared_.open_links >= shared_.options.links_max) return End("there are too many links");
  session_ = shared_.leases.OpenLink(open.token);
  if (!session_) return End("its token is of no session, or of one that has a link");
  ++shared_.open_links;
  out_.insert(out_.end(), shared_.opened->begin(), shared_.opened->end());
  descriptor_due_ = shared_.options.descriptor.valid();
}

void HolderLink::Take(const DataRead& read) { reads_.push_back(read); }

void HolderLink::Take(const DataDone& done) {
  const auto granted = granted_.find(done.tag);
  if (granted == granted_.end()) return;  // Its lease had ended.
  EndRead(granted->second);
  granted_.erase(granted);
}

void HolderLink::BeginNextRead() {
  const DataRead read = reads_.front();
  reads_.pop_front();
  const LeaseId lease(read.lease);
  const auto chunk = shared_.leases.BeginRead(*session_, lease, read.index);
  if (!chunk) return AppendDataFrame(DataChunk{.tag = read.tag}, out_);
  if (shared_.options.payload == DataServerOptions::Payload::kFetched) return Grant(read, *chunk);
  hash_.Reset();
  sending_ = Sending{read.tag,
                     lease,
                     *chunk,
                     shared_.host.Slot(chunk->slot),
                     shared_.host.KnownChecksum(chunk->slot),
                     0,
                     0};
}

void HolderLink::Grant(const DataRead& read, const LeaseTable::Chunk& chunk) {
  const auto payload = shared_.host.Slot(chunk.slot);
  if (granted_.size() >= kGrantedMax || !granted_.emplace(read.tag, LeaseId(read.lease)).second) {
    EndRead(LeaseId(read.lease));
    return End("it has too many reads at a time, or two with one tag");
  }
  DataChunk answer{.tag = read.tag, .status = DataStatus::kHere};
  answer.where = static_cast<std::uint64_t>(payload.data() - shared_.host.Memory().bytes.data());
  std::optional<std::uint64_t> checksum = shared_.host.KnownChecksum(chunk.slot);
  if (!checksum) {
    checksum = Xxh3(payload);
    shared_.host.NoteChecksum(chunk.slot, *checksum);
  }
  AppendRecord(std::move(answer), chunk.key, *checksum);
}

void HolderLink::AppendRecord(DataChunk answer, const ChunkKey& key, std::uint64_t checksum) {
  const CacheIdentity& identity = shared_.host.identity();
  EncodeChunkRecord({.identity = identity.digest(),
                     .key = key,
                     .payload_size = identity.fields().chunk_bytes,
                     .payload_checksum = checksum},
                    answer.record);
  AppendDataFrame(answer, out_);
}

void HolderLink::AnnouncePiece() {
  if (shared_.leases.IsRevoked(sending_->lease)) return RefuseSending();
  const std::size_t size = std::min(kPieceSize, sending_->payload.size() - sending_->announced);
  AppendDataFrame(DataBytes{.tag = sending_->tag, .size = static_cast<std::uint32_t>(size)}, out_);
  sending_->announced += size;
}

void HolderLink::RefuseSending() {
  AppendDataFrame(DataChunk{.tag = sending_->tag}, out_);
  EndRead(sending_->lease);
  sending_.reset();
}

void HolderLink::FinishSending() {
  if (!sending_->checksum) {
    sending_->checksum = hash_.Value();
    shared_.host.NoteChecksum(sending_->chunk.slot, *sending_->checksum);
  }
  AppendRecord({.tag = sending_->tag, .status = DataStatus::kHere}, sending_->chunk.key,
               *sending_->checksum);
  EndRead(sending_->lease);
  sending_.reset();
}

void HolderLink::Send() {
  std::array<iovec, 2> pieces{};
  std::size_t count = 0;
  const std::size_t frames = out_.size() - out_sent_;
  if (frames > 0) pieces[count++] = {out_.data() + out_sent_, frames};
  if (sending_ && sending_->announced > sending_->sent) {
    const auto rest = sending_->payload.first(sending_->announced).subspan(sending_->sent);
    pieces[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
  }
  if (count == 0) return;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<char, kDescriptorRoom> control{};
  static_assert(CMSG_SPACE(sizeof(int)) <= kDescriptorRoom);
  if (descriptor_due_) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int passed = shared_.options.descriptor.get();
    std::memcpy(CMSG_DATA(part), &passed, sizeof(int));
  }
  const ssize_t size = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (size < 0) {
    if (!IsTransient(errno)) return End(ErrnoText("the asker is gone"));
    blocked_ = errno != EINTR;
    return;
  }
  descriptor_due_ = false;
  const auto sent = static_cast<std::size_t>(size);
  const std::size_t sent_frames = std::min(sent, frames);
  out_sent_ += sent_frames;
  if (out_empty()) {
    out_.clear();
    out_sent_ = 0;
  }
  if (!sending_) return;
  const std::size_t sent_payload = sent - sent_frames;
  // To send it first brings it into the cache, and the asker works on it meanwhile.
  if (!sending_->checksum) {
    hash_.Update(sending_->payload.subspan(sending_->sent, sent_payload));
  }
  sending_->sent += sent_payload;
  if (sending_->sent == sending_->payload.size()) FinishSending();
}

void HolderLink::EndRead(LeaseId lease) {
  shared_.leases.EndRead(lease);
  shared_.something_ended = true;
}

}  // namespace terrace
