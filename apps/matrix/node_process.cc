#include "node_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <random>
#include <thread>
#include <utility>

#include "flood.h"
#include "raw_transport.h"

namespace terrace::matrix {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// Busy prompts are these few, one after the other and never loaded, so that the memory that they
// fill has a bound and what is measured stays in it.
constexpr std::uint64_t kBusySeeds = 8;
constexpr std::uint64_t kFirstBusySeed = 1'000'000;
// In the engine at once: the next one begins in the step in which the last one ends.
constexpr int kBusyPrompts = 2;
// An engine without a control thread serves its peers once a step, so an idle one steps all the
// time, as the reference does; a little sleep in between leaves the others the processor.
constexpr std::chrono::microseconds kIdleStep{100};

// Any that is free now.
std::uint16_t FreePort() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(probe.get(), raw, sizeof address) != 0) return 0;
  return ::getsockname(probe.get(), raw, &size) == 0 ? ntohs(address.sin_port) : 0;
}

std::vector<Token> TokensOf(std::uint64_t seed, std::uint32_t count, Token vocabulary) {
  std::mt19937_64 random(seed);
  // Whose first tokens have meanings of their own.
  std::uniform_int_distribution<Token> token(std::min<Token>(10, vocabulary - 1), vocabulary - 1);
  std::vector<Token> tokens(count);
  for (Token& t : tokens) t = token(random);
  return tokens;
}

// Lines of standard input, read by a thread of their own.
class Orders {
 public:
  // A thread that sleeps in a read cannot be ended: it is left alone, with what it shares with us,
  // until the process ends.
  Orders() {
    std::thread([inbox = inbox_] { Read(*inbox); }).detach();
  }

  // nullopt if there is none within `patience`. An empty one means that there will be none.
  std::optional<std::string> Next(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> lock(inbox_->mutex);
    // To wait for no time at all takes a tenth of a millisecond where the processor goes idle.
    if (patience.count() > 0) {
      inbox_->arrived.wait_for(lock, patience, [&] { return !inbox_->lines.empty(); });
    }
    if (inbox_->lines.empty()) return std::nullopt;
    std::string line = std::move(inbox_->lines.front());
    inbox_->lines.pop();
    return line;
  }

 private:
  struct Inbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::queue<std::string> lines;

    void Add(std::string line) {
      const std::lock_guard<std::mutex> lock(mutex);
      lines.push(std::move(line));
      arrived.notify_one();
    }
  };

  static void Read(Inbox& inbox) {
    for (std::string line; std::getline(std::cin, line);) {
      if (!line.empty()) inbox.Add(std::move(line));
    }
    inbox.Add("");
  }

  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

Json HistogramToJson(const DurationHistogram& histogram) {
  return {{"count", histogram.count},
          {"sum_s", std::chrono::duration<double>(histogram.sum).count()},
          {"p99_s", std::chrono::duration<double>(histogram.Quantile(0.99)).count()},
          {"max_s", std::chrono::duration<double>(histogram.max).count()}};
}

class NodeProcess {
 public:
  explicit NodeProcess(MatrixEngine& engine) : engine_(engine) {}

  int Run();

 private:
  void Obey(const std::string& line);
  Result<Json> Do(const Json& order);
  Result<Json> Open(const Json& order);
  void TouchHostMemory();
  void StartPrompt(const Json& order);
  void Submit(const Json& order, std::uint64_t seed, std::function<void(MatrixAnswer)> on_done);
  void KeepBusy();
  Json Work();
  Json Stats();
  ManagerStats TakeStats();
  static void Say(const Json& answer) {
    std::fputs((answer.dump() + "\n").c_str(), stdout);
    std::fflush(stdout);
  }

  MatrixEngine& engine_;
  std::unique_ptr<RawServer> raw_;
  bool open_ = false;
  bool serves_per_step_ = false;
  bool rests_ = false;  // In the middle of its work.
  bool stopped_ = false;
  bool failed_ = false;
  std::uint32_t busy_tokens_ = 0;
  int in_engine_ = 0;     // Prompts.
  int busy_prompts_ = 0;  // Of these, those that nobody is told of.
  std::uint64_t next_busy_ = 0;
};

ManagerStats NodeProcess::TakeStats() {
  ManagerRegion region(engine_.node().manager(), Lane::kEngine, "matrix");
  return engine_.node().manager().Stats();
}

