// Random engines, tiers, peers and faults against the manager; the bytes tell whether it is right.
//
// Every slot of host memory holds a number here: which key's bytes it has. Engine and tiers write
// it and read it when they copy, at moments that chance chooses between a call and its completion.
// So a slot that is reused while somebody copies, a chunk that is served before it is complete, or
// a pin that is lost, shows as a wrong number, whatever the manager says of itself. What it does
// say (counts, events) is held against a naive copy of the rules after every operation.
//
// A failure prints the seed; TERRACE_MODEL_SEED=N replays it.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "tests/model/manager_world.h"

namespace terrace {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::strtoull(value, nullptr, 10);
}

// A broken check aborts the process: the seed must be known all the same.
std::uint64_t current_seed = 0;
void SaySeed(int /*signal*/) {
  std::fprintf(stderr, "replay with TERRACE_MODEL_SEED=%llu\n",
               static_cast<unsigned long long>(current_seed));
}

TEST(ManagerModel, RandomSequencesKeepEveryPromise) {
  const std::uint64_t only = FromEnvironment("TERRACE_MODEL_SEED", 0);
  const std::uint64_t operations = FromEnvironment("TERRACE_MODEL_OPERATIONS", 400'000);
  constexpr int kPerSeed = 1000;
  std::signal(SIGABRT, SaySeed);
  if (only == 0) Log().set_level(spdlog::level::off);  // Faults by the thousand.
  const std::uint64_t seeds = only != 0 ? 1 : (operations + kPerSeed - 1) / kPerSeed;
  model::ManagerWorld::Happened happened;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const std::uint64_t seed = only != 0 ? only : i + 1;
    current_seed = seed;
    SCOPED_TRACE("replay with TERRACE_MODEL_SEED=" + std::to_string(seed));
    model::ManagerWorld world(seed);
    world.Run(kPerSeed);
    if (HasFailure()) return;
    world.AddTo(happened);
  }
  for (const auto& [what, times] : happened) {
    std::printf("%-28s %llu\n", what.c_str(), static_cast<unsigned long long>(times));
    if (operations >= 400'000 && only == 0) EXPECT_GT(times, 0u) << "never happened: " << what;
  }
}

}  // namespace
}  // namespace terrace
