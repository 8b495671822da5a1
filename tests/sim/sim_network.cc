#include "tests/sim/sim_network.h"

namespace terrace::sim {
namespace {

void MayFlip(World& world, std::vector<std::uint8_t>& bytes) {
  if (bytes.empty() || !world.Happens(world.weights.flip_message)) return;
  bytes[world.Random(bytes.size())] ^= static_cast<std::uint8_t>(1u << world.Random(8));
}

}  // namespace

TimePoint Hub::Arrival(TimePoint& last) {
  last = std::max(last, world_.now() + world_.Latency());
  return last;
}

void Hub::Cut(std::uint64_t id) {
  const auto found = connections.find(id);
  if (found == connections.end()) return;
  const Connection connection = found->second;
  connections.erase(found);
  SimNetwork* const asker = At(connection.asker);
  if (asker == nullptr || !asker->Has(connection.link)) return;
  asker->Deliver({ControlNetwork::Event::Kind::kLinkLost, connection.link, {}, {}, "cut"});
}

SimNetwork::SimNetwork(Hub& hub, std::string host) : hub_(hub), host_(std::move(host)) {
  hub_.Listen(host_, this);
}

SimNetwork::~SimNetwork() {
  hub_.StopListening(host_, this);
  std::vector<std::uint64_t> mine;
  for (const auto& [id, connection] : hub_.connections) {
    if (connection.asker == host_ || connection.holder == host_) mine.push_back(id);
  }
  for (const std::uint64_t id : mine) hub_.Cut(id);
}

Result<LinkId> SimNetwork::Dial(const PeerAddress& address) {
  const LinkId link(next_link_++);
  const std::uint64_t id = hub_.next_connection++;
  const TimePoint now = hub_.world().now();
  hub_.connections[id] = {host_, address.host, link, false, {}, now, now};
  links_[link] = id;
  hub_.world().In(hub_.world().Latency(), [this, &hub = hub_, id] {
    hub.Arrives();
    const auto connection = hub.connections.find(id);
    if (connection == hub.connections.end() ||
        !hub.Passes(connection->second.asker, connection->second.holder))
      return;
    if (hub.At(connection->second.holder) == nullptr) return hub.Cut(id);  // Refused.
    connection->second.open = true;
    auto waiting = std::move(connection->second.waiting);
    for (auto& bytes : waiting) Post(id, std::move(bytes));
  });
  return link;
}

void SimNetwork::HangUp(LinkId link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  hub_.connections.erase(found->second);
  links_.erase(found);
}

bool SimNetwork::Send(LinkId link, std::span<const std::uint8_t> bytes) {
  const auto found = links_.find(link);
  if (found == links_.end()) return false;
  const auto connection = hub_.connections.find(found->second);
  if (connection == hub_.connections.end()) return true;  // Cut: the news is on its way.
  if (!connection->second.open) {
    connection->second.waiting.emplace_back(bytes.begin(), bytes.end());
    return true;
  }
  Post(found->second, {bytes.begin(), bytes.end()});
  return true;
}

void SimNetwork::Post(std::uint64_t id, std::vector<std::uint8_t> bytes) {
  World& world = hub_.world();
  if (world.Happens(world.weights.cut_link)) return hub_.Cut(id);
  if (world.Happens(world.weights.lose_message)) return;
  MayFlip(world, bytes);
  Hub::Connection& connection = hub_.connections.at(id);
  world.At(hub_.Arrival(connection.last_to_holder), [&hub = hub_, id, bytes = std::move(bytes)] {
    hub.Arrives();
    const auto found = hub.connections.find(id);
    if (found == hub.connections.end() || !hub.Passes(found->second.asker, found->second.holder))
      return;
    if (SimNetwork* holder = hub.At(found->second.holder)) {
      holder->Deliver({Event::Kind::kCall, {}, std::to_string(id), bytes, {}});
    }
  });
}

bool SimNetwork::Reply(const std::string& caller, std::span<const std::uint8_t> bytes) {
  const std::uint64_t id = std::stoull(caller);
  const auto connection = hub_.connections.find(id);
  if (connection == hub_.connections.end() || connection->second.holder != host_) return false;
  World& world = hub_.world();
  if (world.Happens(world.weights.cut_link)) {
    hub_.Cut(id);
    return true;
  }
  if (world.Happens(world.weights.lose_message)) return true;
  std::vector<std::uint8_t> copy(bytes.begin(), bytes.end());
  MayFlip(world, copy);
  world.At(hub_.Arrival(connection->second.last_to_asker), [&hub = hub_, id,
                                                            copy = std::move(copy)] {
    hub.Arrives();
    const auto found = hub.connections.find(id);
    if (found == hub.connections.end() || !hub.Passes(found->second.asker, found->second.holder))
      return;
    SimNetwork* const asker = hub.At(found->second.asker);
    if (asker == nullptr || !asker->Has(found->second.link)) return;
    asker->Deliver({Event::Kind::kMessage, found->second.link, {}, copy, {}});
  });
  return true;
}

std::optional<ControlNetwork::Event> SimNetwork::Next() {
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    if (event.kind != Event::Kind::kCall && !Has(event.link)) continue;  // Hung up since.
    return event;
  }
  return std::nullopt;
}

}  // namespace terrace::sim
