// manager: the manager's cost to an engine: look-ups, a step, stores, the lock, peers served beside
// it
//
// Single calls are timed by Google Benchmark, the best of three, since other work on the machine
// only ever adds. Where threads meet, arms run in turn, several times, and medians are compared.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>

#include "bench/best.h"
#include "bench/keys.h"
#include "bench/manager_threads.h"
#include "bench/report.h"
#include "host/host_tier.h"
#include "manager/tiering_manager.h"
#include "terrace/connector.h"
#include "terrace/eviction_policy.h"
#include "tests/support/allocation_counter.h"

namespace terrace::bench {
namespace {

// A manager whose host memory is full, and the prefixes in it. One at a time: the largest takes 5
// GB.
class Full {
 public:
  static Full& Of(std::uint32_t slots) {
    static std::unique_ptr<Full> full;
    if (full == nullptr || full->slots_ != slots) {
      full.reset();
      Progress("  fill " + std::to_string(slots) + " chunks");
      full.reset(new Full(slots));
    }
    return *full;
  }

  // Stores a prefix for a request of its own that ends. In the caller's region.
  void Store(std::uint64_t prefix, const std::vector<ChunkKey>& keys) TERRACE_REQUIRES(*manager) {
    const Request request{RequestId(++request_)};
    manager->OnNewRequest(request);
    if (manager->PrepareStore(keys, request, plan_) != StoreOutcome::kPlanned) std::abort();
    manager->CompleteStore(plan_.slots, request, CopyOutcome::kOk);
    manager->OnRequestFinished(request);
    stored_[stored_count_++ % stored_.size()] = prefix;
  }
  // Keys of prefixes that are there, in random order.
  std::vector<ChunkKey> Choose(std::size_t prefixes) {
    std::vector<ChunkKey> chosen;
    for (std::size_t i = 0; i < prefixes; ++i) {
      const auto keys = PrefixKeys(stored_[random_() % stored_.size()]);
      chosen.insert(chosen.end(), keys.begin(), keys.end());
    }
    return chosen;
  }
  std::uint64_t next_prefix() { return next_++; }
  RequestId next_request() { return RequestId(++request_); }

  std::unique_ptr<TieringManager> manager;

 private:
  explicit Full(std::uint32_t slots)
      : manager(MakeManager(slots)), slots_(slots), stored_(slots / kPrefix / 2) {
    ManagerRegion region(*manager);
    // Twice round, so that slots are reused in an order of their own.
    for (std::uint64_t i = 0; i < 2 * (slots / kPrefix); ++i) {
      const std::uint64_t prefix = next_++;
      Store(prefix, PrefixKeys(prefix));
    }
  }

