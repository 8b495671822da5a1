// A plug-in whose every answer comes from the fuzzer's bytes, behind PluginTier. Whatever it says:
// no undefined behaviour on our side, nothing but std::runtime_error comes out, and each job is
// reported exactly once, with one outcome for each chunk, in the end.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "tests/contract/fake_tier_host.h"
#include "tier/plugin/plugin_tier.h"

namespace {

// What is left of the input. Past its end everything is 0.
class Bytes {
 public:
  void Reset(std::span<const std::uint8_t> bytes) { bytes_ = bytes; }
  bool empty() const { return bytes_.empty(); }
  std::uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  // Mostly what a good plug-in could say; any number now and then.
  std::int32_t Answer() {
    const std::uint8_t byte = Byte();
    if (byte == 0xfd) throw std::runtime_error("thrown by the plug-in");
    if (byte == 0xfe) throw 5;
    return byte < 0xf0 ? byte % 3 : static_cast<std::int32_t>(byte * 0x01010101u);
  }
  std::uint64_t Word() {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | Byte();
    return word;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

Bytes g_bytes;

}  // namespace

// What a real one must keep too: which jobs it has, so that it writes to live outcomes only.
struct terrace_tier {
  std::vector<const terrace_tier_job*> jobs;
  std::uint64_t last_reported = 0;
  int shutdowns = 0;
};

namespace {

constexpr char kGarbage[] = "garbage\n\xff\x1b[0m_0123456789abcdefghijklmnopqrstuvwxyz";

terrace_tier_text Text() {
  const std::size_t from = g_bytes.Byte() % sizeof(kGarbage);
  const std::uint8_t size = g_bytes.Byte();
  if (size == 0xff) return {nullptr, 17};
  return {kGarbage + from, std::min<std::size_t>(size, sizeof(kGarbage) - from)};
}

terrace_tier_status Create(const terrace_tier_host* host, terrace_tier_text, terrace_tier** tier,
                           terrace_tier_info* info, terrace_tier_error* error) {
  host->log(host->context, g_bytes.Answer(), Text());
  const std::int32_t answer = g_bytes.Answer();
  if (g_bytes.Byte() > 0xe0) std::memset(error->data, g_bytes.Byte(), error->capacity);
  if (g_bytes.Byte() > 0xc0) info->source = g_bytes.Answer();
  if (g_bytes.Byte() > 0x80) info->serves_external_requests = g_bytes.Byte() > 0xf0 ? 2 : 1;
  if (g_bytes.Byte() > 0xe0) info->event_descriptor = g_bytes.Answer() - 2;
  // Last, since what throws or says otherwise leaves nothing behind: Terrace owns it once this says
  // ok.
  if (answer == TERRACE_TIER_OK && g_bytes.Byte() < 0xf8) *tier = new terrace_tier;
  return answer;
}

void Destroy(terrace_tier* tier) { delete tier; }

std::int32_t Lookup(terrace_tier*, const terrace_tier_key*, const terrace_tier_request*) {
  return g_bytes.Answer();
}

terrace_tier_status Submit(terrace_tier* tier, const terrace_tier_job* job) {
  const std::uint8_t keep = g_bytes.Byte();
  if (keep < 0xe0) tier->jobs.push_back(job);
  const std::int32_t answer = g_bytes.Byte() < 0xd0 ? TERRACE_TIER_OK : g_bytes.Answer();
  if (answer != TERRACE_TIER_OK && keep < 0xe0) tier->jobs.pop_back();
  return answer;
}

std::size_t TakeFinished(terrace_tier* tier, terrace_tier_result* results, std::size_t capacity) {
  std::size_t count = g_bytes.Byte() % 4;
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = {g_bytes.Byte(), 0, 0, 0};  // Perhaps one of ours, perhaps reported before.
    if (g_bytes.Byte() < 0xc0 && !tier->jobs.empty()) {
      const terrace_tier_job& job = *tier->jobs.back();
      tier->jobs.pop_back();
      results[i].job = job.id;
      for (std::uint32_t chunk = 0; chunk < job.chunk_count; ++chunk) {
        job.outcomes[chunk] = g_bytes.Byte() > 0xf0 ? g_bytes.Byte() : g_bytes.Byte() % 2;
      }
    } else {
      const std::uint64_t guessed = results[i].job;
      std::erase_if(tier->jobs, [&](const auto* job) { return job->id == guessed; });
    }
    if (g_bytes.Byte() > 0xc0) results[i].bytes = g_bytes.Word();
    if (g_bytes.Byte() > 0xc0) results[i].started_at_ns = g_bytes.Word();
    if (g_bytes.Byte() > 0xc0) results[i].ended_at_ns = g_bytes.Word();
  }
  if (g_bytes.Byte() > 0xf0) throw std::runtime_error("thrown by the plug-in");
  return g_bytes.Byte() > 0xf0 ? capacity + g_bytes.Word() % 1000 : count;
}

terrace_tier_status Drain(terrace_tier*, std::uint64_t) { return g_bytes.Answer(); }

// Ends at the third try.
terrace_tier_status Shutdown(terrace_tier* tier, std::uint64_t) {
  if (++tier->shutdowns >= 3) return TERRACE_TIER_OK;
  return g_bytes.Byte() < 0x80 ? TERRACE_TIER_OK : g_bytes.Answer();
}

terrace_tier_key Key() {
  terrace_tier_key key{};
  key.hash[0] = g_bytes.Byte() % 8;
  key.hash_size = g_bytes.Byte() < 0xe0 ? 32 : g_bytes.Byte();
  return key;
}

void Serve(terrace_tier* tier, const terrace_tier_server* server) {
  std::uint64_t request = 0;
  for (int i = g_bytes.Byte() % 8; i > 0; --i) {
    const terrace_tier_key keys[] = {Key(), Key()};
    const terrace_tier_job* job = nullptr;
    switch (g_bytes.Byte() % 5) {
      case 0:
        request = server->begin_request(server->context);
        break;
      case 1:
        server->lookup(server->context, g_bytes.Byte() > 0xf0 ? nullptr : keys, request);
        break;
      case 2:
        if (server->create_store_job(server->context, g_bytes.Byte() > 0xf0 ? nullptr : keys,
                                     g_bytes.Byte() % 3, request, &job) == TERRACE_TIER_OK) {
          tier->jobs.push_back(job);
        }
        break;
      case 3:
        server->finish_request(server->context, request);
        break;
      default:
        server->should_yield(server->context);
    }
  }
  if (g_bytes.Byte() > 0xf0) throw std::runtime_error("thrown by the plug-in");
}

std::size_t ReadCounters(terrace_tier*, terrace_tier_counter* counters, std::size_t capacity) {
  if (g_bytes.Byte() < 0x80) return 0;
  const std::size_t count = g_bytes.Byte() % 3;
  for (std::size_t i = 0; i < count; ++i) counters[i] = {Text(), g_bytes.Word()};
  return g_bytes.Byte() > 0xf0 ? capacity + 1 : count;
}

terrace_tier_plugin_v1 g_plugin;

const terrace_tier_plugin_v1* Entry(std::uint32_t, std::uint32_t) {
  g_plugin = {};
  const std::uint8_t odd = g_bytes.Byte();
  g_plugin.struct_size = odd == 0xff ? g_bytes.Byte() : sizeof(g_plugin);
  g_plugin.abi_major = odd == 0xfe ? g_bytes.Byte() : TERRACE_TIER_ABI_MAJOR;
  g_plugin.abi_minor = g_bytes.Byte();
  g_plugin.name = odd == 0xfd ? Text() : terrace_tier_text{"fuzz", 4};
  g_plugin.create = odd == 0xfc ? nullptr : Create;
  g_plugin.destroy = Destroy;
  g_plugin.lookup = Lookup;
  g_plugin.submit_store = Submit;
  g_plugin.submit_load = Submit;
  g_plugin.take_finished = TakeFinished;
  g_plugin.drain = Drain;
  g_plugin.shutdown = Shutdown;
  const std::uint8_t optional = g_bytes.Byte();
  if (optional & 1) g_plugin.on_new_request = [](auto*, auto*) { return g_bytes.Answer(); };
  if (optional & 2) g_plugin.on_request_finished = [](auto*, auto*) { g_bytes.Answer(); };
  if (optional & 4) g_plugin.on_schedule_end = [](auto*) { g_bytes.Answer(); };
  if (optional & 8) g_plugin.has_pending_work = [](auto*) { return g_bytes.Answer(); };
  if (optional & 16) g_plugin.serve_external_requests = Serve;
  if (optional & 32) g_plugin.read_counters = ReadCounters;
  return odd == 0xfb ? nullptr : &g_plugin;
}

}  // namespace

namespace terrace {
namespace {

using testing::FakeTierHost;

// Jobs that the tier has, and the manager's side of serving.
class Driver final : public TierServer {
 public:
  explicit Driver(PluginTier& tier) : tier_(tier) {}

