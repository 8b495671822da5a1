#include "tests/peer/test_node.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/fd.h"

namespace terrace::testing {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

[[noreturn]] void GiveUp(const std::string& why) {
  std::fprintf(stderr, "test node: %s\n", why.c_str());
  std::abort();
}

CacheIdentity Identity(const TestNodeOptions& options) {
  CacheIdentityFields fields = TestIdentityFields(kNodeChunkBytes);
  fields.dtype = options.dtype;
  if (options.change_identity) options.change_identity(fields);
  return CacheIdentity::Create(fields).value();
}

std::vector<std::byte> ChunkOf(const ChunkKey& key) {
  std::vector<std::byte> bytes(kNodeChunkBytes);
  std::uint64_t state = 0;
  std::memcpy(&state, key.hash().data(), sizeof state);
  for (std::size_t at = 0; at + sizeof state <= bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &state, sizeof state);
  }
  return bytes;
}

}  // namespace

namespace {

TestNodeOptions WithDeadlines(const std::string& plane, std::uint32_t connect_ms,
                              std::uint32_t lookup_ms, std::uint32_t fetch_ms,
                              std::uint32_t lease_ms) {
  const auto part = [](const char* name, std::uint32_t ms) {
    return std::string("\"") + name + "\": " + std::to_string(ms);
  };
  TestNodeOptions options;
  options.plane = plane;
  options.more = part("connect_timeout_ms", connect_ms) + ", " +
                 part("lookup_timeout_ms", lookup_ms) + ", " + part("fetch_timeout_ms", fetch_ms) +
                 ", " + part("lease_ms", lease_ms);
  return options;
}

}  // namespace

TestNodeOptions WithShortDeadlines(const std::string& plane, std::uint32_t lease_ms) {
  return WithDeadlines(plane, kConnectMs, kLookupMs, kFetchMs, lease_ms);
}

TestNodeOptions WithLongDeadlines(const std::string& plane) {
  constexpr std::uint32_t kLongMs = 20'000;
  return WithDeadlines(plane, kLongMs, kLongMs, kLongMs, kLeaseMs);
}

std::uint32_t FreePort() {
  // Below what the system gives to those who dial; programs side by side begin apart.
  static std::uint32_t next = static_cast<std::uint32_t>(::getpid()) * 50;
  for (;;) {
    const std::uint32_t port = 20'000 + next++ % 12'000;
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return port;
    }
  }
}

std::shared_ptr<const PeerRoute> RouteTo(const std::string& host, std::uint32_t port) {
  auto route = std::make_shared<PeerRoute>();
  route->source = {
      PeerRoute::SourceKind::kHolder, {host, static_cast<std::uint16_t>(port)}, "test"};
  return route;
}

std::shared_ptr<const PeerRoute> RouteToPrefiller(const std::string& host, std::uint32_t port,
                                                  const std::string& transfer) {
  auto route = std::make_shared<PeerRoute>();
  route->source = {
      PeerRoute::SourceKind::kPrefiller, {host, static_cast<std::uint16_t>(port)}, transfer};
  return route;
}

TestNode::TestNode(const TestNodeOptions& options)
    : port_(options.port == 0 ? FreePort() : options.port) {
  const std::string json =
      R"({"cpu_bytes_to_use": "40MiB", "prefault_threads": 0, "secondary_tiers": [{"type": "peer", "port": )" +
      std::to_string(port_) + R"(, "data_plane": ")" + options.plane + "\"" +
      (options.more.empty() ? "" : ", " + options.more) + "}]}";
  auto config = ParseNodeConfig(json);
  if (!config.ok()) GiveUp(config.error().message);
  auto node = Node::Create(config.value(), Identity(options));
  if (!node.ok()) GiveUp(node.error().message);
  node_ = std::move(node).value();
}

std::byte* TestNode::Slot(SlotId slot) {
  const HostSlots slots = node_->host_slots();
  return slots.base + std::size_t{slot.value} * slots.stride_bytes;
}

Request TestNode::NewRequest(std::shared_ptr<const PeerRoute> route) {
  Request request{RequestId(next_request_++), LoadSourceSet::All(), std::move(route)};
  ManagerRegion region(node_->manager());
  node_->manager().OnNewRequest(request);
  return request;
}

void TestNode::StoreOf(const Request& request, std::span<const ChunkKey> keys) {
  OffloadingManager& manager = node_->manager();
  StorePlan plan;
  {
    ManagerRegion region(manager);
    if (manager.PrepareStore(keys, request, plan) != StoreOutcome::kPlanned) GiveUp("no room");
  }
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const auto bytes = ChunkOf(plan.keys[i]);
    std::memcpy(Slot(plan.slots[i]), bytes.data(), bytes.size());
  }
  ManagerRegion region(manager);
  manager.CompleteStore(plan.slots, request, CopyOutcome::kOk);
}

