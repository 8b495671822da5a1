// Two nodes' halves of a data plane under test: hosts, leases, and waits with a bound.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/support/keys.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/lease_table.h"

namespace terrace::testing {

using PlaneFactory = Result<std::unique_ptr<DataPlane>> (*)(const DataPlaneContext&);

// What has happened, to wait for without sleeping.
class Doorbell {
 public:
  void Ring() {
    MutexLock lock(mutex_);
    ++rings_;
    rung_.NotifyAll();
  }
  // Until `done` says so, asked again after every ring and now and then; false after kPatience.
  bool WaitFor(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t seen = 0;
    while (!done()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      const auto look_again = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      MutexLock lock(mutex_);
      while (rings_ == seen && rung_.WaitUntil(mutex_, look_again)) {
      }
      seen = rings_;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar rung_;
  std::uint64_t rings_ TERRACE_GUARDED_BY(mutex_) = 0;
};

// One node: its memory, what it has promised, its plane.
class PlaneNode {
 public:
  explicit PlaneNode(PlaneFactory create, std::size_t n_slots = 16,
                     std::uint64_t chunk_bytes = 5000, std::uint32_t links_max = 8)
      : PlaneNode(create, n_slots, TestIdentityFields(chunk_bytes), links_max) {}
  PlaneNode(PlaneFactory create, std::size_t n_slots, CacheIdentityFields fields,
            std::uint32_t links_max)
      : host(n_slots, std::move(fields)), leases(LeaseTable::Options()) {
    DataPlaneContext context;
    context.host = &host;
    context.leases = &leases;
    context.links_max = links_max;
    context.on_event = [this] { bell.Ring(); };
    auto created = create(context);
    if (!created.ok()) {
      ADD_FAILURE() << created.error().message;
      std::abort();
    }
    plane = std::move(created).value();
  }
  ~PlaneNode() { EXPECT_TRUE(plane->Shutdown(kPatience)); }

  // The bytes that a chunk has on every node.
  static std::vector<std::byte> BytesOf(const ChunkKey& key, std::size_t size) {
    std::uint64_t state = 0;
    std::memcpy(&state, key.hash().data(), sizeof state);
    std::vector<std::byte> bytes(size);
    for (std::size_t at = 0; at < size; at += sizeof state) {
      state = (state + 0x9e3779b97f4a7c15U) * 0xbf58476d1ce4e5b9U;
      state ^= state >> 29;
      std::memcpy(bytes.data() + at, &state, std::min(sizeof state, size - at));
    }
    return bytes;
  }
  void Fill(SlotId slot, const ChunkKey& key) {
    const auto slot_bytes = host.Slot(slot);
    const auto bytes = BytesOf(key, slot_bytes.size());
    std::memcpy(slot_bytes.data(), bytes.data(), bytes.size());
  }
  bool Holds(SlotId slot, const ChunkKey& key) {
    const auto slot_bytes = host.Slot(slot);
    const auto bytes = BytesOf(key, slot_bytes.size());
    return std::memcmp(slot_bytes.data(), bytes.data(), bytes.size()) == 0;
  }

  // Holder: key i is in slot i, and leased to the session.
  LeaseId Lease(SessionId session, const std::vector<ChunkKey>& keys) {
    TransferJob job;
    job.id = JobId(next_job++);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Fill(SlotId(static_cast<std::uint32_t>(i)), keys[i]);
      job.keys.push_back(keys[i]);
      job.slots.push_back(SlotId(static_cast<std::uint32_t>(i)));
    }
    return leases.Add(session, keys, {&job, 1}, std::chrono::steady_clock::now());
  }
  // Whether the jobs of its leases are reported, all of them; waits for it.
  bool AwaitEndedJobs(std::size_t count) {
    return bell.WaitFor([&] {
      leases.TakeEnded(ended_jobs);
      return ended_jobs.size() >= count;
    });
  }

  // Asker.
  void Take() {
    std::vector<DataEvent> events;
    plane->Take(events);
    for (DataEvent& event : events) {
      if (lost.contains(event.link)) ADD_FAILURE() << "an event behind the link's kLost";
      switch (event.kind) {
        case DataEvent::Kind::kOpened:
          EXPECT_TRUE(opened.emplace(event.link, true).second) << "opened twice";
          break;
        case DataEvent::Kind::kLost:
          EXPECT_TRUE(lost.emplace(event.link, event.why).second) << "lost twice";
          break;
        case DataEvent::Kind::kRead:
          EXPECT_TRUE(ends.emplace(std::pair(event.link, event.tag), event.end).second)
              << "read " << event.tag << " ends twice";
          break;
      }
    }
  }
  bool AwaitOpened(DataLinkId link) {
    return bell.WaitFor([&] {
      Take();
      return opened.contains(link) || lost.contains(link);
    }) && opened.contains(link);
  }
  bool AwaitLost(DataLinkId link) {
    return bell.WaitFor([&] {
      Take();
      return lost.contains(link);
    });
  }
  bool AwaitEnds(std::size_t count) {
    return bell.WaitFor([&] {
      Take();
      return ends.size() >= count;
    });
  }
  std::optional<ReadEnd> EndOf(DataLinkId link, std::uint64_t tag) const {
    const auto found = ends.find({link, tag});
    return found == ends.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t CountEnds(ReadEnd end) const {
    return static_cast<std::size_t>(std::count_if(
        ends.begin(), ends.end(), [&](const auto& one) { return one.second == end; }));
  }

  FakeTierHost host;
  LeaseTable leases;
  Doorbell bell;
  std::unique_ptr<DataPlane> plane;
  std::vector<JobResult> ended_jobs;
  std::map<DataLinkId, bool> opened;
  std::map<DataLinkId, std::string> lost;
  std::map<std::pair<DataLinkId, std::uint64_t>, ReadEnd> ends;
  std::uint64_t next_job = 1;
};

inline SessionToken TokenOf(std::uint8_t n) {
  SessionToken token{};
  token.fill(n);
  return token;
}

inline std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + kPatience;
}

// Reads of a lease's chunks, i into slot `first_slot` + i, tagged `first_tag` + i.
inline std::vector<ChunkRead> ReadsOf(LeaseId lease, const std::vector<ChunkKey>& keys,
                                      std::uint32_t first_slot = 0, std::uint64_t first_tag = 0) {
  std::vector<ChunkRead> reads;
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    reads.push_back({first_tag + i, lease, i, keys[i], SlotId(first_slot + i)});
  }
  return reads;
}

}  // namespace terrace::testing
