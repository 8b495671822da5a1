#include "tier/peer/peer_asker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;

// Links to nodes that routes name; idle ones beyond it are forgotten.
constexpr std::size_t kLinksMax = 256;

}  // namespace

PeerAsker::PeerAsker(const PeerAskerContext& context, const std::vector<PeerAddress>& configured)
    : context_(context) {
  for (const PeerAddress& address : configured) {
    configured_.push_back(&LinkTo(address, RemotePeer::Kind::kConfigured));
  }
}

PeerAsker::~PeerAsker() = default;

RemotePeer& PeerAsker::LinkTo(const PeerAddress& address, RemotePeer::Kind kind) {
  auto& link = links_[address.host + ":" + std::to_string(address.port)];
  RemotePeer::Listener& listener = *this;
  if (link == nullptr) link = std::make_unique<RemotePeer>(context_, address, kind, listener);
  return *link;
}

// Those that nobody names any more.
void PeerAsker::ForgetIdleLinks() {
  if (links_.size() < kLinksMax) return;
  for (auto link = links_.begin(); link != links_.end();) {
    const RemotePeer* const one = link->second.get();
    const auto is_target = [&](const auto& request) {
      return std::any_of(request.second.targets.begin(), request.second.targets.end(),
                         [&](const Target& target) { return target.link == one; });
    };
    const bool configured =
        std::find(configured_.begin(), configured_.end(), one) != configured_.end();
    const bool read = std::any_of(reads_.begin(), reads_.end(),
                                  [&](const auto& r) { return r.second.link == one; });
    if (configured || read || !one->IsIdle() ||
        std::any_of(requests_.begin(), requests_.end(), is_target)) {
      ++link;
    } else {
      link->second->Close();
      link = links_.erase(link);
    }
  }
}

void PeerAsker::OnNewRequest(const Request& request) {
  const PeerRoute* const route = request.route.get();
  RequestState state;
  if (route != nullptr && route->source) {
    ForgetIdleLinks();
    state.kind = route->source->kind;
    state.transfer_id = route->source->transfer_id.substr(0, kPeerTextMax);
    state.targets.push_back({&LinkTo(route->source->address, RemotePeer::Kind::kOnDemand), {}, {}});
  } else if (route == nullptr) {
    for (RemotePeer* link : configured_) state.targets.push_back({link, {}, {}});
  }
  if (state.targets.empty() || closed_) return;
  // The handshake goes on while the request waits for its turn.
  for (const Target& target : state.targets) target.link->Want();
  requests_.insert_or_assign(request.id, std::move(state));
}

void PeerAsker::OnRequestFinished(RequestId id) {
  const auto request = requests_.find(id);
  if (request == requests_.end()) return;
  // All first: a message that cannot be sent ends the link, and whoever waits for it is told.
  std::vector<std::pair<RemotePeer*, std::uint64_t>> open;
  for (const auto& [lookup, question] : questions_) {
    if (question.request == id) open.emplace_back(question.link, lookup);
  }
  for (const auto& [link, lookup] : open) questions_.erase(lookup);
  requests_.erase(request);
  for (const auto& [link, lookup] : open) link->Cancel(lookup);
  // What is being read goes on; what is not is given back.
  std::vector<LeaseName> leases;
  for (auto& [name, held] : held_) {
    if (held.request != id) continue;
    held.wanted = 0;
    leases.push_back(name);
  }
  for (const LeaseName& name : leases) ReleaseIfDone(name);
}

PeerAsker::Target* PeerAsker::FindTarget(RequestId request, const RemotePeer* link) {
  const auto state = requests_.find(request);
  if (state == requests_.end()) return nullptr;
  for (Target& target : state->second.targets) {
    if (target.link == link) return &target;
  }
  return nullptr;
}

// A hit at any of them is one. While one is silent the others are waited for, for a while: the
// hedge.
TierLookup PeerAsker::Lookup(const ChunkKey& key, RequestId request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return TierLookup::kMiss;
  RequestState& state = found->second;
  bool open = false;
  std::optional<TimePoint> answered;
  for (Target& target : state.targets) {
    const TierLookup one = LookUpAt(target, key, state, request);
    if (one == TierLookup::kHit) return one;
    open = open || one == TierLookup::kRetry;
    const auto known = target.keys.find(key);
    if (known != target.keys.end() && known->second.phase == Phase::kMiss &&
        (!answered || known->second.since < *answered)) {
      answered = known->second.since;
    }
  }
  if (!open) return TierLookup::kMiss;
  const bool too_late =
      answered && context_.now() - *answered >= milliseconds(context_.config->hedge_ms);
  return too_late ? TierLookup::kMiss : TierLookup::kRetry;
}

