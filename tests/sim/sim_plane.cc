#include "tests/sim/sim_plane.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace terrace::sim {

SimPlane::SimPlane(Hub& hub, std::map<std::string, SimPlane*>& planes, std::string name,
                   TierHost& host, LeaseTable& leases)
    : hub_(hub), planes_(planes), name_(std::move(name)), host_(host), leases_(leases) {
  planes_[name_] = this;
}

// As a process that dies: everybody it talked to hears of it.
SimPlane::~SimPlane() {
  if (planes_[name_] == this) planes_[name_] = nullptr;
  for (auto& [id, link] : links_) {
    if (SimPlane* holder = At(link.holder)) holder->EndServed(link.connection);
  }
  for (auto& [name, plane] : planes_) {
    if (plane == nullptr) continue;
    std::vector<DataLinkId> mine;
    for (const auto& [id, link] : plane->links_) {
      if (link.holder == name_) mine.push_back(id);
    }
    for (const DataLinkId id : mine) plane->Lose(id, "the holder died");
  }
}

SimPlane* SimPlane::At(const std::string& name) {
  const auto found = planes_.find(name);
  return found == planes_.end() ? nullptr : found->second;
}

void SimPlane::Open(DataLinkId id, const std::string&, const std::string& offer,
                    const SessionToken& token, TimePoint deadline) {
  const std::uint64_t connection = hub_.next_connection++;
  links_[id] = {connection, offer, false, {}, {}, {}};
  const auto still_there = [this, self = name_, id, &planes = planes_, connection] {
    const auto found = planes.find(self);
    if (found == planes.end() || found->second != this) return false;
    const auto link = links_.find(id);
    return link != links_.end() && link->second.connection == connection;
  };
  hub_.world().In(hub_.world().Latency(), [this, id, offer, token, connection, still_there] {
    if (!still_there() || !hub_.Passes(name_, offer)) return;
    SimPlane* const holder = At(offer);
    const auto session = holder == nullptr ? std::nullopt : holder->leases_.OpenLink(token);
    if (!session) return Lose(id, "refused");
    holder->served_[connection] = {*session, {}};
    hub_.world().In(hub_.world().Latency(), [this, id, still_there] {
      if (!still_there()) return;
      links_.at(id).open = true;
      events_.push_back({id, DataEvent::Kind::kOpened, 0, ReadEnd::kOk, {}});
    });
  });
  hub_.world().At(deadline, [this, id, still_there] {
    if (still_there() && !links_.at(id).open) Lose(id, "deadline");
  });
}

void SimPlane::Read(DataLinkId id, std::span<const ChunkRead> reads) {
  World& world = hub_.world();
  const auto found = links_.find(id);
  if (found == links_.end()) {  // Lost, and the caller has not heard of it yet.
    for (const ChunkRead& read : reads)
      events_.push_back({id, DataEvent::Kind::kRead, read.tag, ReadEnd::kLost, {}});
    return;
  }
  Link& link = found->second;
  for (const ChunkRead& read : reads) {
    link.reads[read.tag] = read;
    world.At(hub_.Arrival(link.last_request),
             [&planes = planes_, &hub = hub_, asker = name_, holder = link.holder, id,
              connection = link.connection, read] {
               hub.Arrives();
               if (!hub.Passes(asker, holder)) return;
               SimPlane* const there = planes[holder];
               if (there != nullptr) there->Serve(asker, id, connection, read);
             });
  }
}

