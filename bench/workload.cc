#include "bench/workload.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/report.h"

namespace terrace::bench {
namespace {

// How long an answer takes, for when requests overlap.
constexpr double kSecondsPerToken = 0.02;

void SortByStart(Workload& workload) {
  std::stable_sort(workload.requests.begin(), workload.requests.end(),
                   [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
}

// Hands out chunks: new ones, and those of named documents, each time the same.
class Chunks {
 public:
  void AppendNew(std::uint64_t count, std::vector<std::uint64_t>& out) {
    for (std::uint64_t i = 0; i < count; ++i) out.push_back(next_++);
  }
  // The document continues `parent`, another document or 0.
  void AppendDocument(std::uint64_t document, std::uint64_t parent, std::uint64_t count,
                      std::vector<std::uint64_t>& out) {
    std::vector<std::uint64_t>& known = documents_[{parent, document}];
    if (known.empty()) AppendNew(count, known);
    out.insert(out.end(), known.begin(), known.end());
  }

 private:
  std::uint64_t next_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint64_t>> documents_;
};

}  // namespace

std::optional<Workload> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  Workload workload{std::filesystem::path(path).stem(), {}};
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("hash_ids") || !json["hash_ids"].is_array()) {
      Progress(path + ":" + std::to_string(number) + ": not a request of a trace");
      return std::nullopt;
    }
    WorkloadRequest request;
    request.start_s = json.value("timestamp", 0.0) / 1000;
    request.end_s = request.start_s + kSecondsPerToken * json.value("output_length", 0.0);
    for (const auto& id : json["hash_ids"]) request.chunks.push_back(id.get<std::uint64_t>());
    if (!request.chunks.empty()) workload.requests.push_back(std::move(request));
  }
  if (workload.requests.empty()) {
    Progress("cannot read requests from " + path);
    return std::nullopt;
  }
  SortByStart(workload);
  return workload;
}

Workload MakeAgentWorkload(std::uint64_t seed) {
  constexpr int kSessions = 400;
  constexpr int kOneShots = 1500;
  constexpr double kHour = 3600;
  std::mt19937_64 random(seed);
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  // Few are used by many: the n-th of `count` has a weight of 1/n.
  const auto zipf = [&](std::uint64_t count) {
    return static_cast<std::uint64_t>(std::pow(static_cast<double>(count) + 1, uniform())) - 1;
  };
  Workload workload{"synthetic-agents", {}};
  Chunks chunks;
  for (int session = 0; session < kSessions; ++session) {
    const std::uint64_t system = 1 + zipf(8);
    const std::uint64_t repository = 1 + zipf(60);
    std::vector<std::uint64_t> history;
    chunks.AppendDocument(system, 0, 12 + 4 * system, history);
    chunks.AppendDocument(100 + repository, system, 20 + repository, history);
    double now = uniform() * kHour;
    for (std::uint64_t turn = 0, turns = between(1, 24); turn < turns; ++turn) {
      chunks.AppendNew(between(1, 12), history);
      const double answer = 2 + 20 * uniform();
      workload.requests.push_back({now, now + answer, history});
      // A sub-agent works on a copy of it and is never asked again.
      if (random() % 6 == 0) {
        std::vector<std::uint64_t> fork = history;
        chunks.AppendNew(between(4, 30), fork);
        workload.requests.push_back({now + 1, now + 1 + answer, std::move(fork)});
      }
      chunks.AppendNew(between(0, 2), history);  // The answer becomes part of the prompt.
      now += answer + 60 * uniform() * uniform();
    }
  }
  for (int i = 0; i < kOneShots; ++i) {
    const double now = uniform() * kHour;
    std::vector<std::uint64_t> prompt;
    chunks.AppendNew(between(2, 60), prompt);
    workload.requests.push_back({now, now + 10 * uniform(), std::move(prompt)});
  }
  SortByStart(workload);
  return workload;
}

}  // namespace terrace::bench