  void Run() {
    while (!g_bytes.empty()) {
      try {
        Step(g_bytes.Byte() % 9);
      } catch (const std::runtime_error& fault) {
        TERRACE_CHECK(*fault.what() != '\0', "a fault says what it is");
      }
    }
    for (int tries = 0; !tier_.Shutdown(std::chrono::minutes(1)); ++tries) {
      TERRACE_CHECK(tries < 4, "it ends at last");
    }
    Take();
    TERRACE_CHECK(jobs_.empty(), "each job is reported in the end");
  }

  Request BeginRequest() override { return Request{RequestId(kExternalRequests.value + 1)}; }
  LookupResult Lookup(const ChunkKey&, const Request&) override { return LookupResult::kHit; }
  std::optional<TransferJob> CreateStoreJob(std::span<const ChunkKey> keys,
                                            const Request& request) override {
    TransferJob job = NewJob(keys.size());
    job.request = request.id;
    job.keys.assign(keys.begin(), keys.end());
    return job;
  }
  void FinishRequest(const Request&) override {}
  std::size_t SlotsForPeers() const override { return 4; }
  bool ShouldYield() const override { return false; }

 private:
  void Step(int what) {
    const Request request{RequestId(3)};
    const ChunkKey key(std::vector<std::uint8_t>(32, g_bytes.Byte()), 0);
    switch (what) {
      case 0:
        static_cast<void>(tier_.Lookup(key, request));
        break;
      case 1:
        tier_.SubmitStore(NewJob(g_bytes.Byte() % 4));
        break;
      case 2:
        tier_.SubmitLoad(NewJob(g_bytes.Byte() % 4));
        break;
      case 3:
        Take();
        break;
      case 4:
        static_cast<void>(tier_.OnNewRequest(request));
        tier_.OnRequestFinished(request);
        break;
      case 5:
        tier_.OnScheduleEnd();
        static_cast<void>(tier_.HasPendingWork());
        break;
      case 6:
        tier_.ServeExternalRequests(*this);
        break;
      case 7:
        static_cast<void>(tier_.Counters());
        break;
      default:
        static_cast<void>(tier_.Drain(std::chrono::milliseconds(1)));
    }
  }

