#include "run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine.h"
#include "identity.h"
#include "llama_kv.h"
#include "llama_runtime.h"
#include "prompts.h"
#include "status_line.h"
#include "terrace/cache_identity.h"
#include "terrace/node.h"

namespace terrace::llama {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

// The second one does not wait for a disk that does not answer; what stays in tmp/ is removed at
// the next start.
void OnSignal(int /*signal*/) {
  if (stop_requested.exchange(true)) _exit(kExitStopped);
}

// For people. Not fmt::print(): that throws where nothing can be written, and serving goes on
// without a listener.
template <typename... Arguments>
void Say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  std::fputs(fmt::format(format, std::forward<Arguments>(arguments)...).c_str(), stderr);
}

// Everything that serves, in order of construction.
struct Service {
  std::unique_ptr<LlamaRuntime> runtime;
  std::unique_ptr<LlamaKv> kv;
  std::unique_ptr<Node> node;
  std::unique_ptr<Engine> engine;
};

Result<Service> MakeService(const RunCommand& command, StatusLine& status) {
  auto config = LoadNodeConfig(command.config_path);
  if (!config.ok()) return std::move(config).error();
  // A whole chunk must fit beside a token of every other sequence, or answering requests keep a
  // prefilling one waiting; and llama.cpp wants room for an output of each.
  const std::uint32_t least_step =
      std::max(config.value().tokens_per_chunk + command.parallel - 1, command.parallel + 1);
  if (command.step_tokens < least_step) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--step-tokens is {}; with --parallel {} and tokens_per_chunk {} it "
                             "must be at least {}",
                             command.step_tokens, command.parallel, config.value().tokens_per_chunk,
                             least_step)};
  }
  auto runtime = LlamaRuntime::Create({.model_path = command.model_path,
                                       .context_tokens = command.context_tokens,
                                       .sequences = command.parallel,
                                       .step_tokens = command.step_tokens,
                                       .threads = command.threads,
                                       .on_progress =
                                           [&](float done) {
                                             status.Update([&] {
                                               return fmt::format("loading {}, {:.0f} %",
                                                                  command.model_path, 100 * done);
                                             });
                                           },
                                       .stop = &stop_requested});
  if (!runtime.ok()) return std::move(runtime).error();
  Service service;
  service.runtime = std::move(runtime).value();
  const std::uint32_t tokens_per_chunk = config.value().tokens_per_chunk;
  auto kv = LlamaKv::Create(*service.runtime, tokens_per_chunk);
  if (!kv.ok()) return std::move(kv).error();
  service.kv = std::move(kv).value();
  auto identity = MakeIdentity(*service.runtime, *service.kv, tokens_per_chunk);
  if (!identity.ok()) return std::move(identity).error();
  auto node = Node::Create(config.value(), identity.value());
  if (!node.ok()) return std::move(node).error();
  service.node = std::move(node).value();
  const KeyScope scope{.identity = identity.value().digest(),
                       .salt = "",
                       .adapter = "",
                       .group = 0,
                       .tokens_per_chunk = tokens_per_chunk};
  service.engine =
      std::make_unique<Engine>(*service.runtime, *service.kv, *service.node, scope,
                               EngineOptions{.max_tokens = command.max_tokens,
                                             .ignore_end_of_text = command.ignore_end_of_text,
                                             .verify = command.verify},
                               &stop_requested);
  return service;
}

Json HashesToJson(const std::vector<ChunkHash>& hashes) {
  Json list = Json::array();
  for (const ChunkHash& chunk : hashes) {
    list.push_back({chunk.key.ToHex(), fmt::format("{:016x}", chunk.hash)});
  }
  return list;
}