TierLookup PeerAsker::LookUpAt(Target& target, const ChunkKey& key, RequestState& state,
                               RequestId request) {
  const auto known = target.keys.find(key);
  if (known != target.keys.end()) {
    switch (known->second.phase) {
      case Phase::kHit:
        return TierLookup::kHit;
      case Phase::kMiss:
        return TierLookup::kMiss;
      default:
        return TierLookup::kRetry;
    }
  }
  if (!target.link->IsWorthWaiting()) {
    target.link->Want();  // For those that come later.
    if (!target.link->IsWorthWaiting()) return TierLookup::kMiss;
  }
  target.keys.emplace(key, KeyState());
  target.unsent.push_back(key);
  if (!std::exchange(state.has_unsent, true)) unsent_.push_back(request);
  return TierLookup::kRetry;
}

void PeerAsker::Flush() {
  for (const RequestId id : std::exchange(unsent_, {})) {
    const auto request = requests_.find(id);
    if (request == requests_.end()) continue;
    request->second.has_unsent = false;
    for (Target& target : request->second.targets) SendQuestions(id, request->second, target);
  }
}

void PeerAsker::SendQuestions(RequestId id, RequestState& state, Target& target) {
  const bool waits = state.kind == PeerRoute::SourceKind::kPrefiller;
  const milliseconds patience(waits ? context_.config->park_timeout_ms
                                    : context_.config->lookup_timeout_ms);
  std::vector<ChunkKey> keys = std::exchange(target.unsent, {});
  for (std::size_t first = 0; first < keys.size(); first += kPeerKeysMax) {
    const std::size_t last = std::min(keys.size(), first + kPeerKeysMax);
    std::vector<ChunkKey> some(keys.begin() + static_cast<std::ptrdiff_t>(first),
                               keys.begin() + static_cast<std::ptrdiff_t>(last));
    if (!target.link->IsWorthWaiting()) {
      for (const ChunkKey& key : some) target.keys[key] = {Phase::kMiss, {}, 0, context_.now()};
      progress_ = true;
      continue;
    }
    for (const ChunkKey& key : some) target.keys[key].phase = Phase::kAsked;
    const std::uint64_t lookup = next_lookup_++;
    questions_.emplace(lookup, Question{id, target.link, some});
    // The holder gives up earlier than we do, so that what it knows by then counts.
    const auto holder_patience = static_cast<std::uint32_t>(patience.count() * 4 / 5);
    target.link->Ask({lookup, state.transfer_id, waits, holder_patience, std::move(some)},
                     patience);
  }
}

void PeerAsker::OnAnswer(std::uint64_t lookup, const PeerAnswer* answer) {
  const auto found = questions_.find(lookup);
  if (found == questions_.end()) return;
  const Question question = std::move(found->second);
  questions_.erase(found);
  Target* const target = FindTarget(question.request, question.link);
  TERRACE_CHECK(target != nullptr, "a question outlived its request");
  const LeaseId lease(answer == nullptr ? 0 : answer->lease);
  Held held{question.request, 0, 0};
  for (std::uint32_t i = 0; i < question.keys.size(); ++i) {
    KeyState& state = target->keys[question.keys[i]];
    if (lease != LeaseId() && answer->Has(i)) {
      state = {Phase::kHit, lease, i, {}};
      ++held.wanted;
    } else {
      state = {Phase::kMiss, {}, 0, context_.now()};
    }
  }
  context_.counters->found_chunks += held.wanted;
  progress_ = true;
  if (lease == LeaseId()) return;
  held_.emplace(LeaseName(question.link, lease), held);
  ReleaseIfDone({question.link, lease});
}

void PeerAsker::OnLeasesVoid(RemotePeer& link) {
  for (auto held = held_.lower_bound({&link, LeaseId()});
       held != held_.end() && held->first.first == &link;) {
    held = held_.erase(held);
  }
  for (auto& [id, request] : requests_) {
    for (Target& target : request.targets) {
      if (target.link != &link) continue;
      for (auto& [key, state] : target.keys) {
        if (state.phase == Phase::kHit) state = {Phase::kMiss, {}, 0, context_.now()};
      }
    }
  }
  progress_ = true;
}

void PeerAsker::SubmitLoad(TransferJob job) {
  const TimePoint now = context_.now();
  const auto request = requests_.find(job.request);
  const JobId id = job.id;
  const std::size_t count = job.keys.size();
  const auto load =
      jobs_
          .emplace(id, Load{std::move(job), std::vector(count, CopyOutcome::kFailed), count, now,
                            now + milliseconds(context_.config->fetch_timeout_ms)})
          .first;
  const TransferJob& of = load->second.job;
  std::map<RemotePeer*, std::vector<ChunkRead>> reads;
  for (std::size_t i = 0; i < count; ++i) {
    bool found = false;
    for (std::size_t t = 0;
         request != requests_.end() && t < request->second.targets.size() && !found; ++t) {
      Target& target = request->second.targets[t];
      const auto key = target.keys.find(of.keys[i]);
      if (key == target.keys.end() || key->second.phase != Phase::kHit || !target.link->is_ready())
        continue;
      const std::uint64_t tag = next_tag_++;
      reads_.emplace(tag, Read{id, i, target.link, key->second.lease});
      Held& held = held_.at({target.link, key->second.lease});
      --held.wanted;
      ++held.reading;
      reads[target.link].push_back(
          {tag, key->second.lease, key->second.index, of.keys[i], of.slots[i]});
      target.keys.erase(key);  // Whoever wants it again asks again.
      found = true;
    }
    if (!found) --load->second.remaining;
  }
  // A link that is lost now ends its reads at once, and with the last one the job.
  for (auto& [link, some] : reads) {
    if (link->is_ready()) {
      link->Read(some);
    } else {
      for (const ChunkRead& read : some) OnReadLost(read.tag);
    }
  }
  if (const auto still = jobs_.find(id); still != jobs_.end()) EndLoadIfDone(still);
}

