// Keeps a tier that fails from being asked again and again.
//
//   closed --failure_threshold failures in a row--> open --back-off--> half-open
//   half-open --the probe succeeds--> closed; --it fails, or never reports--> open, back-off
//   doubled
//
// What goes to a tier is of three kinds, and one kind's success says nothing about another: an
// index in memory answers every look-up of a disk whose every job fails. So failures are counted by
// kind, and only the kind that opened the breaker probes and closes it.
//
//   while ...                       look-up           job        poll
//   open by look-ups or jobs        no                no         yes: jobs under way must end
//   open by polls                   no                no         no
//   half-open by jobs               yes, until the    one, the   yes
//                                   probe is out      probe
//   half-open by look-ups           one, the probe    no         yes
//   half-open by polls              no                no         one, the probe
//
// Half-open by jobs, look-ups pass because a load cannot be the probe unless a look-up finds it.
// Several may find something then; one of their jobs gets the permit, the others' chunks are
// misses.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace terrace {

// Thread-compatible: the same object serves the scheduler's path and the control thread, under the
// manager's lock. It has no clock: `now` is never less than in the call before.
class CircuitBreaker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    std::uint32_t failure_threshold = 3;               // >= 1
    std::chrono::milliseconds backoff_initial{1'000};  // > 0
    std::chrono::milliseconds backoff_max{60'000};     // >= backoff_initial
  };

  enum class Work : std::uint8_t {
    kLookup,
    kJob,   // From its submission to its result.
    kPoll,  // One round of TakeFinished() and every hook that must follow it; succeeds as a whole.
  };
  static constexpr std::size_t kWorkCount = 3;

  enum class State : std::uint8_t { kClosed, kOpen, kHalfOpen };

  // Leave to do one piece of work. Its end is reported once, with OnSuccess() or OnFailure(); what
  // ended neither way (it was cancelled) need not be reported. Reports about work that began before
  // the breaker's last change of state are about the past and change nothing.
  struct Permit {
    Work work;
    std::uint64_t epoch;
  };

  struct Counters {
    std::uint64_t opened_total = 0;                          // Also from half-open.
    std::array<std::uint64_t, kWorkCount> rejected_total{};  // Claim() said no; by Work.
  };

  // Pre: the options are in their ranges.
  explicit CircuitBreaker(const Options& options);

  // Whether Claim() would give a permit. Claims nothing, counts nothing.
  // Cost: one compare while closed.
  bool Allows(Work work, TimePoint now) const;

  // Asks to do `work` now. While half-open the permit may be the probe's: nobody else gets one of
  // this kind until it is reported, or for as long as the back-off was: then it counts as failed.
  [[nodiscard]] std::optional<Permit> Claim(Work work, TimePoint now);

  // Whether it is the probe's, which is still out: work that takes several calls goes on with it.
  bool IsProbe(const Permit& permit, TimePoint now) const;

  void OnSuccess(const Permit& permit, TimePoint now);
  void OnFailure(const Permit& permit, TimePoint now);

  State state(TimePoint now) const;
  const Counters& counters() const { return counters_; }

 private:
  bool ProbeIsOut(TimePoint now) const { return probe_deadline_ && now < *probe_deadline_; }
  std::chrono::milliseconds NextBackoff() const;
  void SettleOverdueProbe(TimePoint now);
  void Open(Work culprit, TimePoint at);
  void Close();

  const Options options_;
  std::array<std::uint32_t, kWorkCount> failures_{};  // In a row, by Work.
  std::uint64_t epoch_ = 0;                           // Grows each time it opens or closes.
  Counters counters_;

  bool closed_ = true;
  // The rest has a meaning only while not closed.
  Work culprit_ = Work::kJob;                // The kind that opened it.
  std::chrono::milliseconds backoff_{0};     // That of the present or last opening.
  TimePoint open_until_;                     // Half-open from then on.
  std::optional<TimePoint> probe_deadline_;  // While a probe is out.
};

}  // namespace terrace
