#include "tier/peer/peer_tier.h"

#include <thread>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/thread.h"

namespace terrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Messages that one call reads before it lets others have the lock.
constexpr int kMessagesMax = 64;
// Deadlines are milliseconds; looking more often finds nothing.
constexpr microseconds kTickInterval{500};

template <std::size_t kSize>
std::array<std::uint8_t, kSize> RandomBytes(const std::function<std::uint64_t()>& random) {
  std::array<std::uint8_t, kSize> bytes;
  for (std::size_t i = 0; i < kSize; i += 8) {
    const std::uint64_t word = random();
    for (std::size_t j = 0; j < 8 && i + j < kSize; ++j) {
      bytes[i + j] = static_cast<std::uint8_t>(word >> 8 * j);
    }
  }
  return bytes;
}

// Checked by the configuration's parser: host:port, an IPv6 host in brackets.
std::vector<PeerAddress> AddressesOf(const std::vector<std::string>& peers) {
  std::vector<PeerAddress> addresses;
  for (const std::string& peer : peers) {
    const std::size_t colon = peer.rfind(':');
    std::string host = peer.substr(0, colon);
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    addresses.push_back(
        {std::move(host), static_cast<std::uint16_t>(std::stoul(peer.substr(colon + 1)))});
  }
  return addresses;
}

}  // namespace

std::unique_ptr<PeerTier> PeerTier::Make(const PeerTierConfig& config, TierHost& host,
                                         PeerTierParts parts) {
  return std::unique_ptr<PeerTier>(new PeerTier(config, host, std::move(parts)));
}

PeerTier::PeerTier(const PeerTierConfig& config, TierHost& host, PeerTierParts parts)
    : config_(config),
      host_(host),
      parts_(std::move(parts)),
      asker_context_{&config_,
                     parts_.network.get(),
                     {},
                     &host.identity(),
                     RandomBytes<std::tuple_size_v<InstanceId>>(parts_.random),
                     &counters_,
                     parts_.now,
                     parts_.random(),
                     1},
      holder_context_{
          &config_,
          parts_.network.get(),
          &host.identity(),
          asker_context_.instance,
          parts_.leases.get(),
          {},
          &counters_,
          parts_.now,
          [this] { return RandomBytes<std::tuple_size_v<SessionToken>>(parts_.random); }},
      asker_(asker_context_, AddressesOf(config.peers)),
      holder_(holder_context_) {
  for (const auto& plane : parts_.planes) {
    asker_context_.planes.push_back(plane.get());
    holder_context_.planes.push_back({static_cast<std::uint8_t>(plane->kind()), plane->Offer()});
  }
}

PeerTier::~PeerTier() {
  TERRACE_CHECK(Shutdown(kDestructorPatience), "a data plane of the peer tier hangs");
}

TierLookup PeerTier::Lookup(const ChunkKey& key, const Request& request) {
  return asker_.Lookup(key, request.id);
}

void PeerTier::SubmitStore(TransferJob job) { holder_.SubmitStore(std::move(job)); }

void PeerTier::SubmitLoad(TransferJob job) {
  asker_.SubmitLoad(std::move(job));
  loads_under_way_.store(asker_.jobs_under_way(), std::memory_order_relaxed);
  TellEngine();
}

void PeerTier::TakeFinished(std::vector<JobResult>& results) {
  if (!shut_down_) {
    ReadNetwork(nullptr);
    ReadPlanes();
    Tick();
    // Whoever asks is the engine, or its control thread, which has to wake it.
    TellEngine();
  }
  holder_.TakeFinished(results);
  asker_.TakeFinished(results);
  loads_under_way_.store(asker_.jobs_under_way(), std::memory_order_relaxed);
}

StoreInterest PeerTier::OnNewRequest(const Request& request) {
  asker_.OnNewRequest(request);
  return holder_.OnNewRequest(request);
}

void PeerTier::OnRequestFinished(const Request& request) {
  asker_.OnRequestFinished(request.id);
  holder_.OnRequestFinished(request.id);
}

void PeerTier::OnScheduleEnd() {
  if (!shut_down_) asker_.Flush();
}

void PeerTier::ServeExternalRequests(TierServer& server) {
  if (shut_down_) return;
  ReadNetwork(&server);
  ReadPlanes();
  Tick();
  holder_.Serve(server);
  TellEngine();
}

// `server`: to be asked between two messages whether to go on.
void PeerTier::ReadNetwork(const TierServer* server) {
  for (int i = 0;; ++i) {
    if (i == kMessagesMax || (server != nullptr && i > 0 && server->ShouldYield()))
      return parts_.network->KeepReady();
    const auto event = parts_.network->Next();
    if (!event) return;
    if (event->kind == ControlNetwork::Event::Kind::kCall) {
      holder_.OnCall(event->caller, event->bytes);
    } else {
      asker_.OnEvent(*event);
    }
  }
}