int NodeProcess::Run() {
  Orders orders;
  bool more = false;  // Steps are to follow.
  while (!stopped_) {
    const bool spins = !rests_ && (more || (open_ && serves_per_step_));
    while (auto line = orders.Next(std::chrono::milliseconds(spins ? 0 : 10))) {
      if (line->empty()) return failed_ ? 1 : 0;
      Obey(*line);
      if (stopped_) break;
      if (open_) break;  // A prompt is begun at once.
    }
    if (!open_ || stopped_ || rests_) continue;
    KeepBusy();
    more = more || in_engine_ > 0 || engine_.node().connector().HasPendingWork();
    if (!more && !serves_per_step_) continue;
    auto stepped = engine_.Step();
    if (!stepped.ok()) {
      std::fprintf(stderr, "terrace matrix: %s\n", stepped.error().message.c_str());
      return 1;
    }
    more = stepped.value();
    if (!more && serves_per_step_) std::this_thread::sleep_for(kIdleStep);
  }
  return failed_ ? 1 : 0;
}

void NodeProcess::Obey(const std::string& line) {
  const Json order = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!order.is_object() || !order.contains("do")) return Say({{"error", "not an order"}});
  if (order["do"] == "prompt" && open_) {
    StartPrompt(order);
    // Answered from Step(), which is called until then.
    return;
  }
  auto answer = Do(order);
  Say(answer.ok() ? answer.value() : Json{{"error", answer.error().message}});
}

Result<Json> NodeProcess::Do(const Json& order) {
  const std::string what = order["do"];
  if (what == "open") return Open(order);
  if (what == "stop") {
    stopped_ = true;
    raw_.reset();
    engine_.Close();
    return Json::object();
  }
  if (what == "raw_serve") {
    auto raw = RawServer::Start(order.at("bytes"), order.at("huge_pages"));
    if (!raw.ok()) return std::move(raw).error();
    raw_ = std::move(raw).value();
    return Json{{"ping_port", raw_->ping_port()},
                {"copy_port", raw_->copy_port()},
                {"descriptor", raw_->descriptor()},
                {"pid", ::getpid()}};
  }
  if (what == "raw_ping") {
    auto seconds = RawPing(order.at("port"), order.at("count"), order.at("gap_ms"));
    if (!seconds.ok()) return std::move(seconds).error();
    return Json{{"s", seconds.value()}};
  }
  if (what == "raw_copy") {
    auto seconds =
        RawCopy(order.at("plane"), order.at("pid"), order.at("descriptor"), order.at("port"),
                order.at("bytes"), order.at("count"), order.at("huge_pages"));
    if (!seconds.ok()) return std::move(seconds).error();
    return Json{{"s", seconds.value()}};
  }
  if (!open_) return Error{ErrorCode::kInvalidArgument, what + ": no node is open"};
  if (what == "busy") {
    busy_tokens_ = order.at("tokens");
    return Json::object();
  }
  if (what == "rest" || what == "go_on") {
    rests_ = what == "rest";
    return Json::object();
  }
  if (what == "work") return Work();
  if (what == "stats") return Stats();
  if (what == "flood") {
    const Flood flood{.peer = {"127.0.0.1", order.at("port")},
                      .tokens_per_chunk = engine_.tokens_per_chunk(),
                      .time = std::chrono::milliseconds(order.at("ms").get<int>())};
    return Json{{"answered", RunFlood(engine_.node(), flood)}};
  }
  if (what == "forget") {
    engine_.node().connector().ResetCache();
    return Json::object();
  }
  return Error{ErrorCode::kInvalidArgument, "unknown order " + what};
}

Result<Json> NodeProcess::Open(const Json& order) {
  engine_.Close();
  open_ = false;
  rests_ = false;
  in_engine_ = busy_prompts_ = 0;
  busy_tokens_ = 0;
  NodeSettings settings;
  settings.interval_s = order.at("interval_s");
  settings.data_plane = order.at("data_plane");
  settings.control_priority = order.at("control_priority");
  settings.huge_pages = order.at("huge_pages");
  const std::uint64_t chunks =
      order.at("host_tokens").get<std::uint64_t>() / engine_.tokens_per_chunk() + 1;
  settings.host_bytes = chunks * (engine_.chunk_bytes() + 4096);
  settings.port = FreePort();
  auto opened = engine_.Open(NodeConfigOf(settings, engine_.tokens_per_chunk()));
  if (!opened.ok()) return std::move(opened).error();
  TouchHostMemory();
  open_ = true;
  serves_per_step_ = settings.interval_s == 0;
  return Json{{"port", settings.port},
              {"tokens_per_chunk", engine_.tokens_per_chunk()},
              {"chunk_bytes", engine_.chunk_bytes()}};
}

// As a node does in the background after its start: what is measured is a node that has run for a
// while. Nobody uses the memory yet.
void NodeProcess::TouchHostMemory() {
  const HostSlots slots = engine_.node().host_slots();
  volatile std::byte* const base = slots.base;
  for (std::size_t i = 0; i < slots.slot_count * slots.stride_bytes; i += 4096) {
    base[i] = std::byte{0};
  }
}

