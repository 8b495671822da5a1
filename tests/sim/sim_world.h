// Time and chance of a simulation: one queue of things that will happen, one source of numbers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>

namespace terrace::sim {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::microseconds;

// What goes wrong, and how often; each is of 1000.
struct Weights {
  unsigned cut_link = 0;       // A message or chunk cuts its connection instead of arriving.
  unsigned flip_message = 0;   // A bit of a message is another one.
  unsigned flip_chunk = 0;     // A bit of a chunk's bytes or record is.
  unsigned lose_message = 0;   // It does not arrive, and nobody is told.
  unsigned slow_message = 0;   // It takes up to seconds.
  unsigned early_release = 0;  // The holder ends a lease while it is read.
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  TimePoint now() const { return now_; }
  std::uint64_t Random(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }
  std::uint64_t RandomWord() { return random_(); }
  bool Happens(unsigned of_thousand) { return Random(1000) < of_thousand; }
  Duration Latency() {
    if (Happens(weights.slow_message)) return Duration(Random(3'000'000));
    return Duration(20 + Random(300));
  }

  void At(TimePoint time, std::function<void()> what) {
    queue_.emplace(std::max(time, now_), std::move(what));
  }
  void In(Duration time, std::function<void()> what) { At(now_ + time, std::move(what)); }
  // All that happens until then.
  void RunUntil(TimePoint end) {
    while (!queue_.empty() && queue_.begin()->first <= end) {
      now_ = queue_.begin()->first;
      const auto what = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
      what();
    }
    now_ = end;
  }

  Weights weights;

 private:
  TimePoint now_{std::chrono::hours(1)};
  std::mt19937_64 random_;
  std::multimap<TimePoint, std::function<void()>> queue_;
};

}  // namespace terrace::sim
