// Requests to replay: from traces, or made up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace terrace::bench {

struct WorkloadRequest {
  double start_s = 0;
  double end_s = 0;
  // Chunks of its prompt, in prefix order. Equal numbers mean equal chunks with equal prefixes.
  std::vector<std::uint64_t> chunks;
};

struct Workload {
  std::string name;
  std::vector<WorkloadRequest> requests;  // By start.
};

// A trace in the format of Mooncake's (FAST 2025): a JSON object a line, with `timestamp` (ms),
// `output_length` (tokens) and `hash_ids`. nullopt, with a line on stderr, if it cannot be read.
std::optional<Workload> ReadTrace(const std::string& path);

// Coding agents: sessions of many turns that send everything so far again, on system prompts and
// repositories that many sessions share, between prompts that are asked once. The same for a seed.
Workload MakeAgentWorkload(std::uint64_t seed);

}  // namespace terrace::bench