void NodeProcess::Submit(const Json& order, std::uint64_t seed,
                         std::function<void(MatrixAnswer)> on_done) {
  MatrixPrompt prompt;
  prompt.tokens = TokensOf(seed, order.at("tokens"), engine_.vocabulary_size());
  prompt.answer_tokens = order.value("answer_tokens", 1U);
  prompt.may_load = order.value("may_load", true);
  if (order.contains("peer")) {
    auto route = std::make_shared<PeerRoute>();
    PeerRoute::Source source;
    source.address = {order["peer"].at("host"), order["peer"].at("port")};
    route->source = std::move(source);
    prompt.route = std::move(route);
  }
  ++in_engine_;
  engine_.Submit(std::move(prompt), [this, on_done = std::move(on_done)](MatrixAnswer answer) {
    --in_engine_;
    on_done(std::move(answer));
  });
}

// What the tier counted in between belongs to this prompt: it is the only one that is routed.
void NodeProcess::StartPrompt(const Json& order) {
  const ManagerStats before = TakeStats();
  Submit(order, order.at("seed"), [this, before](MatrixAnswer answer) {
    const ManagerStats after = TakeStats();
    Json json = {{"tokens", answer.tokens},
                 {"fetched_tokens", answer.fetched_tokens},
                 {"computed_tokens", answer.computed_tokens},
                 {"ttft_s", answer.ttft_s},
                 {"bytes_right", answer.bytes_right},
                 {"lookup_s", nullptr}};
    for (std::size_t i = 0; i < after.tiers.size(); ++i) {
      const TierStats& was = before.tiers[i];
      const TierStats& is = after.tiers[i];
      const std::uint64_t delays = is.lookup_delay.count - was.lookup_delay.count;
      if (delays > 0) {
        const std::chrono::duration<double> sum = is.lookup_delay.sum - was.lookup_delay.sum;
        json["lookup_s"] = sum.count() / static_cast<double>(delays);
      }
      json["fetched_bytes"] = is.promotion.bytes - was.promotion.bytes;
      json["fetch_s"] =
          std::chrono::duration<double>(is.promotion.time - was.promotion.time).count();
    }
    if (!answer.error.empty()) json = {{"error", answer.error}};
    Say(json);
  });
}

void NodeProcess::KeepBusy() {
  while (busy_tokens_ > 0 && busy_prompts_ < kBusyPrompts) {
    const Json order = {{"tokens", busy_tokens_}, {"may_load", false}};
    ++busy_prompts_;
    Submit(order, kFirstBusySeed + next_busy_++ % kBusySeeds, [this](const MatrixAnswer& answer) {
      --busy_prompts_;
      if (answer.error.empty()) return;
      std::fprintf(stderr, "terrace matrix: a busy prompt failed: %s\n", answer.error.c_str());
      failed_ = true;
      busy_tokens_ = 0;
    });
  }
}

Json NodeProcess::Work() {
  const MatrixWork work = engine_.TakeWork();
  return {{"tokens", work.tokens},
          {"step_s", work.step_s},
          {"last_end_s", std::chrono::duration<double>(work.last_end.time_since_epoch()).count()}};
}

Json NodeProcess::Stats() {
  const ManagerStats stats = TakeStats();
  Json json = {{"priority", ThreadPriorityName(stats.control.priority)},
               {"control_running", stats.control.running},
               {"evicted_chunks", stats.evicted_chunks},
               {"engine_wait", HistogramToJson(stats.lock.wait[0])},
               {"control_wait", HistogramToJson(stats.lock.wait[1])},
               {"engine_hold", HistogramToJson(stats.lock.hold[0])},
               {"control_hold", HistogramToJson(stats.lock.hold[1])}};
  for (const TierStats& tier : stats.tiers) {
    for (const CounterValue& counter : tier.counters) {
      json["counters"][std::string(counter.name)] = counter.value;
    }
  }
  return json;
}

}  // namespace

NodeConfig NodeConfigOf(const NodeSettings& settings, std::uint32_t tokens_per_chunk) {
  NodeConfig config;
  config.cpu_bytes_to_use = settings.host_bytes;
  config.huge_pages = settings.huge_pages;
  config.prefault_threads = 1;  // The first touch of a slot is not what is measured.
  config.tokens_per_chunk = tokens_per_chunk;
  config.tier_poll_interval_s = settings.interval_s;
  config.control_thread.priority = settings.control_priority;
  TierConfig tier;
  tier.type = TierConfig::Type::kPeer;
  tier.peer.port = settings.port;
  tier.peer.data_plane = settings.data_plane;
  // A source that is served per step answers a hello and a look-up only between two steps.
  tier.peer.connect_timeout_ms = 30'000;
  tier.peer.lookup_timeout_ms = 30'000;
  tier.peer.fetch_timeout_ms = 30'000;
  tier.peer.lease_ms = 30'000;
  config.secondary_tiers.push_back(tier);
  return config;
}

int RunNodeProcess(MatrixEngine& engine) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGPIPE, SIG_IGN);
  return NodeProcess(engine).Run();
}

}  // namespace terrace::matrix
