// policies: hit rates of every eviction policy on traces, beside LRU and the offline optimum
//
// Each trace is replayed through the host tier itself, with caches of four sizes: a request looks
// up its chunks until the first that is not there (the hits: only a leading run is of use), loads
// them, and stores the others, 16 an offer; it ends when its answer would, so requests overlap.
//
// The optimum is Belady's MIN: with all of the future known, what is used again last (or never)
// goes first, or is not kept at all. A chunk is never used without those before it, so its prefix
// is used no later than it, and with the deepest going first among equals MIN keeps whole prefixes:
// what it hits is a leading run too. So no policy can have more hits: an upper bound, and one that
// a policy that knows the future would reach.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "bench/report.h"
#include "bench/workload.h"
#include "host/host_tier.h"
#include "tests/support/keys.h"

namespace terrace::bench {
namespace {

constexpr double kCacheShares[] = {0.01, 0.05, 0.2, 0.5};  // Of the workload's distinct chunks.
constexpr std::size_t kChunksPerOffer = 16;

struct Outcome {
  double hit_rate = 0;
  std::uint64_t stored = 0;  // Chunks.
};

std::uint64_t CountChunks(const Workload& workload) {
  std::uint64_t count = 0;
  for (const WorkloadRequest& request : workload.requests) count += request.chunks.size();
  return count;
}

std::uint32_t CountDistinctChunks(const Workload& workload) {
  std::set<std::uint64_t> distinct;
  for (const WorkloadRequest& request : workload.requests) {
    distinct.insert(request.chunks.begin(), request.chunks.end());
  }
  return static_cast<std::uint32_t>(distinct.size());
}

// One request at its start: what it hits; the rest is stored.
class Replay {
 public:
  Replay(const std::string& policy, std::uint32_t slots, std::uint32_t store_threshold)
      : tier_(slots, MakeEvictionPolicy(policy, slots).value(), EventRecording::kOff,
              {.store_threshold = store_threshold, .max_tracker_size = 4 * slots}) {}

  Outcome Run(const Workload& workload) {
    for (const WorkloadRequest& request : workload.requests) {
      while (!running_.empty() && running_.top().first <= request.start_s) FinishNext();
      Start(request);
    }
    while (!running_.empty()) FinishNext();
    tier_.CheckConservation();
    return {static_cast<double>(hits_) / static_cast<double>(CountChunks(workload)), stored_};
  }

 private:
  void FinishNext() {
    tier_.OnRequestFinished(running_.top().second);
    running_.pop();
  }

  void Start(const WorkloadRequest& request) {
    const RequestId id(++requests_);
    running_.emplace(request.end_s, id);
    ++hold_;
    keys_.clear();
    for (std::uint64_t chunk : request.chunks) keys_.push_back(testing_support::Key(chunk));
    std::size_t hits = 0;
    while (hits < keys_.size() && tier_.Use(keys_[hits], hold_) == HostTier::State::kReady) ++hits;
    hits_ += hits;
    const std::span<const ChunkKey> all(keys_);
    const PinHolder holder{PinHolder::Kind::kRequest, id.value};
    slots_.resize(hits);
    if (!tier_.Pin(all.first(hits), holder, slots_)) std::abort();
    tier_.RecordAccess(id, std::span<const SlotId>(slots_));
    tier_.Unpin(slots_, holder);
    // As prefilling goes on. Once there is no room, the rest would be of no use.
    for (std::size_t at = hits; at < keys_.size(); at += kChunksPerOffer) {
      const auto offer = all.subspan(at, std::min(kChunksPerOffer, keys_.size() - at));
      if (!tier_.Reserve(offer, {id, ++hold_}, plan_)) break;
      tier_.Publish(plan_.slots, CopyOutcome::kOk);
      stored_ += plan_.slots.size();
    }
  }