void TestNode::Finish(const Request& request) {
  ManagerRegion region(node_->manager());
  node_->manager().OnRequestFinished(request);
}

void TestNode::Store(const std::vector<ChunkKey>& keys) {
  const Request request = NewRequest();
  StoreOf(request, keys);
  Finish(request);
}

void TestNode::Prefill(const std::vector<ChunkKey>& keys, const std::string& transfer,
                       std::size_t count) {
  if (!prefilling_) {
    auto route = std::make_shared<PeerRoute>();
    route->keep_for_transfer = transfer;
    prefilling_ = NewRequest(std::move(route));
  }
  StoreOf(*prefilling_, std::span(keys).first(count));
  if (count == keys.size()) Finish(*std::exchange(prefilling_, std::nullopt));
}

void TestNode::Check(const std::vector<ChunkKey>& keys, const std::vector<SlotId>& slots) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto bytes = ChunkOf(keys[i]);
    if (std::memcmp(Slot(slots[i]), bytes.data(), bytes.size()) != 0) GiveUp("a byte is wrong");
  }
}

std::size_t TestNode::Fetch(const std::vector<ChunkKey>& keys,
                            std::shared_ptr<const PeerRoute> route) {
  OffloadingManager& manager = node_->manager();
  const Request request = NewRequest(std::move(route));
  std::vector<ChunkKey> hits;
  std::vector<SlotId> slots;
  std::size_t in_a_row = 0;
  const auto end = Clock::now() + kPatience;
  for (bool open = true; open;) {
    if (Clock::now() >= end) GiveUp("a request waits for ever");
    {
      ManagerRegion region(manager);
      hits.clear();
      in_a_row = 0;
      open = false;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const LookupResult result = manager.Lookup(keys[i], request);
        open = open || result == LookupResult::kRetry || result == LookupResult::kHitPending;
        if (result != LookupResult::kHit) continue;
        hits.push_back(keys[i]);
        if (in_a_row == i) ++in_a_row;
      }
      slots.resize(hits.size());
      if (!open && !hits.empty() && !manager.PrepareLoad(hits, request, slots)) {
        GiveUp("what was a hit is none");
      }
      manager.OnScheduleEnd();
    }
    if (open) node_->WaitForProgress(milliseconds(20));
  }
  Check(hits, slots);
  ManagerRegion region(manager);
  if (!hits.empty()) manager.CompleteLoad(slots, request);
  manager.OnRequestFinished(request);
  manager.OnScheduleEnd();
  return in_a_row;
}

bool TestNode::FetchesInTheEnd(const std::vector<ChunkKey>& keys,
                               const std::shared_ptr<const PeerRoute>& route) {
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    if (Fetch(keys, route) == keys.size()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

bool TestNode::ComputesWithoutAsking(const std::vector<ChunkKey>& keys,
                                     const std::shared_ptr<const PeerRoute>& route) {
  constexpr int kTimes = 20;
  const auto asked = Counter("terrace_peer_lookups_total");
  for (int i = 0; i < kTimes; ++i) {
    if (Fetch(keys, route) > 0) return false;
  }
  return Counter("terrace_peer_lookups_total") == asked;
}

std::uint64_t TestNode::Counter(const std::string& name) {
  ManagerRegion region(node_->manager());
  const ManagerStats stats = node_->manager().Stats();
  for (const CounterValue& counter : stats.tiers[0].counters) {
    if (counter.name == name) return counter.value;
  }
  GiveUp("no counter " + name);
}

bool TestNode::Becomes(const std::string& name, std::uint64_t value) {
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    if (Counter(name) == value) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

std::string TestNode::Leftovers() {
  ManagerRegion region(node_->manager());
  const ManagerStats stats = node_->manager().Stats();
  std::string left;
  const auto note = [&](const char* what, std::uint64_t count) {
    if (count > 0) left += std::string(what) + " " + std::to_string(count) + "; ";
  };
  note("pinned", stats.pinned_chunks);
  note("writing", stats.writing_chunks);
  note("orphans", stats.orphaned_slots);
  note("stuck", stats.stuck_slots);
  note("promotions", stats.tiers[0].promotion.slots_in_flight);
  note("cascades", stats.tiers[0].cascade.slots_in_flight);
  note("serving", stats.tiers[0].serve.slots_in_flight);
  note("faults", stats.tiers[0].faults);
  note("unknown reports", stats.tiers[0].unknown_reports);
  for (const CounterValue& counter : stats.tiers[0].counters) {
    if (counter.name == "terrace_peer_leases") note("leases", counter.value);
  }
  return left;
}

std::string TestNode::LeftoversInTheEnd() {
  const auto end = Clock::now() + kPatience;
  std::string left = Leftovers();
  while (!left.empty() && Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
    left = Leftovers();
  }
  return left;
}

}  // namespace terrace::testing
