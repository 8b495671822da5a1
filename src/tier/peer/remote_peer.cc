#include "tier/peer/remote_peer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBackOffInitial{100};
constexpr milliseconds kBackOffMax{30'000};
// Even one that holds nothing is told that we are alive.
constexpr milliseconds kKeepAlive{5'000};

}  // namespace

RemotePeer::RemotePeer(const PeerAskerContext& context, PeerAddress address, Kind kind,
                       Listener& listener)
    : context_(context),
      address_(std::move(address)),
      kind_(kind),
      name_(address_.host + ":" + std::to_string(address_.port)),
      listener_(listener),
      jitter_(static_cast<std::minstd_rand::result_type>(context.seed +
                                                         std::hash<std::string>()(name_))) {}

RemotePeer::~RemotePeer() {
  if (link_ != LinkId()) context_.network->HangUp(link_);
  if (plane_ != nullptr) plane_->Close(data_link_);
}

bool RemotePeer::IsIdle() const {
  return asked_.empty() && leases_.empty() && queued_.empty() && state_ != State::kConnecting;
}

void RemotePeer::Want() {
  if (state_ == State::kIdle || (state_ == State::kDown && context_.now() >= down_until_))
    Connect();
}

void RemotePeer::Connect() {
  state_ = State::kConnecting;
  connect_deadline_ = context_.now() + milliseconds(context_.config->connect_timeout_ms);
  auto link = context_.network->Dial(address_);
  if (!link.ok()) return Fail(link.error().message);
  link_ = link.value();
  Post(PeerHello{kPeerProtocolVersion, context_.instance, context_.identity->digest(),
                 context_.identity->fields()});
}

void RemotePeer::Post(const PeerMessage& message) {
  if (state_ == State::kDown || link_ == LinkId()) return;
  if (!context_.network->Send(link_, EncodePeerMessage(message))) Fail("it takes no messages");
}

void RemotePeer::Ask(PeerLookup question, milliseconds patience) {
  TERRACE_CHECK(IsWorthWaiting(), "a peer is asked that will not answer");
  // While it connects, connecting has its own deadline; then this one counts.
  const TimePoint from = state_ == State::kReady ? context_.now() : connect_deadline_;
  asked_.emplace(question.id, Asked{question.keys.size(), from + patience});
  ++context_.counters->lookups;
  context_.counters->asked_chunks += question.keys.size();
  if (state_ == State::kReady) return Post(question);
  unsent_.push_back(std::move(question));
}

void RemotePeer::Cancel(std::uint64_t lookup) {
  if (asked_.erase(lookup) == 0) return;
  if (std::erase_if(unsent_, [&](const PeerLookup& question) { return question.id == lookup; }) > 0)
    return;
  Post(PeerCancel{lookup});
}

void RemotePeer::Read(std::span<const ChunkRead> reads) {
  TERRACE_CHECK(is_ready(), "a peer is read that is not there");
  if (data_open_) return plane_->Read(data_link_, reads);
  queued_.insert(queued_.end(), reads.begin(), reads.end());
}

void RemotePeer::Release(LeaseId lease) {
  if (leases_.erase(lease) > 0) Post(PeerRelease{{lease.value}});
}

void RemotePeer::OnMessage(std::span<const std::uint8_t> bytes) {
  auto message = DecodePeerMessage(bytes);
  if (!message.ok()) {
    // A newer holder may say more than we know.
    if (message.error().code == ErrorCode::kIncompatible) return;
    return Fail(message.error().message);
  }
  if (const auto* welcome = std::get_if<PeerWelcome>(&message.value())) return On(*welcome);
  if (const auto* refusal = std::get_if<PeerRefusal>(&message.value())) return On(*refusal);
  if (const auto* answer = std::get_if<PeerAnswer>(&message.value())) return On(*answer);
  if (const auto* bye = std::get_if<PeerBye>(&message.value())) return Fail("it said: " + bye->why);
  Fail("it asked where it should answer");
}

void RemotePeer::On(const PeerWelcome& welcome) {
  if (state_ != State::kConnecting) return Fail("it welcomed us twice");
  if (welcome.version != kPeerProtocolVersion) {
    return Fail("it speaks version " + std::to_string(welcome.version) +
                " of the protocol, this node " + std::to_string(kPeerProtocolVersion));
  }
  if (instance_ && *instance_ != welcome.instance) {
    ++context_.counters->restarts;
    TERRACE_LOG_INFO("peer {}: was restarted; nothing that it promised before counts", name_);
  }
  instance_ = welcome.instance;
  state_ = State::kReady;
  lease_time_ = milliseconds(welcome.lease_ms);
  ready_since_ = renewed_at_ = context_.now();
  token_ = welcome.token;
  offers_.clear();
  for (auto plane = context_.planes.rbegin(); plane != context_.planes.rend(); ++plane) {
    for (const PeerWelcome::Plane& offer : welcome.planes) {
      if (offer.kind == static_cast<std::uint8_t>((*plane)->kind()))
        offers_.emplace_back(*plane, offer.offer);
    }
  }
  OpenData("the two nodes have no data plane in common: see data_plane in their configurations");
  for (PeerLookup& question : std::exchange(unsent_, {})) {
    if (state_ != State::kReady) return;
    asked_.at(question.id).deadline += context_.now() - connect_deadline_;
    Post(question);
  }
}

void RemotePeer::On(const PeerRefusal& refusal) {
  ++context_.counters->refusals;
  Fail("it refused this node: " + refusal.field + " is " + refusal.theirs + " there and " +
       refusal.yours + " here");
}

void RemotePeer::On(const PeerAnswer& answer) {
  const auto asked = asked_.find(answer.id);
  if (asked == asked_.end()) {
    // Cancelled meanwhile.
    if (answer.lease != 0) Post(PeerRelease{{answer.lease}});
    return;
  }
  if (answer.present.size() != (asked->second.keys + 7) / 8)
    return Fail("its answer does not fit the question");
  if (answer.lease != 0 && !leases_.insert(LeaseId(answer.lease)).second)
    return Fail("it promised one lease twice");
  asked_.erase(asked);
  listener_.OnAnswer(answer.id, &answer);
}

// The next plane that both have. The control link serves meanwhile.
void RemotePeer::OpenData(const std::string& why_not_before) {
  data_open_ = false;
  plane_ = nullptr;
  if (offers_.empty()) return Fail(why_not_before);
  const auto [plane, offer] = std::move(offers_.back());
  offers_.pop_back();
  plane_ = plane;
  data_link_ = DataLinkId(context_.next_data_link++);
  plane_->Open(data_link_, address_.host, offer, token_,
               context_.now() + milliseconds(context_.config->connect_timeout_ms));
}

void RemotePeer::OnDataOpened() {
  data_open_ = true;
  TERRACE_LOG_INFO("peer {}: connected, chunks come over {}", name_, PlaneName(plane_->kind()));
  if (!queued_.empty()) plane_->Read(data_link_, std::exchange(queued_, {}));
}

void RemotePeer::OnDataLost(const std::string& why) {
  if (data_open_ || state_ != State::kReady) return Fail("its data link is lost: " + why);
  TERRACE_LOG_INFO("peer {}: no {}: {}", name_, PlaneName(plane_->kind()), why);
  OpenData("no data link could be opened: " + why);
}

void RemotePeer::OnLinkLost(const std::string& why) { Fail(why); }

void RemotePeer::Tick() {
  const TimePoint now = context_.now();
  if (kind_ == Kind::kConfigured) Want();
  if (state_ == State::kConnecting && now >= connect_deadline_) {
    return Fail("it did not say welcome within " +
                std::to_string(context_.config->connect_timeout_ms) + " ms");
  }
  if (state_ != State::kReady) return;
  for (const auto& [id, asked] : asked_) {
    if (now >= asked.deadline) return Fail("it did not answer a look-up in time");
  }
  if (now - renewed_at_ < (leases_.empty() ? kKeepAlive : std::min(kKeepAlive, lease_time_ / 3)))
    return;
  renewed_at_ = now;
  // All first: a message that cannot be sent ends the session, and with it the leases.
  std::vector<PeerRenew> renewals(1);
  for (const LeaseId lease : leases_) {
    if (renewals.back().leases.size() == kPeerLeasesMax) renewals.emplace_back();
    renewals.back().leases.push_back(lease.value);
  }
  for (const PeerRenew& renewal : renewals) Post(renewal);
}

void RemotePeer::Close() {
  if (state_ == State::kReady) Post(PeerBye{"the node shuts down"});
  Disconnect();
  state_ = State::kDown;
  down_until_ = TimePoint::max();
}

milliseconds RemotePeer::BackOff() {
  const milliseconds span =
      std::min(kBackOffMax, kBackOffInitial * (1 << std::min(failures_, 10u)));
  return span / 2 + milliseconds(jitter_() % static_cast<std::uint64_t>(span.count()));
}

void RemotePeer::Fail(const std::string& why) {
  if (state_ == State::kDown) return;
  // What lasted long is no failure in a row.
  if (state_ == State::kReady && context_.now() - ready_since_ >= kBackOffMax) failures_ = 0;
  const milliseconds pause = BackOff();
  ++failures_;
  ++context_.counters->failures;
  down_until_ = context_.now() + pause;
  TERRACE_LOG_WARN_LIMITED(log_, context_.now(), "peer {}: {}; it is left alone for {} ms", name_,
                           why, pause.count());
  Disconnect();
}

// First the state, then the news: who hears of them may call back.
void RemotePeer::Disconnect() {
  state_ = State::kDown;
  if (link_ != LinkId()) context_.network->HangUp(std::exchange(link_, LinkId()));
  if (plane_ != nullptr)
    std::exchange(plane_, nullptr)->Close(std::exchange(data_link_, DataLinkId()));
  data_open_ = false;
  offers_.clear();
  unsent_.clear();
  leases_.clear();
  for (const ChunkRead& read : std::exchange(queued_, {})) listener_.OnReadLost(read.tag);
  listener_.OnLeasesVoid(*this);
  for (const auto& [id, asked] : std::exchange(asked_, {})) listener_.OnAnswer(id, nullptr);
}

}  // namespace terrace