  using End = std::pair<double, RequestId>;
  HostTier tier_;
  std::priority_queue<End, std::vector<End>, std::greater<>> running_;
  std::uint64_t requests_ = 0, hold_ = 0, hits_ = 0, stored_ = 0;
  std::vector<ChunkKey> keys_;
  std::vector<SlotId> slots_;
  StorePlan plan_;
};

// The hit rate of Belady's MIN; see the top of this file.
double RunOptimum(const Workload& workload, std::uint32_t slots) {
  constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  // For every use, the request that uses the chunk next.
  std::vector<std::vector<std::uint64_t>> next_use(workload.requests.size());
  std::unordered_map<std::uint64_t, std::uint64_t> later;
  for (std::size_t r = workload.requests.size(); r-- > 0;) {
    const auto& chunks = workload.requests[r].chunks;
    for (std::uint64_t chunk : chunks) {
      const auto known = later.find(chunk);
      next_use[r].push_back(known == later.end() ? kNever : known->second);
    }
    for (std::uint64_t chunk : chunks) later[chunk] = r;
  }
  // Kept chunks by when they are used next, then by depth: the last one goes first.
  struct Kept {
    std::uint64_t next_use, depth, chunk;
    auto operator<=>(const Kept&) const = default;
  };
  std::set<Kept> kept;
  std::unordered_map<std::uint64_t, Kept> by_chunk;
  std::uint64_t hits = 0;
  for (std::size_t r = 0; r < workload.requests.size(); ++r) {
    const auto& chunks = workload.requests[r].chunks;
    std::size_t run = 0;
    while (run < chunks.size() && by_chunk.contains(chunks[run])) ++run;
    hits += run;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (const auto old = by_chunk.find(chunks[i]); old != by_chunk.end()) {
        kept.erase(old->second);
        by_chunk.erase(old);
      }
      if (next_use[r][i] == kNever) continue;
      const Kept now{next_use[r][i], i, chunks[i]};
      kept.insert(now);
      by_chunk.emplace(chunks[i], now);
    }
    while (kept.size() > slots) {
      by_chunk.erase(std::prev(kept.end())->chunk);
      kept.erase(std::prev(kept.end()));
    }
  }
  return static_cast<double>(hits) / static_cast<double>(CountChunks(workload));
}

void RunWorkload(const Workload& workload, Report& report) {
  const std::uint32_t distinct = CountDistinctChunks(workload);
  std::vector<std::string> policies = EvictionPolicyNames();
  std::printf("\n%s: %zu requests, %llu chunks, %u distinct\n", workload.name.c_str(),
              workload.requests.size(), static_cast<unsigned long long>(CountChunks(workload)),
              distinct);
  std::printf("%-16s", "cache, chunks");
  for (const std::string& policy : policies) std::printf("%9s", policy.c_str());
  std::printf("%9s%9s%9s\n", "lru 2nd", "optimum", "stored");
  for (double share : kCacheShares) {
    const auto slots = std::max(static_cast<std::uint32_t>(share * distinct), 64U);
    const std::string prefix =
        "policies." + workload.name + "." + std::to_string(static_cast<int>(100 * share)) + "pct.";
    Progress("  replay " + prefix + "*");
    const Outcome lru = Replay("lru", slots, 0).Run(workload);
    const auto add = [&](const std::string& name, double hit_rate) {
      Row row{prefix + name, hit_rate, "hit rate", {}, Row::Goal::kNone, 0};
      if (name != "lru" && lru.hit_rate > 0) row.reference = lru.hit_rate;
      report.Add(row);
      return hit_rate;
    };
    std::vector<double> columns;
    for (const std::string& policy : policies) {
      const Outcome outcome = policy == "lru" ? lru : Replay(policy, slots, 0).Run(workload);
      columns.push_back(add(policy, outcome.hit_rate));
    }
    const Outcome second = Replay("lru", slots, 2).Run(workload);
    columns.push_back(add("lru_second_touch", second.hit_rate));
    columns.push_back(add("optimum", RunOptimum(workload, slots)));
    std::printf("%3.0f %% %10u", 100 * share, slots);
    for (const double hit_rate : columns) std::printf("%9.3f", hit_rate);
    std::printf("%9.2f\n", static_cast<double>(second.stored) / static_cast<double>(lru.stored));
    std::fflush(stdout);
  }
}

// Traces under `directory`, by name.
std::vector<std::string> FindTraces(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".jsonl") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  std::string directory = "../shared/traces";
  for (std::size_t i = 0; i < arguments.rest.size(); ++i) {
    if (arguments.rest[i] == "--traces" && i + 1 < arguments.rest.size()) {
      directory = arguments.rest[++i];
    } else {
      Progress("usage: bench/run policies [--quick] [--json FILE] [--traces DIR]");
      return 2;
    }
  }
  std::printf(
      "Hit rates: chunks found in host memory, of all that were asked for. A cache's size is "
      "given in chunks,\nand as a share of the distinct chunks. lru 2nd: a chunk is stored "
      "when it is offered the second time; stored: how many chunks that stores, of "
      "what lru stores.\n");
  std::vector<Workload> workloads;
  for (const std::string& path : FindTraces(directory)) {
    auto workload = ReadTrace(path);
    if (!workload) return 1;
    if (arguments.quick && workload->requests.size() > 3000) workload->requests.resize(3000);
    workloads.push_back(std::move(*workload));
  }
  if (workloads.empty()) {
    std::printf(
        "There are no traces (*.jsonl) in %s; --traces DIR names another folder. A made-up "
        "workload instead:\n",
        directory.c_str());
    workloads.push_back(MakeAgentWorkload(1));
  }
  Report report;
  for (const Workload& workload : workloads) RunWorkload(workload, report);
  return arguments.json.empty() || report.WriteJson(arguments.json) ? 0 : 1;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