void PeerTier::ReadPlanes() {
  events_.clear();
  for (const auto& plane : parts_.planes) plane->Take(events_);
  for (const DataEvent& event : events_) asker_.OnData(event);
}

void PeerTier::Tick() {
  const auto now = parts_.now();
  if (now - ticked_at_ < kTickInterval) return;
  ticked_at_ = now;
  asker_.Tick();
  holder_.Tick();
}

void PeerTier::TellEngine() {
  if (asker_.TakeProgress()) host_.NotifyProgress();
}

std::vector<CounterValue> PeerTier::Counters() const {
  const PeerCounters& c = counters_;
  const StrangerCounts strangers = parts_.network->strangers();
  std::uint64_t refused_connections = 0;
  for (const auto& plane : parts_.planes) refused_connections += plane->refused_connections();
  const LeaseTable::Counts leases = parts_.leases->counts();
  return {{"terrace_peer_lookups_total", c.lookups},
          {"terrace_peer_asked_chunks_total", c.asked_chunks},
          {"terrace_peer_found_chunks_total", c.found_chunks},
          {"terrace_peer_fetched_chunks_total", c.fetched_chunks},
          {"terrace_peer_gone_chunks_total", c.gone_chunks},
          {"terrace_peer_corrupt_chunks_total", c.corrupt_chunks},
          {"terrace_peer_lost_chunks_total", c.lost_chunks},
          {"terrace_peer_failures_total", c.failures},
          {"terrace_peer_refusals_total", c.refusals},
          {"terrace_peer_restarts_total", c.restarts},
          {"terrace_peer_overdue_fetches_total", c.overdue_fetches},
          {"terrace_peer_links", asker_.links_ready()},
          {"terrace_peer_sessions_opened_total", c.sessions_opened},
          {"terrace_peer_sessions_refused_total", c.sessions_refused},
          {"terrace_peer_sessions_expired_total", c.sessions_expired},
          {"terrace_peer_silent_sessions_total", c.sessions_silent},
          {"terrace_peer_sessions", holder_.session_count()},
          {"terrace_peer_bad_messages_total", c.bad_messages},
          {"terrace_peer_stale_messages_total", c.stale_messages},
          {"terrace_peer_port_closed_total", parts_.network->times_deaf()},
          {"terrace_peer_strangers_total", strangers.unknown},
          {"terrace_peer_wrong_keys_total", strangers.wrong_keys},
          {"terrace_peer_refused_data_connections_total", refused_connections},
          {"terrace_peer_served_lookups_total", c.served_lookups},
          {"terrace_peer_served_chunks_total", c.served_chunks},
          {"terrace_peer_overdue_lookups_total", c.overdue_lookups},
          {"terrace_peer_refused_lookups_total", c.refused_lookups},
          {"terrace_peer_deferred_lookups_total", c.deferred_lookups},
          {"terrace_peer_over_share_chunks_total", c.over_share_chunks},
          {"terrace_peer_refused_transfers_total", c.refused_transfers},
          {"terrace_peer_expired_leases_total", c.expired_leases},
          {"terrace_peer_leases", leases.leases},
          {"terrace_peer_leased_chunks", leases.chunks},
          {"terrace_peer_parked_chunks_total", c.parked_chunks},
          {"terrace_peer_unclaimed_chunks_total", c.unclaimed_chunks}};
}

// What is under way ends by itself, and is counted when somebody takes it. What is kept for
// decoders is the manager's to wait for.
bool PeerTier::Drain(std::chrono::milliseconds timeout) {
  const auto deadline = DeadlineIn(timeout);
  while (loads_under_way_.load(std::memory_order_relaxed) > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

bool PeerTier::Shutdown(std::chrono::milliseconds timeout) {
  const auto deadline = DeadlineIn(timeout);
  if (!std::exchange(shut_down_, true)) {
    asker_.Close();
    holder_.Close();
  }
  if (std::exchange(planes_ended_, true)) return true;
  for (const auto& plane : parts_.planes) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    planes_ended_ = plane->Shutdown(std::max(left, milliseconds(1))) && planes_ended_;
  }
  ReadPlanes();  // The ends of all reads.
  loads_under_way_.store(asker_.jobs_under_way(), std::memory_order_relaxed);
  TERRACE_CHECK(!planes_ended_ || asker_.jobs_under_way() == 0,
                "a data plane ended with reads under way");
  return planes_ended_;
}

}  // namespace terrace
