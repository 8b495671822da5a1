// Small types that every part shares. All are plain values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace terrace {

// An integer that cannot be mistaken for another kind of integer.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

// One row of host memory.
using SlotId = StrongId<struct SlotIdTag, std::uint32_t>;
// One asynchronous transfer. Unique in the life of a manager (tier jobs) or of a connector (engine
// jobs).
using JobId = StrongId<struct JobIdTag, std::uint64_t>;
// One inference request. The engine chooses it; it is unique among live requests.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;
// One unit of the engine's paged KV memory. The engine chooses its meaning; Terrace only hands it
// back.
using BlockId = StrongId<struct BlockIdTag, std::int64_t>;

// How a copy ended. Not a bool: a failed copy has consequences of its own.
enum class CopyOutcome : std::uint8_t { kOk, kFailed };

// Where the bytes of a loaded chunk came from before they were in host memory.
enum class LoadSource : std::uint8_t { kHost, kMemory, kDisk, kObject, kPeer, kOther };
inline constexpr std::size_t kLoadSourceCount = 6;

constexpr std::string_view LoadSourceName(LoadSource source) {
  switch (source) {
    case LoadSource::kHost:
      return "host";
    case LoadSource::kMemory:
      return "memory";
    case LoadSource::kDisk:
      return "disk";
    case LoadSource::kObject:
      return "object";
    case LoadSource::kPeer:
      return "peer";
    case LoadSource::kOther:
      return "other";
  }
  return "other";
}

// How willingly the system runs a thread.
enum class ThreadPriority : std::uint8_t {
  kNormal,
  kHigh,      // Before the others when it wakes, its fair share of time all the same (nice -10).
  kRealtime,  // Whenever it can run, it does (SCHED_RR, the lowest of its priorities).
};

constexpr std::string_view ThreadPriorityName(ThreadPriority priority) {
  switch (priority) {
    case ThreadPriority::kNormal:
      return "normal";
    case ThreadPriority::kHigh:
      return "high";
    case ThreadPriority::kRealtime:
      return "realtime";
  }
  return "normal";
}

// Kinds of secondary tier, as a set.
class LoadSourceSet {
 public:
  static constexpr LoadSourceSet All() { return LoadSourceSet(~std::uint32_t{0}); }
  static constexpr LoadSourceSet None() { return LoadSourceSet(0); }
  constexpr LoadSourceSet With(LoadSource source) const {
    return LoadSourceSet(bits_ | std::uint32_t{1} << static_cast<unsigned>(source));
  }
  constexpr bool Has(LoadSource source) const {
    return (bits_ >> static_cast<unsigned>(source) & 1) != 0;
  }
  friend constexpr bool operator==(LoadSourceSet, LoadSourceSet) = default;

 private:
  constexpr explicit LoadSourceSet(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_;
};

// What a lookup in the manager found. Only kHit permits PrepareLoad().
enum class LookupResult : std::uint8_t {
  kMiss,        // In no tier that may be asked, or host memory has no slot to promote it into.
  kHit,         // Ready in host memory.
  kHitPending,  // Being written into host memory; ask again next step. Ends at a deadline.
  kRetry,       // Not known yet, or its promotion has to wait its turn; ask again next step. Ends
                // at a deadline.
};

}  // namespace terrace

template <typename Tag, typename Rep>
struct std::hash<terrace::StrongId<Tag, Rep>> {
  std::size_t operator()(terrace::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
