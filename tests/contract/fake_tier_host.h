// A host for tiers under test: slots in a memfd, and a way to wait for progress without sleeping.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "host/region_memory.h"
#include "host/slot_checksums.h"
#include "terrace/tier_host.h"

namespace terrace::testing {

// Long enough for a busy machine under a sanitizer; a test that waits this long has failed.
inline constexpr std::chrono::seconds kPatience{60};

inline CacheIdentityFields TestIdentityFields(std::uint64_t chunk_bytes) {
  return {.model = "test/model",
          .revision = "r1",
          .dtype = "f16",
          .layout = "plain",
          .layout_version = 1,
          .tokens_per_chunk = 64,
          .chunk_bytes = chunk_bytes,
          .shard_index = 0,
          .shard_count = 1,
          .engine = "test"};
}

// Thread-safe, as TierHost asks for.
class FakeTierHost final : public TierHost {
 public:
  static constexpr std::size_t kPage = 4096;

  // The default is no multiple of a page: there is padding to get wrong.
  explicit FakeTierHost(std::size_t n_slots, std::uint64_t chunk_bytes = 5000)
      : FakeTierHost(n_slots, TestIdentityFields(chunk_bytes)) {}
  FakeTierHost(std::size_t n_slots, CacheIdentityFields fields)
      : identity_(CacheIdentity::Create(std::move(fields)).value()),
        stride_((identity_.fields().chunk_bytes + kPage - 1) / kPage * kPage),
        memory_(RegionMemory::Create(PosixMemoryOps(), n_slots * stride_, HugePages::kOff).value()),
        n_slots_(n_slots),
        checksums_(static_cast<std::uint32_t>(n_slots)) {}

  std::span<std::byte> Slot(SlotId slot) override {
    if (slot.value >= n_slots_) std::abort();
    return {memory_.base() + slot.value * stride_, identity_.fields().chunk_bytes};
  }
  TierMemory Memory() override { return {{memory_.base(), n_slots_ * stride_}, memory_.fd()}; }
  std::size_t slot_stride_bytes() const override { return stride_; }
  const CacheIdentity& identity() const override { return identity_; }
  std::optional<std::uint64_t> KnownChecksum(SlotId slot) const override {
    return remembers_ ? checksums_.Known(slot) : std::nullopt;
  }
  void NoteChecksum(SlotId slot, std::uint64_t checksum) override {
    checksums_.Note(slot, checksum);
  }
  // From now on what was noted is known. Whoever writes a slot behind a tier's back forgets it
  // then.
  SlotChecksums& RememberChecksums() {
    remembers_ = true;
    return checksums_;
  }

  void NotifyProgress() override {
    MutexLock lock(mutex_);
    ++progress_;
    progressed_.NotifyAll();
  }

  std::uint64_t progress() {
    MutexLock lock(mutex_);
    return progress_;
  }
  // False if nothing came within kPatience.
  bool WaitForProgressBeyond(std::uint64_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (progress_ <= seen) {
      if (!progressed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  const CacheIdentity identity_;
  const std::size_t stride_;
  const RegionMemory memory_;
  const std::size_t n_slots_;
  SlotChecksums checksums_;
  bool remembers_ = false;
  Mutex mutex_;
  CondVar progressed_;
  std::uint64_t progress_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::testing