void PeerAsker::OnReadLost(std::uint64_t tag) { EndRead(tag, ReadEnd::kLost); }

void PeerAsker::EndRead(std::uint64_t tag, ReadEnd end) {
  const auto found = reads_.find(tag);
  TERRACE_CHECK(found != reads_.end(), "a read ended twice");
  const Read read = found->second;
  reads_.erase(found);
  PeerCounters& counters = *context_.counters;
  const auto load = jobs_.find(read.job);
  TERRACE_CHECK(load != jobs_.end(), "a read outlived its job");
  switch (end) {
    case ReadEnd::kOk:
      load->second.outcomes[read.index] = CopyOutcome::kOk;
      load->second.bytes += context_.identity->fields().chunk_bytes;
      ++counters.fetched_chunks;
      read.link->OnChunk();
      break;
    case ReadEnd::kGone:
      ++counters.gone_chunks;
      break;
    case ReadEnd::kCorrupt:
      ++counters.corrupt_chunks;
      TERRACE_LOG_WARN_LIMITED(
          corrupt_log_, context_.now(),
          "peer {}: what came for chunk {} was not that chunk; it is computed instead",
          read.link->name(), load->second.job.keys[read.index].ToHex());
      break;
    case ReadEnd::kLost:
      ++counters.lost_chunks;
      break;
  }
  if (end != ReadEnd::kOk) {
    // This request does not ask there again.
    if (Target* target = FindTarget(load->second.job.request, read.link)) {
      target->keys[load->second.job.keys[read.index]] = {Phase::kMiss, {}, 0, context_.now()};
    }
  }
  if (const auto held = held_.find({read.link, read.lease}); held != held_.end()) {
    --held->second.reading;
    ReleaseIfDone(held->first);
  }
  --load->second.remaining;
  EndLoadIfDone(load);
}

void PeerAsker::EndLoadIfDone(std::unordered_map<JobId, Load>::iterator load) {
  if (load->second.remaining > 0) return;
  JobResult result{load->first, std::move(load->second.outcomes), load->second.bytes};
  result.started_at = load->second.started;
  result.ended_at = context_.now();
  finished_.push_back(std::move(result));
  jobs_.erase(load);
  progress_ = true;
}

void PeerAsker::ReleaseIfDone(const LeaseName& name) {
  const auto held = held_.find(name);
  if (held == held_.end() || held->second.wanted > 0 || held->second.reading > 0) return;
  const LeaseName copy = held->first;
  held_.erase(held);
  copy.first->Release(copy.second);
}

void PeerAsker::OnEvent(const ControlNetwork::Event& event) {
  for (auto& [name, link] : links_) {
    if (link->link() != event.link) continue;
    if (event.kind == ControlNetwork::Event::Kind::kMessage) {
      link->OnMessage(event.bytes);
    } else {
      link->OnLinkLost(event.why);
    }
    return;
  }
}

void PeerAsker::OnData(const DataEvent& event) {
  if (event.kind == DataEvent::Kind::kRead) return EndRead(event.tag, event.end);
  for (auto& [name, link] : links_) {
    if (link->data_link() != event.link) continue;
    if (event.kind == DataEvent::Kind::kOpened) return link->OnDataOpened();
    return link->OnDataLost(event.why);
  }
}

void PeerAsker::Tick() {
  for (auto& [name, link] : links_) link->Tick();
  const TimePoint now = context_.now();
  std::vector<RemotePeer*> overdue;
  for (const auto& [tag, read] : reads_) {
    Load& load = jobs_.at(read.job);
    if (now < load.deadline || !read.link->is_ready()) continue;
    overdue.push_back(read.link);
  }
  // One failure ends all that is under way with it.
  for (RemotePeer* link : overdue) {
    if (!link->is_ready()) continue;
    ++context_.counters->overdue_fetches;
    link->OnOverdue("it did not send chunks within " +
                    std::to_string(context_.config->fetch_timeout_ms) + " ms");
  }
}

void PeerAsker::Close() {
  closed_ = true;
  for (auto& [name, link] : links_) link->Close();
}

void PeerAsker::TakeFinished(std::vector<JobResult>& results) {
  std::move(finished_.begin(), finished_.end(), std::back_inserter(results));
  finished_.clear();
}

std::uint64_t PeerAsker::links_ready() const {
  return static_cast<std::uint64_t>(std::count_if(
      links_.begin(), links_.end(), [](const auto& link) { return link.second->is_ready(); }));
}

}  // namespace terrace
