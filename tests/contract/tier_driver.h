// Plays the manager for one tier: fills slots, submits jobs, waits for results, and fails the test
// if a job is reported twice or never.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "terrace/secondary_tier.h"
#include "tests/contract/fake_tier_host.h"

namespace terrace::testing {

inline ChunkKey TestKey(std::uint32_t number, std::uint32_t group = 0) {
  std::array<std::uint8_t, 32> hash{};
  for (std::size_t i = 0; i < hash.size(); ++i) {
    hash[i] = static_cast<std::uint8_t>((number + 1) * 2654435761u >> (i % 4 * 8));
  }
  return ChunkKey(hash, group);
}

inline std::vector<ChunkKey> TestKeys(std::uint32_t count, std::uint32_t first = 0) {
  std::vector<ChunkKey> keys;
  for (std::uint32_t i = 0; i < count; ++i) keys.push_back(TestKey(first + i));
  return keys;
}

inline std::vector<SlotId> TestSlots(std::uint32_t count, std::uint32_t first = 0) {
  std::vector<SlotId> slots;
  for (std::uint32_t i = 0; i < count; ++i) slots.push_back(SlotId(first + i));
  return slots;
}

// The bytes that the chunk of a key has in all tests: every 8 of them depend on key and position.
inline std::vector<std::byte> BytesOf(const ChunkKey& key, std::size_t size) {
  std::uint64_t state = std::hash<ChunkKey>{}(key);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

inline void FillSlot(TierHost& host, SlotId slot, const ChunkKey& key) {
  const auto target = host.Slot(slot);
  const auto bytes = BytesOf(key, target.size());
  std::memcpy(target.data(), bytes.data(), bytes.size());
}

inline void ClearSlot(TierHost& host, SlotId slot) {
  const auto target = host.Slot(slot);
  std::memset(target.data(), 0xee, target.size());
}

inline bool SlotHolds(TierHost& host, SlotId slot, const ChunkKey& key) {
  const auto found = host.Slot(slot);
  const auto bytes = BytesOf(key, found.size());
  return std::memcmp(found.data(), bytes.data(), bytes.size()) == 0;
}

// Confined to the test's thread.
class TierDriver {
 public:
  TierDriver(SecondaryTier& tier, FakeTierHost& host, std::uint64_t first_job = 1)
      : tier_(tier), host_(host), next_job_(first_job) {}

  // The verdict, in as many steps as the tier takes for it.
  TierLookup Lookup(const ChunkKey& key, RequestId request = RequestId(7)) {
    for (;;) {
      const std::uint64_t seen = host_.progress();
      const TierLookup found = tier_.Lookup(key, {request});
      tier_.OnScheduleEnd();
      if (found != TierLookup::kRetry) return found;
      if (!host_.WaitForProgressBeyond(seen)) break;
    }
    ADD_FAILURE() << "a look-up was never answered";
    return TierLookup::kMiss;
  }

  JobId SubmitStore(std::vector<ChunkKey> keys, std::vector<SlotId> slots) {
    for (std::size_t i = 0; i < keys.size(); ++i) FillSlot(host_, slots[i], keys[i]);
    const JobId id(next_job_++);
    tier_.SubmitStore({id, RequestId(7), std::move(keys), std::move(slots)});
    return id;
  }
  JobId SubmitLoad(std::vector<ChunkKey> keys, std::vector<SlotId> slots) {
    for (const SlotId slot : slots) ClearSlot(host_, slot);
    const JobId id(next_job_++);
    tier_.SubmitLoad({id, RequestId(7), std::move(keys), std::move(slots)});
    return id;
  }

  // The result of `id`, once it is there; an empty one, and a failed test, if it never comes.
  JobResult Await(JobId id) {
    for (;;) {
      const std::uint64_t seen = host_.progress();
      Poll();
      if (const auto found = results_.find(id); found != results_.end()) return found->second;
      if (!host_.WaitForProgressBeyond(seen)) break;
    }
    ADD_FAILURE() << "job " << id.value << " was never reported";
    return {};
  }

  // Takes what is finished now, without waiting.
  void Poll() {
    std::vector<JobResult> results;
    tier_.TakeFinished(results);
    for (JobResult& result : results) {
      const JobId id = result.id;
      EXPECT_LT(id.value, next_job_) << "a job that nobody submitted";
      EXPECT_TRUE(results_.emplace(id, std::move(result)).second)
          << "job " << id.value << " was reported twice";
    }
  }

  bool Reported(JobId id) const { return results_.contains(id); }

  JobResult Store(std::vector<ChunkKey> keys, std::vector<SlotId> slots) {
    return Await(SubmitStore(std::move(keys), std::move(slots)));
  }
  // Loads, and fails the test if a chunk is said to be there and has wrong bytes.
  JobResult Load(const std::vector<ChunkKey>& keys, const std::vector<SlotId>& slots) {
    JobResult result = Await(SubmitLoad(keys, slots));
    EXPECT_EQ(result.outcomes.size(), keys.size());
    for (std::size_t i = 0; i < result.outcomes.size(); ++i) {
      if (result.outcomes[i] == CopyOutcome::kFailed) continue;
      EXPECT_TRUE(SlotHolds(host_, slots[i], keys[i])) << "wrong bytes served for chunk " << i;
    }
    return result;
  }

  std::uint64_t Counter(std::string_view name) {
    for (const CounterValue& counter : tier_.Counters()) {
      if (counter.name == name) return counter.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

 private:
  SecondaryTier& tier_;
  FakeTierHost& host_;
  std::uint64_t next_job_;
  std::map<JobId, JobResult> results_;
};

}  // namespace terrace::testing
