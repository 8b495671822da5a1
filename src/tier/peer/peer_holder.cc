#include "tier/peer/peer_holder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace terrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kQuestionsMax = 64;  // Of a session; more are answered "no" at once.
// Of what peers together may pin, a session may pin this part, if it is not alone.
constexpr std::size_t kShareParts = 2;
constexpr std::size_t kTransfersMax = 4096;
// An asker says every 5 s that it lives.
constexpr seconds kSilenceMax{30};
// The manager gives up a request of a peer after a minute.
constexpr milliseconds kPatienceMax{55'000};
// How long a name is remembered that nothing is parked under any more: who asks late is told at
// once.
constexpr seconds kTransferMemory{60};
// Between looks at what was not decided.
constexpr microseconds kPauseMin{500}, kPauseMax{8'000};
constexpr std::size_t kKeysPerTurn = 64;  // Between two looks at whether the engine waits.

std::string Text(std::uint64_t number) { return std::to_string(number); }

}  // namespace

void PeerHolder::OnCall(const std::string& caller, std::span<const std::uint8_t> bytes) {
  if (closed_) return;
  auto message = DecodePeerMessage(bytes);
  if (!message.ok()) {
    ++context_.counters->bad_messages;
    TERRACE_LOG_WARN_LIMITED(bad_message_log_, context_.now(), "a caller of the peer tier: {}",
                             message.error().message);
    // One of a newer version may say more than we know; who talks nonsense is heard no longer.
    const auto session = sessions_.find(caller);
    if (session != sessions_.end() && message.error().code == ErrorCode::kCorrupt)
      EndSession(session);
    return;
  }
  if (const auto* hello = std::get_if<PeerHello>(&message.value())) return On(caller, *hello);
  const auto session = sessions_.find(caller);
  if (session == sessions_.end()) {
    // It talks to our former life, or to a session that was given up.
    if (!std::holds_alternative<PeerBye>(message.value()) &&
        !std::holds_alternative<PeerRefusal>(message.value())) {
      ++context_.counters->stale_messages;
      Refuse(caller, {context_.instance, "session", "none", "one that has ended"});
    }
    return;
  }
  session->second.heard_at = context_.now();
  if (auto* lookup = std::get_if<PeerLookup>(&message.value()))
    return On(session->second, caller, std::move(*lookup));
  if (const auto* cancel = std::get_if<PeerCancel>(&message.value()))
    return On(session->second, *cancel);
  if (const auto* renew = std::get_if<PeerRenew>(&message.value())) {
    for (const std::uint64_t lease : renew->leases)
      context_.leases->Renew(session->second.id, LeaseId(lease), context_.now());
    return;
  }
  if (const auto* release = std::get_if<PeerRelease>(&message.value())) {
    for (const std::uint64_t lease : release->leases)
      context_.leases->Release(session->second.id, LeaseId(lease));
    return;
  }
  EndSession(session);  // Bye, or what only a holder says.
}

void PeerHolder::On(const std::string& caller, const PeerHello& hello) {
  if (auto refusal = FaultOf(hello)) {
    ++context_.counters->sessions_refused;
    return Refuse(caller, std::move(*refusal));
  }
  // One session each: whoever calls again has lost the one before.
  for (auto session = sessions_.begin(); session != sessions_.end(); ++session) {
    if (session->first != caller && session->second.instance != hello.instance) continue;
    EndSession(session);
    break;
  }
  if (sessions_.size() >= context_.config->max_peers) {
    ++context_.counters->sessions_refused;
    return Refuse(caller,
                  {context_.instance, "max_peers", Text(context_.config->max_peers), "one more"});
  }
  ++context_.counters->sessions_opened;
  Session session{SessionId(next_session_++), hello.instance, context_.now(), {}};
  const SessionToken token = context_.new_token();
  context_.leases->AddSession(session.id, token);
  sessions_.emplace(caller, std::move(session));
  Reply(caller, PeerWelcome{kPeerProtocolVersion, context_.instance, token,
                            context_.config->lease_ms, context_.planes});
}

// The digest decides; the fields are to say what it is that differs.
std::optional<PeerRefusal> PeerHolder::FaultOf(const PeerHello& hello) const {
  const auto refusal = [&](std::string field, std::string theirs, std::string yours) {
    return PeerRefusal{context_.instance, std::move(field), theirs.substr(0, kPeerTextMax),
                       std::move(yours)};
  };
  if (hello.version != kPeerProtocolVersion) {
    return refusal("version", Text(kPeerProtocolVersion), Text(hello.version));
  }
  if (hello.identity == context_.identity->digest()) return std::nullopt;
  const CacheIdentityFields& ours = context_.identity->fields();
  const CacheIdentityFields& theirs = hello.fields;
  if (ours.model != theirs.model) return refusal("model", ours.model, theirs.model);
  if (ours.revision != theirs.revision) return refusal("revision", ours.revision, theirs.revision);
  if (ours.dtype != theirs.dtype) return refusal("dtype", ours.dtype, theirs.dtype);
  if (ours.layout != theirs.layout) return refusal("layout", ours.layout, theirs.layout);
  if (ours.layout_version != theirs.layout_version) {
    return refusal("layout_version", Text(ours.layout_version), Text(theirs.layout_version));
  }
  if (ours.tokens_per_chunk != theirs.tokens_per_chunk) {
    return refusal("tokens_per_chunk", Text(ours.tokens_per_chunk), Text(theirs.tokens_per_chunk));
  }
  if (ours.chunk_bytes != theirs.chunk_bytes) {
    return refusal("chunk_bytes", Text(ours.chunk_bytes), Text(theirs.chunk_bytes));
  }
  if (ours.shard_index != theirs.shard_index || ours.shard_count != theirs.shard_count) {
    return refusal("shard", Text(ours.shard_index) + " of " + Text(ours.shard_count),
                   Text(theirs.shard_index) + " of " + Text(theirs.shard_count));
  }
  if (ours.engine != theirs.engine) return refusal("engine", ours.engine, theirs.engine);
  return refusal("identity", context_.identity->ToHex(), "another digest of equal fields");
}

void PeerHolder::On(Session& session, const std::string& caller, PeerLookup lookup) {
  const std::size_t count = lookup.keys.size();
  if (session.questions.size() >= kQuestionsMax) {
    ++context_.counters->refused_lookups;
    TERRACE_LOG_WARN_LIMITED(questions_log_, context_.now(),
                             "peer tier: an asker has {} questions open, and is answered that none "
                             "of what it asks more is here",
                             kQuestionsMax);
    return Reply(caller, PeerAnswer{lookup.id, 0, std::vector<std::uint8_t>((count + 7) / 8)});
  }
  const TimePoint now = context_.now();
  Question question;
  question.deadline = now + std::min(milliseconds(lookup.timeout_ms), kPatienceMax);
  question.next_try = now;
  question.known.assign(count, Known::kOpen);
  question.open = count;
  // A key that is asked twice in one question has one answer: the first one's.
  std::unordered_set<ChunkKey> seen;
  for (std::size_t i = 0; i < count; ++i) {
    if (seen.insert(lookup.keys[i]).second) continue;
    question.known[i] = Known::kMissing;
    --question.open;
  }
  question.lookup = std::move(lookup);
  session.questions.push_back(std::move(question));
}

void PeerHolder::On(Session& session, const PeerCancel& cancel) {
  const auto question = std::find_if(session.questions.begin(), session.questions.end(),
                                     [&](const Question& q) { return q.lookup.id == cancel.id; });
  if (question == session.questions.end()) return;
  Drop(*question);
  session.questions.erase(question);
}

void PeerHolder::Reply(const std::string& caller, const PeerMessage& message) {
  if (context_.network->Reply(caller, EncodePeerMessage(message))) return;
  // It does not read, or is gone. Its leases would expire; this is sooner.
  if (const auto session = sessions_.find(caller); session != sessions_.end()) EndSession(session);
}

void PeerHolder::Refuse(const std::string& caller, PeerRefusal refusal) {
  TERRACE_LOG_WARN_LIMITED(refusal_logs_[refusal.field], context_.now(),
                           "a caller of the peer tier is refused: its {} is {}, here it is {}",
                           refusal.field, refusal.yours, refusal.theirs);
  static_cast<void>(context_.network->Reply(caller, EncodePeerMessage(refusal)));
}

void PeerHolder::EndSession(Sessions::iterator session) {
  for (Question& question : session->second.questions) Drop(question);
  context_.leases->RemoveSession(session->second.id);
  sessions_.erase(session);
}

// Nobody waits for it any more.
void PeerHolder::Drop(Question& question) {
  if (question.request) orphans_.push_back(*question.request);
  for (const TransferJob& job : question.jobs) EndStore(job);
  question.jobs.clear();
}

void PeerHolder::Serve(TierServer& server) {
  for (const Request& request : std::exchange(orphans_, {})) server.FinishRequest(request);
  // Turn by turn, one question of each.
  std::vector<std::string> callers;
  for (const auto& [caller, session] : sessions_) {
    if (!session.questions.empty()) callers.push_back(caller);
  }
  const auto first = std::lower_bound(callers.begin(), callers.end(), served_first_);
  std::rotate(callers.begin(), first, callers.end());
  for (const std::string& caller : callers) {
    const auto session = sessions_.find(caller);
    if (session == sessions_.end()) continue;
    if (!ServeSession(session, server)) {
      served_first_ = caller;
      return;
    }
  }
}

// False if the round should end.
bool PeerHolder::ServeSession(Sessions::iterator session, TierServer& server) {
  const std::string caller = session->first;
  const TimePoint now = context_.now();
  for (std::size_t i = 0; i < session->second.questions.size();) {
    Question& question = session->second.questions[i];
    if (now < question.next_try) {
      ++i;
      continue;
    }
    if (server.ShouldYield()) return false;
    const bool goes_on = LookUp(session->second, question, server);
    if (question.open > 0 && now < question.deadline) {
      if (!goes_on) return false;
      question.pause = std::clamp(question.pause * 2, kPauseMin, kPauseMax);
      question.next_try = now + question.pause;
      ++i;
      continue;
    }
    Question done = std::move(question);
    session->second.questions.erase(session->second.questions.begin() +
                                    static_cast<std::ptrdiff_t>(i));
    Answer(caller, session->second, done, server);
    // A reply that cannot be sent ends the session.
    session = sessions_.find(caller);
    if (session == sessions_.end()) return true;
    if (!goes_on) return false;
  }
  return true;
}

// Asks for what is open, and pins what is found before anybody else gets the lock. False if the
// round should end.
bool PeerHolder::LookUp(const Session& session, Question& question, TierServer& server) {
  if (!question.request) question.request = server.BeginRequest();
  const bool computed = IsStillComputed(question.lookup);
  std::vector<std::size_t> found;
  bool goes_on = true;
  for (std::size_t i = 0; i < question.known.size() && goes_on; ++i) {
    if (question.known[i] != Known::kOpen) continue;
    if (i % kKeysPerTurn == kKeysPerTurn - 1) goes_on = !server.ShouldYield();
    switch (server.Lookup(question.lookup.keys[i], *question.request)) {
      case LookupResult::kHit:
        found.push_back(i);
        break;
      case LookupResult::kMiss:
        if (computed) break;
        question.known[i] = Known::kMissing;
        --question.open;
        break;
      case LookupResult::kHitPending:
      case LookupResult::kRetry:
        break;
    }
  }
  return Pin(session, question, found, server) && goes_on;
}

bool PeerHolder::Pin(const Session& session, Question& question, std::vector<std::size_t>& found,
                     TierServer& server) {
  const std::size_t parts = sessions_.size() > 1 ? kShareParts : 1;
  const std::size_t share = std::max<std::size_t>(server.SlotsForPeers() / parts, 1);
  std::size_t own = 0;
  for (const TransferJob& job : question.jobs) own += job.keys.size();
  // It will never have these: the asker computes them, and does not wait.
  while (own + found.size() > share) {
    question.known[found.back()] = Known::kMissing;
    --question.open;
    ++context_.counters->over_share_chunks;
    found.pop_back();
  }
  if (found.empty()) return true;
  if (PinnedBy(session) + found.size() > share) {
    Defer(question, share);
    return true;
  }
  std::vector<ChunkKey> keys;
  for (const std::size_t i : found) keys.push_back(question.lookup.keys[i]);
  auto job = server.CreateStoreJob(keys, *question.request);
  // Peers read too much already, or it is enough for this round: they stay open.
  if (!job) return !server.ShouldYield();
  question.jobs.push_back(std::move(*job));
  for (const std::size_t i : found) question.known[i] = Known::kFound;
  question.open -= found.size();
  return true;
}

std::size_t PeerHolder::PinnedBy(const Session& session) const {
  std::size_t pinned = context_.leases->ChunksOf(session.id);
  for (const Question& question : session.questions) {
    for (const TransferJob& job : question.jobs) pinned += job.keys.size();
  }
  return pinned;
}

void PeerHolder::Defer(Question& question, std::size_t share) {
  if (std::exchange(question.deferred, true)) return;
  ++context_.counters->deferred_lookups;
  TERRACE_LOG_WARN_LIMITED(
      share_log_, context_.now(),
      "peer tier: an asker waits until it has given back some of its share of {} chunks", share);
}

// Whether what is missing may still come, because this node computes it for the asker, or is about
// to.
bool PeerHolder::IsStillComputed(const PeerLookup& lookup) const {
  if (!lookup.wait || lookup.transfer_id.empty()) return false;
  const auto transfer = transfers_.find(lookup.transfer_id);
  if (transfer == transfers_.end()) return true;  // The question was faster than the request.
  return transfer->second.running > 0;
}

void PeerHolder::Answer(const std::string& caller, Session& session, Question& question,
                        TierServer& server) {
  server.FinishRequest(*question.request);
  PeerAnswer answer{question.lookup.id, 0,
                    std::vector<std::uint8_t>((question.known.size() + 7) / 8)};
  std::size_t found = 0;
  for (std::size_t i = 0; i < question.known.size(); ++i) {
    if (question.known[i] != Known::kFound) continue;
    answer.present[i / 8] = static_cast<std::uint8_t>(answer.present[i / 8] | 1 << i % 8);
    ++found;
  }
  ++context_.counters->served_lookups;
  context_.counters->served_chunks += found;
  if (question.open > 0) ++context_.counters->overdue_lookups;
  if (!question.jobs.empty()) {
    answer.lease =
        context_.leases->Add(session.id, question.lookup.keys, question.jobs, context_.now()).value;
  }
  if (!question.lookup.transfer_id.empty()) Claim(question.lookup.transfer_id, question);
  Reply(caller, answer);
}

// The decoder has it under a lease of its own now.
void PeerHolder::Claim(const std::string& transfer_id, const Question& question) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return;
  for (Parked& parked : found->second.parked) {
    for (std::size_t i = 0; i < question.known.size(); ++i) {
      if (question.known[i] == Known::kFound) parked.left.erase(question.lookup.keys[i]);
    }
    if (parked.left.empty()) EndStore(parked.job);
  }
  std::erase_if(found->second.parked, [](const Parked& parked) { return parked.left.empty(); });
}