// The holder's side.
void SimPlane::Serve(const std::string& asker_name, DataLinkId link, std::uint64_t connection,
                     const ChunkRead& read) {
  World& world = hub_.world();
  SimPlane* const asker = At(asker_name);
  const auto served = served_.find(connection);
  if (asker == nullptr || served == served_.end()) return;
  if (!leases_.IsOpen(served->second.session) || world.Happens(world.weights.cut_link)) {
    EndServed(connection);
    return asker->Lose(link, "the holder hung up");
  }
  const auto chunk = leases_.BeginRead(served->second.session, read.lease, read.index);
  const auto back = [&planes = planes_, &hub = hub_, asker_name, self = name_, link](auto then) {
    return [&planes, &hub, asker_name, self, link, then] {
      hub.Arrives();
      SimPlane* const there = planes[asker_name];
      if (there != nullptr && there->links_.contains(link) && hub.Passes(asker_name, self))
        then(*there);
    };
  };
  if (!chunk) {
    return world.In(world.Latency(), back([link, tag = read.tag](SimPlane& there) {
                      there.End(link, tag, ReadEnd::kGone);
                    }));
  }
  const auto slot = host_.Slot(chunk->slot);
  // As the real planes do.
  auto checksum = host_.KnownChecksum(chunk->slot);
  if (!checksum) {
    checksum = Xxh3(slot);
    host_.NoteChecksum(chunk->slot, *checksum);
  }
  const ChunkRecord record{.identity = host_.identity().digest(),
                           .key = chunk->key,
                           .payload_size = slot.size(),
                           .payload_checksum = *checksum};
  if (world.Random(2) == 0) {
    // Inline: the bytes leave now.
    std::vector<std::byte> bytes(slot.begin(), slot.end());
    leases_.EndRead(read.lease);
    if (world.Happens(world.weights.flip_chunk)) bytes[world.Random(bytes.size())] ^= std::byte{4};
    return world.In(world.Latency(), back([link, tag = read.tag, record, bytes](SimPlane& there) {
                      there.Arrive(link, tag, record, bytes);
                    }));
  }
  // Mapped: the asker looks into our memory later. It is not waited for if the lease ends
  // meanwhile.
  served->second.reading.push_back(read.lease);
  world.In(world.Latency(), back([link, tag = read.tag, record, holder = name_, slot = chunk->slot,
                                  connection, lease = read.lease](SimPlane& there) {
             SimPlane* const source = there.At(holder);
             if (source == nullptr) return;
             const auto memory = source->host_.Slot(slot);
             there.Arrive(link, tag, record, {memory.begin(), memory.end()});
             source->EndOneRead(connection, lease);
           }));
}

void SimPlane::EndOneRead(std::uint64_t connection, LeaseId lease) {
  const auto served = served_.find(connection);
  if (served == served_.end()) return;
  const auto reading =
      std::find(served->second.reading.begin(), served->second.reading.end(), lease);
  if (reading == served->second.reading.end()) return;
  served->second.reading.erase(reading);
  leases_.EndRead(lease);
}

void SimPlane::EndServed(std::uint64_t connection) {
  const auto served = served_.find(connection);
  if (served == served_.end()) return;
  for (const LeaseId lease : served->second.reading) leases_.EndRead(lease);
  leases_.CloseLink(served->second.session);
  served_.erase(served);
}

// The asker's side.
void SimPlane::Arrive(DataLinkId id, std::uint64_t tag, const ChunkRecord& record,
                      const std::vector<std::byte>& bytes) {
  const Link& link = links_.at(id);
  const auto read = link.reads.find(tag);
  if (read == link.reads.end()) return;
  const auto slot = host_.Slot(read->second.slot);
  std::copy(bytes.begin(), bytes.end(), slot.begin());
  const WantedChunk wanted{host_.identity().digest(), read->second.key, slot.size()};
  const bool good = MatchChunkRecord(record, wanted).ok() && VerifyChunkPayload(record, slot).ok();
  if (good) host_.NoteChecksum(read->second.slot, record.payload_checksum);
  End(id, tag, good ? ReadEnd::kOk : ReadEnd::kCorrupt);
}

void SimPlane::End(DataLinkId id, std::uint64_t tag, ReadEnd end) {
  if (links_.at(id).reads.erase(tag) == 0) return;
  events_.push_back({id, DataEvent::Kind::kRead, tag, end, {}});
}

void SimPlane::Lose(DataLinkId id, const std::string& why) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  for (const auto& [tag, read] : link->second.reads) {
    events_.push_back({id, DataEvent::Kind::kRead, tag, ReadEnd::kLost, {}});
  }
  events_.push_back({id, DataEvent::Kind::kLost, 0, ReadEnd::kOk, why});
  links_.erase(link);
}

void SimPlane::Close(DataLinkId id) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  hub_.world().In(hub_.world().Latency(), [&planes = planes_, holder = link->second.holder,
                                           connection = link->second.connection] {
    if (SimPlane* there = planes[holder]) there->EndServed(connection);
  });
  Lose(id, "closed");
}

void SimPlane::Take(std::vector<DataEvent>& events) {
  std::move(events_.begin(), events_.end(), std::back_inserter(events));
  events_.clear();
}

bool SimPlane::Shutdown(std::chrono::milliseconds) {
  while (!links_.empty()) Close(links_.begin()->first);
  while (!served_.empty()) EndServed(served_.begin()->first);
  return true;
}

}  // namespace terrace::sim
