// Chance, and what of the model differs from seed to seed: some seeds never fail, never finish,
// never evict.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>

#include "host/host_tier.h"

namespace terrace::model {

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  bool Percent(int percent) { return percent > 0 && static_cast<int>(Below(100)) < percent; }
  int Pick(std::initializer_list<int> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(Below(values.size())));
  }
  template <typename Container>
  auto Any(Container& container) {
    return std::next(container.begin(), static_cast<std::ptrdiff_t>(Below(container.size())));
  }

 private:
  std::mt19937_64 random_;
};

struct Weights {
  explicit Weights(Chance& chance)
      : slots(static_cast<std::uint32_t>(chance.Pick({1, 3, 8, 16, 40}))),
        keys(static_cast<std::uint64_t>(chance.Pick({4, 12, 60}))),
        tiers(chance.Pick({0, 1, 2, 3})),
        promoting_percent(chance.Pick({1, 50, 100})),
        cascading_percent(chance.Pick({0, 10, 50, 100})),
        serve_keys(chance.Pick({1, 3, 256})),
        serve_chunks(chance.Pick({1, 3, 256})),
        failures_to_open(chance.Pick({1, 3, 1'000'000})),
        drops_when_slow(chance.Percent(20)),
        serving_percent(chance.Pick({0, 30, 100})),
        whole_percent(chance.Pick({0, 0, 50, 100})),
        store_fails_percent(chance.Pick({0, 0, 10, 60})),
        tier_has_percent(chance.Pick({0, 50, 100})),
        tier_fails_percent(chance.Pick({0, 0, 10, 60})),
        tier_forgets_percent(chance.Pick({0, 5, 30})),
        tier_unknown_percent(chance.Pick({0, 0, 20})),
        tier_throws_percent(chance.Pick({0, 0, 0, 1, 20})),
        tier_misreports_percent(chance.Pick({0, 0, 10, 40})),
        tier_reports_late_percent(chance.Pick({0, 0, 50})),
        peer_misuse_percent(chance.Pick({0, 0, 10})),
        filtered_percent(chance.Pick({0, 0, 30})),
        finish_jobs_weight(chance.Pick({2, 15, 50})),
        control_weight(chance.Pick({0, 4, 20})),
        step_weight(chance.Pick({2, 10})),
        reset_weight(chance.Pick({0, 0, 1, 3})),
        clock_weight(chance.Pick({0, 1, 6})) {
    if (chance.Percent(10)) host.store_threshold = 2;
  }

  HostTierOptions host;
  std::uint32_t slots;
  std::uint64_t keys;
  int tiers;
  int promoting_percent, cascading_percent;
  int serve_keys, serve_chunks;
  int failures_to_open;
  bool drops_when_slow;
  int serving_percent, whole_percent;
  int store_fails_percent;
  int tier_has_percent;  // Of all chunks, at first.
  int tier_fails_percent, tier_forgets_percent, tier_unknown_percent, tier_throws_percent;
  int tier_misreports_percent, tier_reports_late_percent;
  int peer_misuse_percent, filtered_percent;
  int finish_jobs_weight, control_weight, step_weight, reset_weight, clock_weight;
};

}  // namespace terrace::model
