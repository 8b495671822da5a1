#include "bench/manager_threads.h"

#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/fd.h"
#include "bench/keys.h"
#include "terrace/eviction_policy.h"

namespace terrace::bench {

std::unique_ptr<TieringManager> MakeManager(std::uint32_t slots,
                                            std::vector<std::unique_ptr<SecondaryTier>> tiers,
                                            const TieringOptions& options) {
  return std::make_unique<TieringManager>(
      std::make_unique<HostTier>(slots, MakeEvictionPolicy("lru", slots).value(),
                                 EventRecording::kOff),
      std::move(tiers), options);
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// Serves peers that the benchmark makes up; keeps nothing itself.
class PeerTier final : public SecondaryTier {
 public:
  using Serve = std::function<void(TierServer&)>;
  PeerTier(Serve serve, int descriptor) : serve_(std::move(serve)), descriptor_(descriptor) {}

  std::string_view type() const override { return "peer"; }
  LoadSource load_source() const override { return LoadSource::kPeer; }
  TierLookup Lookup(const ChunkKey&, const Request&) override { return TierLookup::kMiss; }
  void SubmitStore(TransferJob job) override { End(job); }
  void SubmitLoad(TransferJob job) override { End(job); }
  void TakeFinished(std::vector<JobResult>& results) override {
    for (JobResult& result : finished_) results.push_back(std::move(result));
    finished_.clear();
  }
  bool serves_external_requests() const override { return true; }
  void ServeExternalRequests(TierServer& server) override { serve_(server); }
  int event_descriptor() const override { return descriptor_; }
  bool Drain(std::chrono::milliseconds) override { return true; }
  bool Shutdown(std::chrono::milliseconds) override { return true; }

 private:
  void End(const TransferJob& job) {
    finished_.push_back({job.id, std::vector(job.keys.size(), CopyOutcome::kOk), 0, {}, {}});
  }
  const Serve serve_;
  const int descriptor_;
  std::vector<JobResult> finished_;
};

constexpr std::uint32_t kSharedSlots = 100'000;
constexpr std::size_t kPeers = 64;

// A manager with a tier that serves, full of prefixes.
struct Shared {
  explicit Shared(PeerTier::Serve serve, int descriptor = -1,
                  nanoseconds interval = nanoseconds(0)) {
    std::vector<std::unique_ptr<SecondaryTier>> tiers;
    tiers.push_back(std::make_unique<PeerTier>(std::move(serve), descriptor));
    TieringOptions options;
    options.poll_interval = interval;
    manager = MakeManager(kSharedSlots, std::move(tiers), options);
    for (std::uint64_t i = 0; i < kSharedSlots / kPrefix; ++i) {
      ManagerRegion region(*manager);
      const Request request{RequestId(i)};
      manager->OnNewRequest(request);
      StorePlan plan;
      if (manager->PrepareStore(PrefixKeys(i), request, plan) != StoreOutcome::kPlanned)
        std::abort();
      manager->CompleteStore(plan.slots, request, CopyOutcome::kOk);
      manager->OnRequestFinished(request);
      manager->OnScheduleEnd();
    }
  }
  std::unique_ptr<TieringManager> manager;
};

// An engine's scheduling: 8 requests of 64 chunks, and then the model, which here is a wait, as for
// a GPU.
void EngineStep(TieringManager& manager, const std::vector<ChunkKey>& keys, RequestId id,
                nanoseconds model, std::vector<nanoseconds>* waits) {
  const auto asked = Clock::now();
  {
    ManagerRegion region(manager);
    if (waits != nullptr) waits->push_back(Clock::now() - asked);
    const Request request{id};
    manager.OnNewRequest(request);
    for (const ChunkKey& key : keys) benchmark::DoNotOptimize(manager.Lookup(key, request));
    manager.OnRequestFinished(request);
    manager.OnScheduleEnd();
  }
  std::this_thread::sleep_for(model);
}

nanoseconds Quantile(std::vector<nanoseconds> sorted, double part) {
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty()
             ? nanoseconds(0)
             : sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
}
double Us(nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct LaneArm {
  std::vector<double> steps_per_s;
  std::vector<nanoseconds> waits;  // Of the engine for the lock.
  std::vector<nanoseconds> units;  // Of work for peers, inside the lock.
};

// Two threads that meet at a lock want a processor each: else the scheduler's slices are measured.
void StayOn(unsigned processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor % std::max(1u, std::thread::hardware_concurrency()), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

// Engine steps for `length`, beside a thread that serves 64 peers who ask without end: nobody's
// lane, the control lane, or the engine's own (lanes off).
void RunLanes(LaneArm& arm, std::optional<Lane> lane, nanoseconds length) {
  std::vector<std::vector<ChunkKey>> questions;
  for (std::uint64_t peer = 0; peer < kPeers; ++peer) {
    questions.emplace_back();
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto keys = PrefixKeys((peer * 7 + i * 131) % (kSharedSlots / kPrefix));
      questions.back().insert(questions.back().end(), keys.begin(), keys.end());
    }
  }
  std::size_t next_peer = 0;
  // One message of a peer after the other: 256 keys, one unit of work.
  Shared shared([&](TierServer& server) {
    while (!server.ShouldYield()) {
      const Request request = server.BeginRequest();
      for (const ChunkKey& key : questions[next_peer]) {
        benchmark::DoNotOptimize(server.Lookup(key, request));
      }
      server.FinishRequest(request);
      next_peer = (next_peer + 1) % kPeers;
    }
  });
  TieringManager& manager = *shared.manager;
  std::vector<ChunkKey> keys;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const auto more = PrefixKeys(i * 97);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  std::atomic<bool> stop{false};
  std::thread control;
  if (lane) {
    control = std::thread([&] {
      StayOn(1);
      while (!stop.load(std::memory_order_relaxed)) {
        const auto began = Clock::now();
        {
          ManagerRegion region(manager, *lane, "peers");
          const auto inside = Clock::now();
          manager.ServeRound();
          arm.units.push_back(Clock::now() - inside);
        }
        // As much work as 64 peers make: half of the thread's time.
        const auto pause = Clock::now() - began;
        const auto until = Clock::now() + pause;
        while (Clock::now() < until && !stop.load(std::memory_order_relaxed)) {
        }
      }
    });
  }
  std::uint64_t steps = 0;
  double took = 0;
  std::thread engine([&] {
    StayOn(0);
    const auto began = Clock::now();
    while (Clock::now() - began < length) {
      EngineStep(manager, keys, RequestId(1'000'000 + steps), std::chrono::milliseconds(2),
                 &arm.waits);
      ++steps;
    }
    took = std::chrono::duration<double>(Clock::now() - began).count();
  });
  engine.join();
  stop = true;
  if (control.joinable()) control.join();
  arm.steps_per_s.push_back(static_cast<double>(steps) / took);
}

}  // namespace

void EngineLane(Report& report, bool quick) {
  LaneArm alone, on, off;
  const auto length = std::chrono::milliseconds(quick ? 700 : 2500);
  for (int round = 0; round < (quick ? 3 : 7); ++round) {
    Progress("  engine lane, round " + std::to_string(round + 1));
    RunLanes(alone, std::nullopt, length);
    RunLanes(on, Lane::kControl, length);
    RunLanes(off, Lane::kEngine, length);
  }
  const double reference = Median(alone.steps_per_s);
  const double unit = Us(Quantile(on.units, 0.999));
  report.Add({"manager.engine_lane.throughput", Median(on.steps_per_s), "steps/s", reference,
              Row::Goal::kAtLeast, 0.98});
  report.Add({"manager.engine_lane.wait_p999", Us(Quantile(on.waits, 0.999)), "us", unit,
              Row::Goal::kAtMost, 1});
  report.Add(
      {"manager.engine_lane.wait_p50", Us(Quantile(on.waits, 0.5)), "us", {}, Row::Goal::kNone, 0});
  report.Add(
      {"manager.engine_lane.unit_p50", Us(Quantile(on.units, 0.5)), "us", {}, Row::Goal::kNone, 0});
  report.Add({"manager.lanes_off.throughput", Median(off.steps_per_s), "steps/s", reference,
              Row::Goal::kNone, 0});
  report.Add({"manager.lanes_off.wait_p999", Us(Quantile(off.waits, 0.999)), "us", unit,
              Row::Goal::kNone, 0});
}

namespace {

// How long one question of a peer waits for its answer, with the engine idle, inside long model
// steps, and with service once a step only.
enum class EngineDoes { kNothing, kLongSteps };
void AskAsPeer(std::vector<nanoseconds>& answers, EngineDoes engine, nanoseconds interval,
               int questions) {
  const UniqueFd arrived(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::atomic<int> asked{0}, answered{0};
  const std::vector<ChunkKey> keys = PrefixKeys(3);
  Shared shared(
      [&](TierServer& server) {
        std::uint64_t count = 0;
        if (::read(arrived.get(), &count, sizeof count) < 0) count = 0;
        if (answered.load() == asked.load()) return;
        const Request request = server.BeginRequest();
        for (const ChunkKey& key : keys) benchmark::DoNotOptimize(server.Lookup(key, request));
        server.FinishRequest(request);
        answered.fetch_add(1);
      },
      arrived.get(), interval);
  TieringManager& manager = *shared.manager;
  if (!manager.StartControlThread().ok()) std::abort();
  std::atomic<bool> stop{false};
  std::thread scheduler([&] {
    for (std::uint64_t i = 0; !stop.load() && engine == EngineDoes::kLongSteps; ++i) {
      EngineStep(manager, keys, RequestId(1'000'000 + i), std::chrono::milliseconds(50), nullptr);
    }
  });
  std::mt19937_64 random(7);
  for (int i = 0; i < questions; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 7000));
    const auto began = Clock::now();
    asked.fetch_add(1);
    const std::uint64_t one = 1;
    if (::write(arrived.get(), &one, sizeof one) < 0) std::abort();
    while (answered.load(std::memory_order_acquire) != asked.load()) std::this_thread::yield();
    answers.push_back(Clock::now() - began);
  }
  stop = true;
  scheduler.join();
  manager.Shutdown();
}

}  // namespace

void External(Report& report, bool quick) {
  std::vector<nanoseconds> idle, busy, per_step;
  const int questions = quick ? 60 : 200;
  const nanoseconds interval = std::chrono::milliseconds(1);
  for (int round = 0; round < 3; ++round) {
    Progress("  external look-ups, round " + std::to_string(round + 1));
    AskAsPeer(idle, EngineDoes::kNothing, interval, questions);
    AskAsPeer(busy, EngineDoes::kLongSteps, interval, questions);
    AskAsPeer(per_step, EngineDoes::kLongSteps, nanoseconds(0), quick ? 10 : 40);
  }
  const double reference = Us(Quantile(idle, 0.5));
  report.Add({"manager.external.idle", reference, "us", {}, Row::Goal::kNone, 0});
  report.Add(
      {"manager.external.busy", Us(Quantile(busy, 0.5)), "us", reference, Row::Goal::kAtMost, 2});
  report.Add({"manager.external.busy_p99", Us(Quantile(busy, 0.99)), "us", Us(Quantile(idle, 0.99)),
              Row::Goal::kNone, 0});
  report.Add({"manager.external.per_step", Us(Quantile(per_step, 0.5)), "us", reference,
              Row::Goal::kNone, 0});
}

}  // namespace terrace::bench