Json AnswerToJson(const Answer& answer, const LlamaRuntime& runtime) {
  Json json;
  json["id"] = answer.id;
  if (!answer.error.empty()) json["error"] = answer.error;
  json["tokens"] = answer.prompt_tokens.size();
  for (std::size_t i = 0; i < kLoadSourceCount; ++i) {
    json[fmt::format("tokens_{}", LoadSourceName(static_cast<LoadSource>(i)))] =
        answer.loaded.by_source[i];
  }
  json["tokens_kept"] = answer.kept_tokens;
  json["tokens_computed"] = answer.computed_tokens;
  json["ttft_s"] = answer.ttft_s;
  json["total_s"] = answer.total_s;
  json["steps_waited"] = answer.steps_waited;
  json["bytes_loaded"] = answer.bytes_loaded;
  json["bytes_stored"] = answer.bytes_stored;
  json["answer"] = runtime.Detokenize(answer.tokens);
  json["answer_tokens"] = answer.tokens;
  json["prompt_tokens"] = answer.prompt_tokens;
  json["stored"] = HashesToJson(answer.stored);
  json["restored"] = HashesToJson(answer.restored);
  return json;
}

Json StatsToJson(const ManagerStats& stats) {
  Json json = {{"slots", stats.slot_count},
               {"ready_chunks", stats.ready_chunks},
               {"stored_chunks", stats.stored_chunks},
               {"loaded_chunks", stats.loaded_chunks},
               {"evicted_chunks", stats.evicted_chunks},
               {"store_refusals", stats.store_refusals},
               {"promotion_refusals", stats.promotion_refusals},
               {"promotions_overdue", stats.promotions_overdue},
               {"stuck_slots", stats.stuck_slots},
               {"tiers", Json::array()}};
  for (const TierStats& tier : stats.tiers) {
    Json entry = {{"type", tier.type},
                  {"promoted_chunks", tier.promotion.chunks},
                  {"promotion_failed_chunks", tier.promotion.failed_chunks},
                  {"promoted_bytes", tier.promotion.bytes},
                  {"cascaded_chunks", tier.cascade.chunks},
                  {"cascade_failed_chunks", tier.cascade.failed_chunks},
                  {"cascaded_bytes", tier.cascade.bytes}};
    for (const CounterValue& counter : tier.counters)
      entry[std::string(counter.name)] = counter.value;
    json["tiers"].push_back(std::move(entry));
  }
  return json;
}

void PrintAnswer(const Answer& answer, const RunCommand& command, std::size_t done,
                 std::size_t total, double elapsed_s) {
  if (!answer.error.empty()) {
    std::fprintf(stderr, "terrace-llama: prompt %s: %s\n", answer.id.c_str(), answer.error.c_str());
    return;
  }
  if (command.quiet) return;
  std::string sources;
  for (std::size_t i = 0; i < kLoadSourceCount; ++i) {
    if (answer.loaded.by_source[i] == 0) continue;
    sources += fmt::format("{} {}, ", answer.loaded.by_source[i],
                           LoadSourceName(static_cast<LoadSource>(i)));
  }
  if (answer.kept_tokens > 0) sources += fmt::format("{} kept, ", answer.kept_tokens);
  // While it runs, also on the way to a file: what is done, how far, how long.
  Say("{}[{}/{}, {:.0f} s] {}: {} tokens ({}{} computed), first token after {:.3f} s\n",
      command.progress_label, done, total, elapsed_s, answer.id, answer.prompt_tokens.size(),
      sources, answer.computed_tokens, answer.ttft_s);
}

// At most `parallel` prompts are in the engine at once; the next one comes when one is answered.
Result<void> Serve(Service& service, const std::vector<Prompt>& prompts, const RunCommand& command,
                   StatusLine& status, std::vector<Answer>& answers) {
  const auto start = Clock::now();
  std::size_t next = 0;
  std::size_t in_engine = 0;
  auto on_done = [&](Answer answer) {
    --in_engine;
    status.Clear();
    PrintAnswer(answer, command, answers.size() + 1, prompts.size(),
                std::chrono::duration<double>(Clock::now() - start).count());
    answers.push_back(std::move(answer));
  };
  while (next < prompts.size() || in_engine > 0) {
    for (; next < prompts.size() && in_engine < command.parallel; ++next, ++in_engine) {
      if (command.settle) service.node->Drain(std::chrono::seconds(10));
      service.engine->Submit(prompts[next], on_done);
    }
    auto stepped = service.engine->Step();
    if (!stepped.ok()) return std::move(stepped).error();
    status.Update([&] {
      return fmt::format("{}{} of {} prompts answered; {}", command.progress_label, answers.size(),
                         prompts.size(), service.engine->Progress());
    });
  }
  // Lets the last requests' transfers end.
  for (bool more = true; more;) {
    auto stepped = service.engine->Step();
    if (!stepped.ok()) return std::move(stepped).error();
    more = stepped.value();
  }
  return {};
}

