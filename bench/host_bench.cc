// host: the host tier alone: look-ups, stores that evict, loads, at 100 thousand, 1 and 50 million
// chunks
//
// Prefixes of 64 chunks, in random order, so that every prefix is cold in the processor's caches in
// a tier of a million chunks or more. Google Benchmark times it; the best of three is reported,
// since other work on the machine only ever adds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>

#include "bench/best.h"
#include "bench/keys.h"
#include "bench/report.h"
#include "host/host_tier.h"

namespace terrace::bench {
namespace {

void FillPrefix(std::uint64_t prefix, std::vector<ChunkKey>& keys) {
  keys.clear();
  for (std::size_t i = 0; i < kPrefix; ++i) keys.push_back(HashedKey(prefix * kPrefix + i));
}

// A full tier, and prefixes to ask it for. One at a time: the largest takes 5 GB.
class Full {
 public:
  static Full& Of(const std::string& policy, std::uint32_t slots) {
    static std::unique_ptr<Full> full;
    if (full == nullptr || full->policy_ != policy || full->tier.slot_count() != slots) {
      full.reset();
      Progress("  fill " + policy + " with " + std::to_string(slots) + " chunks");
      full.reset(new Full(policy, slots));
    }
    return *full;
  }

  // Stores the next prefix for a request of its own that ends.
  bool StoreNext() {
    const std::uint64_t prefix = next_++;
    FillPrefix(prefix, keys);
    return Store(prefix);
  }
  // Pre: keys are those of the prefix.
  bool Store(std::uint64_t prefix) {
    const RequestId id(++request_);
    if (!tier.Reserve(keys, {id, ++hold_}, plan_)) return false;
    tier.Publish(plan_.slots, CopyOutcome::kOk);
    tier.OnRequestFinished(id);
    stored_[stored_count_++ % stored_.size()] = prefix;
    return true;
  }
  // Keys of prefixes that are there, in random order, made before they are timed.
  void Choose(std::size_t prefixes) {
    chosen.clear();
    for (std::size_t i = 0; i < prefixes; ++i) {
      FillPrefix(stored_[random_() % stored_.size()], keys);
      chosen.insert(chosen.end(), keys.begin(), keys.end());
    }
  }
  std::uint64_t next_hold() { return ++hold_; }
  std::uint64_t next() { return next_++; }

  HostTier tier;
  std::vector<ChunkKey> keys;
  std::vector<ChunkKey> chosen;

 private:
  Full(const std::string& policy, std::uint32_t slots)
      : tier(slots, MakeEvictionPolicy(policy, slots).value(), EventRecording::kOff),
        policy_(policy),
        stored_(slots / kPrefix / 2) {
    // Twice round, so that slots are reused in an order of their own.
    for (std::uint64_t i = 0; i < 2 * (slots / kPrefix); ++i) {
      if (!StoreNext()) std::abort();
    }
  }