  TransferJob NewJob(std::size_t count) {
    TransferJob job{JobId(next_job_++), RequestId(3), {}, {}, {}};
    for (std::size_t i = 0; i < count; ++i) {
      job.keys.emplace_back(std::vector<std::uint8_t>(32, static_cast<std::uint8_t>(i)), 0);
      job.slots.emplace_back(static_cast<std::uint32_t>(i));
    }
    jobs_.emplace(job.id, count);
    return job;
  }

  void Take() {
    std::vector<JobResult> results;
    try {
      tier_.TakeFinished(results);
    } catch (const std::runtime_error&) {
      // The results before it count all the same.
    }
    for (const JobResult& result : results) {
      const auto job = jobs_.find(result.id);
      TERRACE_CHECK(job != jobs_.end(), "only jobs that it has, and each once");
      TERRACE_CHECK(result.outcomes.size() == job->second, "an outcome for each chunk");
      TERRACE_CHECK(result.bytes <= job->second * 5000, "no more bytes than the job has");
      jobs_.erase(job);
    }
  }

  PluginTier& tier_;
  std::uint64_t next_job_ = 1;
  std::map<JobId, std::size_t> jobs_;
};

void Try() {
  static FakeTierHost host(8);
  try {
    auto library = PluginLibrary::Adopt(Entry, "fuzz");
    if (!library.ok()) {
      TERRACE_CHECK(!library.error().message.empty(), "an error says why");
      return;
    }
    auto tier = PluginTier::Create(std::move(library).value(), "{}", host);
    if (!tier.ok()) {
      for (const char c : tier.error().message) TERRACE_CHECK(c >= ' ' && c <= '~', "printable");
      return;
    }
    Driver(*tier.value()).Run();
  } catch (...) {
    TERRACE_CHECK(false, "nothing comes out that was not expected");
  }
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = [] {
    terrace::Log().set_level(spdlog::level::off);
    return true;
  }();
  static_cast<void>(quiet);
  g_bytes.Reset({data, size});
  terrace::Try();
  return 0;
}