// Until all is on its way to the tiers; Ctrl-C ends the wait.
Result<void> DrainTiers(Node& node, StatusLine& status) {
  const auto start = Clock::now();
  while (!node.Drain(std::chrono::milliseconds(500))) {
    if (stop_requested.load()) return Error{ErrorCode::kCancelled, "stopped"};
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (elapsed > 60) {
      return Error{
          ErrorCode::kUnavailable,
          "write the last chunks to the secondary tiers: not done after 60 s; they will be "
          "recomputed"};
    }
    status.Update([] { return std::string("writing the last chunks to the tiers; at most 60 s"); });
  }
  return {};
}

Result<void> WriteJson(const std::string& path, const Json& json) {
  std::ofstream file(path);
  // A model's answer may end inside a character: such bytes become U+FFFD.
  file << json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) return Error{ErrorCode::kUnavailable, "write " + path + ": could not write all of it"};
  return {};
}

}  // namespace

int Fail(const Error& error) {
  std::fprintf(stderr, "terrace-llama: %s\n", error.message.c_str());
  switch (error.code) {
    case ErrorCode::kCancelled:
      return kExitStopped;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kCorrupt:
    case ErrorCode::kIncompatible:
      return kExitBadInput;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnavailable:
      return kExitFailed;
  }
  return kExitFailed;
}

Result<void> CheckCanWrite(const std::string& path) {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::app);
  if (file) return {};
  return Error{ErrorCode::kInvalidArgument, "write " + path + ": " + std::strerror(errno)};
}

int Run(const RunCommand& command) {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  // A reader that has gone, or a file that may not grow, is an error of a write.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);

  // Cheap checks first: nobody waits for a model to hear of a typing error.
  auto prompts = LoadPrompts(command.prompts_path, &stop_requested);
  if (!prompts.ok()) return Fail(prompts.error());
  if (auto writable = CheckCanWrite(command.json_path); !writable.ok()) {
    return Fail(writable.error());
  }
  StatusLine status;
  auto service = MakeService(command, status);
  if (!service.ok()) return Fail(service.error());
  Node& node = *service.value().node;

  std::vector<Answer> answers;
  auto served = Serve(service.value(), prompts.value(), command, status, answers);
  const EngineStats engine_stats = service.value().engine->stats();
  service.value().engine.reset();
  if (served.ok()) served = DrainTiers(node, status);
  ManagerStats stats;
  {
    ManagerRegion region(node.manager());
    stats = node.manager().Stats();
  }
  node.Shutdown();
  status.Clear();
  bool all_ok = true;
  Json json = {{"requests", Json::array()}};
  for (const Answer& answer : answers) {
    all_ok = all_ok && answer.error.empty();
    if (command.print_answers && answer.error.empty()) {
      std::printf("== %s\n%s\n", answer.id.c_str(),
                  service.value().runtime->Detokenize(answer.tokens).c_str());
    }
    json["requests"].push_back(AnswerToJson(answer, *service.value().runtime));
  }
  json["stats"] = StatsToJson(stats);
  json["engine"] = {{"steps", engine_stats.steps},
                    {"steps_of_several_prompts", engine_stats.steps_of_several},
                    {"steps_of_prefill_and_answers", engine_stats.mixed_steps}};
  if (!command.json_path.empty()) {
    if (auto written = WriteJson(command.json_path, json); !written.ok())
      return Fail(written.error());
  }
  if (served.ok()) return all_ok ? kExitOk : kExitFailed;
  Say("terrace-llama: {} of {} prompts were answered\n", answers.size(), prompts.value().size());
  return Fail(served.error());
}

}  // namespace terrace::llama