  const std::string policy_;
  std::mt19937_64 random_{1};
  std::uint64_t next_ = 0, request_ = 0, hold_ = 0;
  // The last prefixes stored, half of what there is room for: surely there in any policy.
  std::vector<std::uint64_t> stored_;
  std::uint64_t stored_count_ = 0;
  StorePlan plan_;
};

// One look-up after the other, as a scheduler asks.
void LookUp(benchmark::State& state, const std::string& policy, std::uint32_t slots) {
  Full& full = Full::Of(policy, slots);
  full.Choose(4096);
  std::size_t at = 0;
  std::uint64_t hold = full.next_hold();
  for (auto _ : state) {
    benchmark::DoNotOptimize(full.tier.Use(full.chosen[at], hold));
    if (++at == full.chosen.size()) at = 0;
  }
}

void LookUpMiss(benchmark::State& state, const std::string& policy, std::uint32_t slots) {
  Full& full = Full::Of(policy, slots);
  full.chosen.clear();
  for (std::uint64_t i = 0; i < 4096 * kPrefix; ++i) full.chosen.push_back(HashedKey(~i));
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(full.tier.Use(full.chosen[at], 1));
    if (++at == full.chosen.size()) at = 0;
  }
}

// The life of a store of 64 chunks: prepare, evicting 64, complete, end of the request.
void Store(benchmark::State& state, const std::string& policy, std::uint32_t slots) {
  Full& full = Full::Of(policy, slots);
  // Keys are made beforehand, in batches.
  constexpr std::size_t kBatch = 256;
  std::vector<std::pair<std::uint64_t, std::vector<ChunkKey>>> batch(kBatch);
  std::size_t at = kBatch;
  for (auto _ : state) {
    if (at == kBatch) {
      state.PauseTiming();
      for (auto& [prefix, keys] : batch) {
        prefix = full.next();
        FillPrefix(prefix, keys);
      }
      at = 0;
      state.ResumeTiming();
    }
    auto& [prefix, keys] = batch[at++];
    full.keys.swap(keys);
    if (!full.Store(prefix)) state.SkipWithError("no room");
  }
}

// A whole request of 64 chunks that are there: look up, pin, record, unpin, end.
void Load(benchmark::State& state, const std::string& policy, std::uint32_t slots) {
  Full& full = Full::Of(policy, slots);
  full.Choose(4096);
  std::vector<SlotId> pinned(kPrefix);
  std::size_t at = 0;
  std::uint64_t request = std::uint64_t{1} << 40;
  for (auto _ : state) {
    const std::span<const ChunkKey> keys = std::span(full.chosen).subspan(at, kPrefix);
    at = (at + kPrefix) % full.chosen.size();
    const std::uint64_t hold = full.next_hold();
    for (const ChunkKey& key : keys) benchmark::DoNotOptimize(full.tier.Use(key, hold));
    const PinHolder holder{PinHolder::Kind::kRequest, ++request};
    if (!full.tier.Pin(keys, holder, pinned)) return state.SkipWithError("not there");
    full.tier.RecordAccess(RequestId(request), std::span<const SlotId>(pinned));
    full.tier.Unpin(pinned, holder);
    full.tier.OnRequestFinished(RequestId(request));
  }
}

// A refused store of one chunk in a full tier whose chunks are all pinned.
void Refuse(benchmark::State& state, const std::string& policy, std::uint32_t slots) {
  Full& full = Full::Of(policy, slots);
  const PinHolder holder{PinHolder::Kind::kJob, 1};
  std::vector<SlotId> all;
  for (std::uint32_t i = 0; i < slots; ++i) {
    if (full.tier.IsReady(SlotId(i))) all.push_back(SlotId(i));
  }
  full.tier.PinSlots(all, holder);
  StorePlan plan;
  const std::vector<ChunkKey> keys(kPrefix, HashedKey(~std::uint64_t{0}));
  std::vector<ChunkKey> offer;
  for (std::uint64_t i = 0; i < kPrefix; ++i) offer.push_back(HashedKey(~i));
  for (auto _ : state) {
    if (full.tier.Reserve(offer, {RequestId(7), full.next_hold()}, plan)) {
      state.SkipWithError("not refused");
    }
  }
  full.tier.OnRequestFinished(RequestId(7));
  full.tier.Unpin(all, holder);
}

std::string SizeName(std::uint32_t slots) {
  return slots >= 1'000'000 ? std::to_string(slots / 1'000'000) + "m"
                            : std::to_string(slots / 1000) + "k";
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  if (!arguments.rest.empty()) {
    Progress("usage: bench/run host [--quick] [--json FILE]");
    return 2;
  }
  using Function = void (*)(benchmark::State&, const std::string&, std::uint32_t);
  struct Operation {
    const char* name;
    Function run;
    double chunks;
  };
  const Operation kOperations[] = {{"lookup", LookUp, 1},
                                   {"lookup_miss", LookUpMiss, 1},
                                   {"store", Store, kPrefix},
                                   {"load", Load, kPrefix},
                                   {"refuse", Refuse, kPrefix}};
  std::vector<std::uint32_t> sizes = {100'000, 1'000'000};
  if (!arguments.quick) sizes.push_back(50'000'000);
  const auto name_of = [](const Operation& operation, const std::string& policy,
                          std::uint32_t slots) {
    return std::string("host.") + operation.name + "." + policy + "." + SizeName(slots);
  };
  std::vector<std::pair<std::string, std::uint32_t>> setups;
  for (std::uint32_t slots : sizes) setups.emplace_back("lru", slots);
  for (const char* policy : {"arc", "s3fifo", "sieve"}) setups.emplace_back(policy, 1'000'000);
  for (const auto& [policy, slots] : setups) {
    for (const Operation& operation : kOperations) {
      benchmark::RegisterBenchmark(name_of(operation, policy, slots).c_str(), operation.run, policy,
                                   slots)
          ->MinTime(arguments.quick ? 0.1 : 0.3)
          ->Repetitions(3);
    }
  }
  int none = 1;
  benchmark::Initialize(&none, argv);
  Best best;
  benchmark::RunSpecifiedBenchmarks(&best);

  Report report;
  for (const auto& [policy, slots] : setups) {
    for (const Operation& operation : kOperations) {
      Row row{name_of(operation, policy, slots),
              best.times[name_of(operation, policy, slots)] / operation.chunks,
              "ns/chunk",
              {},
              Row::Goal::kNone,
              0};
      if (slots == 50'000'000) {
        row.reference = best.times[name_of(operation, policy, 100'000)] / operation.chunks;
        row.goal_kind = Row::Goal::kAtMost;
        row.goal = 3;
      } else if (slots == 1'000'000 && operation.run == LookUp) {
        row.goal_kind = Row::Goal::kAtMost;
        row.goal = 100;
      } else if (slots == 1'000'000 && operation.run == Store) {
        row.goal_kind = Row::Goal::kAtMost;
        row.goal = 1000;
      }
      report.Add(row);
    }
  }
  for (const std::string& policy : EvictionPolicyNames()) {
    constexpr std::uint32_t kSlots = 1'000'003;
    const HostTier tier(kSlots, MakeEvictionPolicy(policy, kSlots).value(), EventRecording::kOff);
    Row row{"host.metadata." + policy,
            static_cast<double>(tier.memory_bytes()) / kSlots,
            "bytes/chunk",
            {},
            Row::Goal::kNone,
            0};
    if (policy == "lru") {
      row.goal_kind = Row::Goal::kAtMost;
      row.goal = 96;
    }
    report.Add(row);
  }
  report.Print();
  return arguments.json.empty() || report.WriteJson(arguments.json) ? 0 : 1;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