StoreInterest PeerHolder::OnNewRequest(const Request& request) {
  if (request.route == nullptr || request.route->keep_for_transfer.empty() || closed_)
    return StoreInterest::kNothing;
  const std::string name = request.route->keep_for_transfer.substr(0, kPeerTextMax);
  if (!transfers_.contains(name) && transfers_.size() >= kTransfersMax) {
    ++context_.counters->refused_transfers;
    TERRACE_LOG_WARN_LIMITED(
        transfers_log_, context_.now(),
        "peer tier: {} transfers are remembered, and one more is not kept for its decoder",
        kTransfersMax);
    return StoreInterest::kNothing;
  }
  Transfer& transfer = transfers_[name];
  ++transfer.running;
  transfer.given_up = false;
  transfer.requests.push_back(request.id);
  transfer_of_.insert_or_assign(request.id, name);
  return StoreInterest::kWholeRequest;
}

void PeerHolder::OnRequestFinished(RequestId request) {
  const auto name = transfer_of_.find(request);
  if (name == transfer_of_.end()) return;
  Transfer& transfer = transfers_.at(name->second);
  if (transfer.running > 0) --transfer.running;
  transfer.forget_at = context_.now() + kTransferMemory;
}

void PeerHolder::SubmitStore(TransferJob job) {
  const auto name = transfer_of_.find(job.request);
  if (name == transfer_of_.end() || closed_) return EndStore(job);
  Transfer& transfer = transfers_.at(name->second);
  context_.counters->parked_chunks += job.keys.size();
  if (transfer.given_up) {
    context_.counters->unclaimed_chunks += job.keys.size();
    return EndStore(job);
  }
  if (transfer.parked.empty())
    transfer.give_up_at = context_.now() + milliseconds(context_.config->park_timeout_ms);
  std::unordered_set<ChunkKey> left(job.keys.begin(), job.keys.end());
  transfer.parked.push_back({std::move(job), std::move(left)});
  // Who waits for it is looked at at once.
  for (auto& [caller, session] : sessions_) {
    for (Question& question : session.questions) {
      if (question.lookup.transfer_id == name->second) question.next_try = context_.now();
    }
  }
}

