// Plug-ins that are wrong. FLAW_* says what is wrong with the library; FLAW_NONE is a library that
// is right, whose tier misbehaves as its options tell: {"flaw": "take_twice"}. With {"diary": FILE,
// "name": TEXT} it writes there when it is made and ended.
#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "terrace/tier_plugin.h"

struct terrace_tier {
  const terrace_tier_host* host;
  std::string flaw;
  std::vector<const terrace_tier_job*> jobs;
  int shutdowns = 0;
  std::string diary;
  std::string name;

  bool Has(const char* other) const { return flaw == other; }
};

namespace {

// The value of a text in `options`, which has no escapes; "" if it is not there.
[[maybe_unused]] std::string Option(const std::string& options, const std::string& key) {
  const std::string start = "\"" + key + "\":\"";
  const auto at = options.find(start);
  if (at == options.npos) return "";
  const auto from = at + start.size();
  return options.substr(from, options.find('"', from) - from);
}

[[maybe_unused]] void Note(const terrace_tier& tier, const std::string& what) {
  if (!tier.diary.empty()) std::ofstream(tier.diary, std::ios::app) << what << tier.name << " ";
}

[[maybe_unused]] terrace_tier_status Create(const terrace_tier_host* host,
                                            terrace_tier_text options, terrace_tier** tier,
                                            terrace_tier_info* info, terrace_tier_error* error) {
  const std::string text(options.data, options.size);
  const std::string flaw = Option(text, "flaw");
  if (flaw == "create_fails") {
    std::strncpy(error->data, "open /dev/shelf: no such shelf\n", error->capacity);
    return TERRACE_TIER_NOT_FOUND;
  }
  if (flaw == "create_fails_without_end") {
    std::memset(error->data, 'x', error->capacity);
    return TERRACE_TIER_UNAVAILABLE;
  }
  if (flaw == "create_fails_silently") return 99;
  if (flaw == "create_throws") throw std::runtime_error("no such shelf");
  if (flaw == "create_makes_nothing") return TERRACE_TIER_OK;
  if (flaw == "bad_source" || flaw == "bad_source_and_stays") info->source = 0;
  if (flaw == "bad_descriptor") info->event_descriptor = 12345;
  if (flaw == "bad_serves") info->serves_external_requests = 7;
  if (flaw == "serves_without_function") info->serves_external_requests = 1;
  *tier = new terrace_tier{host, flaw, {}, 0, Option(text, "diary"), Option(text, "name")};
  Note(**tier, "create ");
  const std::string line = "made\n\x1b[31m";
  host->log(host->context, TERRACE_TIER_LOG_INFO, {line.data(), line.size()});
  return TERRACE_TIER_OK;
}

[[maybe_unused]] void Destroy(terrace_tier* tier) {
  const bool throws = tier->Has("destroy_throws");
  Note(*tier, "destroy ");
  delete tier;
  if (throws) throw std::runtime_error("stuck");
}

[[maybe_unused]] std::int32_t Lookup(terrace_tier* tier, const terrace_tier_key*,
                                     const terrace_tier_request*) {
  if (tier->Has("lookup_unknown")) return 7;
  if (tier->Has("lookup_throws")) throw std::runtime_error("no idea");
  if (tier->Has("lookup_throws_int")) throw 5;
  return TERRACE_TIER_HIT;
}

[[maybe_unused]] terrace_tier_status Submit(terrace_tier* tier, const terrace_tier_job* job) {
  if (tier->Has("submit_refuses")) return TERRACE_TIER_UNAVAILABLE;
  if (tier->Has("submit_unknown")) return -3;
  tier->jobs.push_back(job);
  if (tier->Has("submit_throws")) throw std::runtime_error("lost my mind");
  if (tier->Has("submit_reports_and_refuses")) return TERRACE_TIER_UNAVAILABLE;
  return TERRACE_TIER_OK;
}

[[maybe_unused]] std::size_t TakeFinished(terrace_tier* tier, terrace_tier_result* results,
                                          std::size_t capacity) {
  if (tier->Has("take_throws")) throw std::runtime_error("results are gone");
  if (tier->Has("take_unknown")) {
    results[0] = {4711, 0, 0, 0};
    return 1;
  }
  if (tier->Has("take_never") || tier->Has("shutdown_forgets")) return 0;
  std::size_t count = 0;
  for (; count < capacity && !tier->jobs.empty(); ++count) {
    const terrace_tier_job& job = *tier->jobs.back();
    std::memset(job.outcomes, TERRACE_TIER_COPY_OK, job.chunk_count);
    results[count] = {job.id, 0, 0, 0};
    if (tier->Has("take_bad_outcome")) job.outcomes[0] = 2;
    if (tier->Has("take_too_many_bytes")) results[count].bytes = ~std::uint64_t{0};
    if (tier->Has("take_bad_times")) results[count].ended_at_ns = ~std::uint64_t{0};
    tier->jobs.pop_back();
  }
  if (tier->Has("take_twice") && count > 0 && count < capacity) {
    results[count] = results[0];
    ++count;
  }
  return tier->Has("take_too_many") ? capacity + 1 : count;
}

[[maybe_unused]] terrace_tier_status Drain(terrace_tier* tier, std::uint64_t) {
  if (tier->Has("drain_unknown")) return 42;
  return TERRACE_TIER_OK;
}

[[maybe_unused]] terrace_tier_status Shutdown(terrace_tier* tier, std::uint64_t) {
  const bool first = tier->shutdowns++ == 0;
  Note(*tier, "shutdown ");
  if (tier->Has("bad_source_and_stays")) return TERRACE_TIER_TIMED_OUT;
  if (tier->Has("shutdown_throws") && first) throw std::runtime_error("will not go");
  if (tier->Has("shutdown_times_out") && first) return TERRACE_TIER_TIMED_OUT;
  if (tier->Has("shutdown_unknown") && first) return 17;
  if (tier->Has("shutdown_hangs")) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  return TERRACE_TIER_OK;
}

[[maybe_unused]] std::size_t ReadCounters(terrace_tier* tier, terrace_tier_counter* counters,
                                          std::size_t capacity) {
  if (tier->Has("counters_throw")) throw std::runtime_error("cannot count");
  if (tier->Has("counters_too_many")) return capacity + 1;
  counters[0] = {{"flawed_total", 12}, 5};
  if (tier->Has("counter_bad_name")) counters[0].name = {"Not A Name", 10};
  if (tier->Has("counter_no_name")) counters[0].name = {nullptr, 10};
  if (tier->Has("counter_twice")) {
    counters[1] = counters[0];
    return 2;
  }
  return 1;
}

[[maybe_unused]] terrace_tier_plugin_v1 MakePlugin() {
  terrace_tier_plugin_v1 plugin{};
  plugin.struct_size = sizeof(plugin);
  plugin.abi_major = TERRACE_TIER_ABI_MAJOR;
  plugin.abi_minor = TERRACE_TIER_ABI_MINOR;
  plugin.name = {"flawed", 6};
  plugin.create = Create;
  plugin.destroy = Destroy;
  plugin.lookup = Lookup;
  plugin.submit_store = Submit;
  plugin.submit_load = Submit;
  plugin.take_finished = TakeFinished;
  plugin.drain = Drain;
  plugin.shutdown = Shutdown;
  plugin.read_counters = ReadCounters;
#if defined(FLAW_WRONG_MAJOR)
  plugin.abi_major = 2;
  plugin.struct_size = 12;  // What follows the first three members may be anything.
#elif defined(FLAW_SHORT_TABLE)
  plugin.struct_size -= 1;
#elif defined(FLAW_LACKS_FUNCTIONS)
  plugin.lookup = nullptr;
  plugin.drain = nullptr;
#elif defined(FLAW_BAD_NAME)
  plugin.name = {"Flawed!\n", 8};
#endif
  return plugin;
}

}  // namespace

#if defined(FLAW_NEWER_MINOR)
// As a plug-in of a later minor version: more functions behind ours.
struct NewerPlugin {
  terrace_tier_plugin_v1 plugin;
  void (*newer)();
};
const terrace_tier_plugin_v1* terrace_tier_plugin(std::uint32_t, std::uint32_t) {
  static NewerPlugin newer = {MakePlugin(), nullptr};
  newer.plugin.struct_size = sizeof(newer);
  newer.plugin.abi_minor = TERRACE_TIER_ABI_MINOR + 1;
  return &newer.plugin;
}
#elif defined(FLAW_NO_TABLE)
const terrace_tier_plugin_v1* terrace_tier_plugin(std::uint32_t, std::uint32_t) { return nullptr; }
#elif !defined(FLAW_NO_SYMBOL)
const terrace_tier_plugin_v1* terrace_tier_plugin(std::uint32_t, std::uint32_t) {
  static const terrace_tier_plugin_v1 plugin = MakePlugin();
  return &plugin;
}
#endif