  const std::uint32_t slots_;
  std::mt19937_64 random_{1};
  std::uint64_t next_ = 0, request_ = 0;
  // The last prefixes stored, half of what there is room for: surely there.
  std::vector<std::uint64_t> stored_;
  std::uint64_t stored_count_ = 0;
  StorePlan plan_;
};

void LookUp(benchmark::State& state, std::uint32_t slots) {
  Full& full = Full::Of(slots);
  const std::vector<ChunkKey> keys = full.Choose(4096);
  const Request request{full.next_request()};
  ManagerRegion region(*full.manager);
  full.manager->OnNewRequest(request);
  std::size_t at = 0;
  for (auto _ : state) {
    if (full.manager->Lookup(keys[at], request) != LookupResult::kHit) {
      return state.SkipWithError("not there");
    }
    if (++at == keys.size()) at = 0;
  }
  full.manager->OnRequestFinished(request);
}

// Prepare, evicting as many, complete, and the request's end.
void Store(benchmark::State& state, std::uint32_t slots) {
  Full& full = Full::Of(slots);
  // Keys are made beforehand, in batches.
  std::vector<std::pair<std::uint64_t, std::vector<ChunkKey>>> batch(256);
  std::size_t at = batch.size();
  ManagerRegion region(*full.manager);
  for (auto _ : state) {
    if (at == batch.size()) {
      state.PauseTiming();
      for (auto& [prefix, keys] : batch) {
        prefix = full.next_prefix();
        keys = PrefixKeys(prefix);
      }
      at = 0;
      state.ResumeTiming();
    }
    full.manager->AssertHeld();
    full.Store(batch[at].first, batch[at].second);
    ++at;
  }
}

// A whole step for one request of 64 chunks that are there: an engine's calls of the connector from
// the request's coming to the end of its load.
void Step(benchmark::State& state, std::uint32_t slots) {
  constexpr std::uint32_t kTokens = 16;
  Full& full = Full::Of(slots);
  const auto connector = Connector::Create(*full.manager, {.tokens_per_chunk = kTokens}).value();
  const std::vector<ChunkKey> keys = full.Choose(4096);
  std::vector<BlockId> blocks;
  for (std::size_t i = 0; i < kPrefix; ++i) blocks.emplace_back(static_cast<std::int64_t>(i));
  std::size_t at = 0;
  for (auto _ : state) {
    const RequestId id = full.next_request();
    connector->OnNewRequest(id, {.prompt_tokens = kPrefix * kTokens});
    connector->AppendKeys(id, std::span(keys).subspan(at, kPrefix));
    at = (at + kPrefix) % keys.size();
    const MatchedTokens match = connector->GetMatchedTokens(id, 0, kPrefix * kTokens);
    if (match.tokens != kPrefix * kTokens) return state.SkipWithError("not there");
    connector->UpdateAfterAlloc(id, blocks, 0, match.tokens);
    const StepPlan plan = connector->BuildStep({});
    TransferResult result;
    result.id = plan.loads.front().id;
    result.request = id;
    result.outcome = CopyOutcome::kOk;
    connector->OnTransfersDone({&result, 1});
    state.PauseTiming();
    connector->OnRequestFinished(id, 0);
    connector->BuildStep({});
    state.ResumeTiming();
  }
}

void Region(benchmark::State& state, std::uint32_t) {
  const auto manager = MakeManager(1);
  for (auto _ : state) {
    ManagerRegion region(*manager);
    benchmark::ClobberMemory();
  }
}

// Allocations of everything a request does with host memory, once warm.
double CountAllocations() {
  Full& full = Full::Of(100'000);
  std::vector<SlotId> slots(kPrefix);
  std::vector<ChunkKey> there = full.Choose(64), fresh;
  std::vector<std::uint64_t> prefixes;
  for (int i = 0; i < 128; ++i) {
    prefixes.push_back(full.next_prefix());
    const auto keys = PrefixKeys(prefixes.back());
    fresh.insert(fresh.end(), keys.begin(), keys.end());
  }
  StorePlan plan;
  std::uint64_t before = 0;
  for (int i = 0; i < 128; ++i) {
    if (i == 64) before = testing_support::allocation_count;
    ManagerRegion region(*full.manager);
    const Request request{full.next_request()};
    full.manager->OnNewRequest(request);
    const auto keys = std::span<const ChunkKey>(there).subspan((i % 32) * kPrefix, kPrefix);
    for (const ChunkKey& key : keys) {
      if (full.manager->Lookup(key, request) != LookupResult::kHit) std::abort();
    }
    if (!full.manager->PrepareLoad(keys, request, slots)) std::abort();
    full.manager->CompleteLoad(slots, request);
    const auto offer = std::span<const ChunkKey>(fresh).subspan(i * kPrefix, kPrefix);
    if (full.manager->PrepareStore(offer, request, plan) != StoreOutcome::kPlanned) std::abort();
    full.manager->CompleteStore(plan.slots, request, CopyOutcome::kOk);
    full.manager->OnRequestFinished(request);
    full.manager->OnScheduleEnd();
  }
  return static_cast<double>(testing_support::allocation_count - before);
}

void Calls(Report& report, bool quick) {
  struct Operation {
    const char* name;
    void (*run)(benchmark::State&, std::uint32_t);
    double chunks;
    const char* unit;
    double goal;  // At 1 million chunks.
  };
  const Operation kOperations[] = {{"lookup", LookUp, 1, "ns", 100},
                                   {"store", Store, kPrefix, "ns/chunk", 1000},
                                   {"step_64_chunks", Step, 1, "ns", 20'000}};
  std::vector<std::uint32_t> sizes = {100'000, 1'000'000};
  if (!quick) sizes.push_back(50'000'000);
  const auto name_of = [](const Operation& operation, std::uint32_t slots) {
    const std::string size = slots >= 1'000'000 ? std::to_string(slots / 1'000'000) + "m"
                                                : std::to_string(slots / 1000) + "k";
    return std::string("manager.") + operation.name + "." + size;
  };
  benchmark::RegisterBenchmark("manager.region", Region, 0u)->MinTime(0.1)->Repetitions(3);
  for (std::uint32_t slots : sizes) {
    for (const Operation& operation : kOperations) {
      benchmark::RegisterBenchmark(name_of(operation, slots).c_str(), operation.run, slots)
          ->MinTime(quick ? 0.1 : 0.3)
          ->Repetitions(3);
    }
  }
  int none = 1;
  char program[] = "manager_bench";
  char* arguments[] = {program, nullptr};
  benchmark::Initialize(&none, arguments);
  Best best;
  benchmark::RunSpecifiedBenchmarks(&best);
  report.Add({"manager.region", best.times["manager.region"], "ns", {}, Row::Goal::kAtMost, 50});
  for (std::uint32_t slots : sizes) {
    for (const Operation& operation : kOperations) {
      Row row{name_of(operation, slots),
              best.times[name_of(operation, slots)] / operation.chunks,
              operation.unit,
              {},
              Row::Goal::kNone,
              0};
      if (slots == 1'000'000) {
        row.goal_kind = Row::Goal::kAtMost;
        row.goal = operation.goal;
      } else if (slots == 50'000'000) {
        row.reference = best.times[name_of(operation, 100'000)] / operation.chunks;
        row.goal_kind = Row::Goal::kAtMost;
        row.goal = 3;
      }
      report.Add(row);
    }
  }
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  if (!arguments.rest.empty()) {
    Progress("usage: bench/run manager [--quick] [--json FILE]");
    return 2;
  }
  Report report;
  Calls(report, arguments.quick);
  report.Add({"manager.allocations_of_64_requests",
              CountAllocations(),
              "allocations",
              {},
              Row::Goal::kAtMost,
              0});
  {
    constexpr std::uint32_t kSlots = 1'000'003;
    const HostTier tier(kSlots, MakeEvictionPolicy("lru", kSlots).value(), EventRecording::kOff);
    report.Add({"manager.metadata",
                static_cast<double>(tier.memory_bytes()) / kSlots,
                "bytes/chunk",
                {},
                Row::Goal::kAtMost,
                96});
  }
  EngineLane(report, arguments.quick);
  External(report, arguments.quick);
  report.Print();
  return arguments.json.empty() || report.WriteJson(arguments.json) ? 0 : 1;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