// Nothing was moved: it is a pin that ends.
void PeerHolder::EndStore(const TransferJob& job) {
  JobResult result{job.id, std::vector<CopyOutcome>(job.keys.size(), CopyOutcome::kOk), 0};
  result.started_at = job.submitted_at;
  result.ended_at = context_.now();
  finished_.push_back(std::move(result));
}

void PeerHolder::GiveUp(Transfer& transfer) {
  for (const Parked& parked : std::exchange(transfer.parked, {})) {
    context_.counters->unclaimed_chunks += parked.left.size();
    EndStore(parked.job);
  }
  transfer.given_up = true;
  transfer.forget_at = context_.now() + kTransferMemory;
}

void PeerHolder::Tick() {
  const TimePoint now = context_.now();
  context_.counters->expired_leases += context_.leases->Expire(now);
  std::vector<SessionId> lost = context_.leases->TakeLost();
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    const auto next = std::next(session);
    const bool is_lost = std::find(lost.begin(), lost.end(), session->second.id) != lost.end();
    const bool is_silent = now - session->second.heard_at > kSilenceMax;
    if (is_lost || is_silent) {
      ++context_.counters->sessions_expired;
      if (!is_lost) OnSilence();
      const std::string caller = session->first;
      EndSession(session);
      static_cast<void>(
          context_.network->Reply(caller, EncodePeerMessage(PeerBye{"the session has ended"})));
    }
    session = next;
  }
  for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
    Transfer& one = transfer->second;
    if (!one.parked.empty() && now >= one.give_up_at) GiveUp(one);
    if (one.running == 0 && one.parked.empty() && now >= one.forget_at) {
      // An id that came again may belong to another transfer by now.
      for (const RequestId request : one.requests) {
        const auto of = transfer_of_.find(request);
        if (of != transfer_of_.end() && of->second == transfer->first) transfer_of_.erase(of);
      }
      transfer = transfers_.erase(transfer);
    } else {
      ++transfer;
    }
  }
}

void PeerHolder::OnSilence() {
  ++context_.counters->sessions_silent;
  TERRACE_LOG_WARN_LIMITED(silence_log_, context_.now(),
                           "peer tier: an asker said nothing for {} s, and its session is over",
                           kSilenceMax.count());
}

void PeerHolder::TakeFinished(std::vector<JobResult>& results) {
  std::move(finished_.begin(), finished_.end(), std::back_inserter(results));
  finished_.clear();
  context_.leases->TakeEnded(results);
}

void PeerHolder::Close() {
  if (std::exchange(closed_, true)) return;
  for (auto session = sessions_.begin(); session != sessions_.end(); session = sessions_.begin()) {
    static_cast<void>(
        context_.network->Reply(session->first, EncodePeerMessage(PeerBye{"the node shuts down"})));
    EndSession(session);
  }
  orphans_.clear();
  for (auto& [name, transfer] : transfers_) GiveUp(transfer);
  context_.leases->Close();
}

}  // namespace terrace
