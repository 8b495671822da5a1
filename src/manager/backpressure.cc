#include "manager/backpressure.h"

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

constexpr double kBytesPerMib = 1 << 20;
// Failures count as a tier that is so many times slower than the high water mark: above where
// "throttle" leaves out everything, so that it takes a while until the first store is tried again.
constexpr double kTripFactor = 4;

std::string Shown(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

BackpressureOptions BackpressureOptions::LocalDisk() {
  BackpressureOptions options;
  options.high_water_s_per_mib = 0.010;
  options.low_water_s_per_mib = 0.002;
  options.failure_threshold = 3;
  return options;
}

BackpressureOptions BackpressureOptions::Network() {
  BackpressureOptions options;
  options.high_water_s_per_mib = 0.050;
  options.low_water_s_per_mib = 0.010;
  options.failure_threshold = 3;
  return options;
}

BackpressureOptions BackpressureOptions::Off() {
  BackpressureOptions options = LocalDisk();
  options.policy = "off";
  return options;
}

std::vector<BackpressureFault> Validate(const BackpressureOptions& options) {
  std::vector<BackpressureFault> faults;
  const auto require = [&](bool ok, std::string_view option, std::string_view rule,
                           const std::string& is) {
    if (!ok) faults.push_back({option, "must be " + std::string(rule) + ", is " + is});
  };
  // Written so that NaN is a fault.
  const double high = options.high_water_s_per_mib;
  const double low = options.low_water_s_per_mib;
  require(high > 0 && std::isfinite(high), "high_water_s_per_mib", "above 0", Shown(high));
  require(low > 0 && (low <= high || !(high > 0)), "low_water_s_per_mib",
          "above 0 and at most high_water_s_per_mib", Shown(low));
  require(options.alpha > 0 && options.alpha <= 1, "alpha", "above 0 and at most 1",
          Shown(options.alpha));
  require(options.warmup_stores >= 1, "warmup_stores", "at least 1", "0");
  require(options.healthy_streak >= 1, "healthy_streak", "at least 1", "0");
  require(options.decay_half_life.count() > 0, "decay_half_life", "above 0 ms",
          std::to_string(options.decay_half_life.count()));
  require(options.cooldown.count() >= 0, "cooldown", "at least 0 ms",
          std::to_string(options.cooldown.count()));
  require(options.failure_threshold != 0u, "failure_threshold", "at least 1", "0");
  require(options.policy == "throttle" || options.policy == "drop" || options.policy == "off",
          "policy", "one of \"throttle\", \"drop\", \"off\"", "\"" + options.policy + "\"");
  require(options.throttle_ramp > 0 && std::isfinite(options.throttle_ramp), "throttle_ramp",
          "above 0", Shown(options.throttle_ramp));
  return faults;
}

Result<Backpressure> Backpressure::Create(const BackpressureOptions& options) {
  const std::vector<BackpressureFault> faults = Validate(options);
  if (!faults.empty()) {
    std::string message = "set up back-pressure";
    const char* separator = ": ";
    for (const BackpressureFault& fault : faults) {
      message.append(separator).append(fault.option).append(" ").append(fault.what);
      separator = "; ";
    }
    return Error{ErrorCode::kInvalidArgument, std::move(message)};
  }
  if (options.policy == "off") return Backpressure(options, Policy::kOff);
  return Backpressure(options, options.policy == "drop" ? Policy::kDrop : Policy::kThrottle);
}

Backpressure::Backpressure(const BackpressureOptions& options, Policy policy)
    : options_(options), policy_(policy) {}

bool Backpressure::Admit(std::uint64_t chunks, TimePoint now) {
  if (Wanted(now)) return true;
  ++counters_.stores_dropped;
  counters_.chunks_dropped += chunks;
  return false;
}

bool Backpressure::Wanted(TimePoint now) {
  if (under_pressure(now)) return policy_ == Policy::kThrottle && PassesThrottle();
  if (state_.healthy >= options_.healthy_streak) return true;
  const bool cooling = state_.cleared_at && now - *state_.cleared_at < options_.cooldown;
  return !cooling || ++state_.cooldown_stores % 2 != 0;
}

// Leaves out the rate's part of all stores, evenly: 3 of any 4 at 0.75.
bool Backpressure::PassesThrottle() {
  const double high = options_.high_water_s_per_mib;
  const double rate = (state_.ema - high) / high / options_.throttle_ramp;
  if (rate >= 1) return false;
  state_.throttle_debt += std::max(rate, 0.0);
  if (state_.throttle_debt < 1) return true;
  state_.throttle_debt -= 1;
  return false;
}

void Backpressure::OnStored(std::chrono::nanoseconds duration, std::uint64_t bytes, TimePoint now) {
  if (policy_ == Policy::kOff) return;
  state_.failures = 0;
  if (bytes == 0 || duration.count() < 0) return;
  const double sample = Seconds(duration) / (static_cast<double>(bytes) / kBytesPerMib);
  state_.samples < options_.warmup_stores ? WarmUp(sample, now) : Blend(sample, now);
}

// Sets the measure at the end, and never the pressure: the first stores of a process say little.
// After a trip only time and later samples bring the measure down.
void Backpressure::WarmUp(double sample, TimePoint now) {
  state_.warmup_sum += sample;
  if (++state_.samples < options_.warmup_stores) return;
  const double mean = state_.warmup_sum / options_.warmup_stores;
  if (state_.pressured) Decay(now);
  state_.ema = state_.pressured ? std::max(state_.ema, mean) : mean;
}

void Backpressure::Blend(double sample, TimePoint now) {
  state_.ema = options_.alpha * sample + (1 - options_.alpha) * state_.ema;
  state_.decayed_at = now;
  if (state_.ema > options_.high_water_s_per_mib) {
    state_.pressured = true;
    state_.cleared_at.reset();
    state_.healthy = 0;
  } else if (state_.ema < options_.low_water_s_per_mib) {
    if (state_.pressured) Clear(now);
    ++state_.healthy;
  } else {
    state_.healthy = 0;
  }
}

void Backpressure::OnStoreFailed(TimePoint now) {
  if (policy_ == Policy::kOff || !options_.failure_threshold) return;
  state_.healthy = 0;
  if (++state_.failures < *options_.failure_threshold) return;
  // Also for each further one, until a store succeeds: what was let in to try the tier has failed.
  state_.ema = std::max(state_.ema, kTripFactor * options_.high_water_s_per_mib);
  state_.decayed_at = now;
  state_.pressured = true;
  state_.cleared_at.reset();
  ++counters_.failure_trips;
}

bool Backpressure::under_pressure(TimePoint now) {
  if (state_.pressured) Decay(now);
  return state_.pressured;
}

void Backpressure::Decay(TimePoint now) {
  const double half_lives = Seconds(now - state_.decayed_at) / Seconds(options_.decay_half_life);
  state_.ema *= std::exp2(-half_lives);
  state_.decayed_at = now;
  if (state_.ema < options_.low_water_s_per_mib) Clear(now);
}

void Backpressure::Clear(TimePoint now) {
  state_.pressured = false;
  state_.cleared_at = now;
  state_.cooldown_stores = 0;
}

}  // namespace terrace
