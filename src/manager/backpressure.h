// Whether a tier keeps up with what is cascaded to it, and which cascades to leave out if not.
//
// It measures how long a tier takes to store a MiB, from the tier's own time stamps: from the start
// of a job to its end. Not from when the manager saw the result: an engine inside a long model step
// would make every tier look slow. So it does not see a queue either; that what is under way to a
// tier is bounded is the manager's business.
//
// - Smoothed above the high water mark: pressure; `policy` says what is left out.
// - Below the low water mark: no pressure; for `cooldown` every second store is left out.
// - In between: as before.
// - After `healthy_streak` stores below the low mark: everything is let in, whatever the policy.
//
// While nothing is stored nothing is measured, so under pressure the measure halves every
// `decay_half_life`: sooner or later a store gets through and is measured.
//
// A chunk left out is lost only to that tier. A request-level tier was promised its chunks: do not
// ask Admit() for those.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/result.h"

namespace terrace {

struct BackpressureOptions {
  double high_water_s_per_mib = 0;    // > 0
  double low_water_s_per_mib = 0;     // > 0 (else pressure never ends), at most the high one
  double alpha = 0.15;                // Weight of a new sample: above 0, at most 1.
  std::uint32_t warmup_stores = 10;   // >= 1; their mean is the first measure.
  std::uint32_t healthy_streak = 10;  // >= 1
  std::chrono::milliseconds decay_half_life{2'000};  // > 0
  std::chrono::milliseconds cooldown{1'000};         // >= 0
  // So many failures in a row are pressure, too, also while warming up. nullopt: failures do not
  // count. >= 1
  std::optional<std::uint32_t> failure_threshold;
  // "throttle": leaves out a part that grows from nothing at the high water mark to everything at
  // (1 + throttle_ramp) times of it. "drop": leaves out everything under pressure. "off": lets all
  // in and measures nothing.
  std::string policy = "throttle";
  double throttle_ramp = 2;  // > 0

  static BackpressureOptions LocalDisk();
  static BackpressureOptions Network();
  static BackpressureOptions Off();
};

// A fault of one option: "must be above 0, is -1". `option` is its name above, for a path.
struct BackpressureFault {
  std::string_view option;
  std::string what;
};

// Every fault at once; empty if there is none.
std::vector<BackpressureFault> Validate(const BackpressureOptions& options);

// One for each tier. Thread-compatible: under the manager's lock. It has no clock: `now` is never
// less than in the call before. Every call costs O(1).
class Backpressure {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Counters {
    std::uint64_t stores_dropped = 0;
    std::uint64_t chunks_dropped = 0;
    std::uint64_t failure_trips = 0;
  };

  // kInvalidArgument with all faults of the options.
  static Result<Backpressure> Create(const BackpressureOptions& options);

  // Whether a cascade of `chunks` chunks may be submitted now. If not it is counted as dropped, so
  // ask once, before anything was reserved for it.
  [[nodiscard]] bool Admit(std::uint64_t chunks, TimePoint now);

  // A cascade ended well. `duration` is the tier's, from the start to the end of the job. Without
  // bytes (the tier had it all), or with a duration below zero, it tells no speed, only that the
  // tier works.
  void OnStored(std::chrono::nanoseconds duration, std::uint64_t bytes, TimePoint now);
  void OnStoreFailed(TimePoint now);

  bool under_pressure(TimePoint now);

  // As when it was made, except for the counters: these only grow.
  void Reset() { state_ = {}; }

  // The smoothed measure; 0 until it is warm, unless failures set it.
  double ema_s_per_mib() const { return state_.ema; }
  const Counters& counters() const { return counters_; }

 private:
  enum class Policy : std::uint8_t { kOff, kThrottle, kDrop };

  struct State {
    std::uint32_t samples = 0;  // Up to warmup_stores.
    double warmup_sum = 0;
    double ema = 0;
    TimePoint decayed_at;  // The last time `ema` was set or halved; while pressured.
    bool pressured = false;
    std::uint32_t failures = 0;           // In a row.
    std::uint32_t healthy = 0;            // Stores in a row below the low water mark.
    std::optional<TimePoint> cleared_at;  // Start of the cool-down.
    std::uint32_t cooldown_stores = 0;    // Asked for during it.
    double throttle_debt = 0;             // Part of a store that is still to be left out.
  };

  Backpressure(const BackpressureOptions& options, Policy policy);

  bool Wanted(TimePoint now);
  bool PassesThrottle();
  void Decay(TimePoint now);
  void Blend(double sample, TimePoint now);
  void WarmUp(double sample, TimePoint now);
  void Clear(TimePoint now);

  BackpressureOptions options_;
  Policy policy_;
  State state_;
  Counters counters_;
};

}  // namespace terrace
