#include "engine.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace terrace::llama {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::uint64_t HashOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

Engine::Engine(LlamaRuntime& runtime, LlamaKv& kv, Node& node, const KeyScope& scope,
               const EngineOptions& options, const std::atomic<bool>* stop)
    : runtime_(runtime),
      kv_(kv),
      node_(node),
      scope_(scope),
      options_(options),
      stop_(stop),
      worker_(kv, node.host_slots()),
      scratch_chunk_(kv.chunk_bytes()) {
  for (std::uint32_t i = runtime.options().sequences; i > 0; --i) {
    free_sequences_.push_back(static_cast<std::int32_t>(i - 1));
  }
}

// Leaves nothing of its requests behind, whatever was under way: no pins, no reserved slots, no
// ids.
Engine::~Engine() {
  Connector& connector = node_.connector();
  connector.AbandonStep();
  for (const auto& request : running_) worker_.CancelLoads(request->id);
  worker_.FailStores("the engine stopped");
  connector.OnTransfersDone(worker_.TakeFinished());
  for (const auto* requests : {&waiting_, &running_}) {
    for (const auto& request : *requests) {
      if (request->chain && request->phase != Phase::kFinishing) {
        connector.OnRequestFinished(request->id, 0);
      }
    }
  }
  // Requests that finished in the last step may have stores planned here.
  worker_.SubmitStores(connector.BuildStep({}).stores);
  worker_.FailStores("the engine stopped");
  connector.OnTransfersDone(worker_.TakeFinished());
}

void Engine::Submit(const Prompt& prompt, std::function<void(Answer)> on_done) {
  auto request = std::make_unique<Request>();
  request->id = RequestId(next_request_++);
  request->prompt = prompt;
  request->on_done = std::move(on_done);
  request->submitted = Clock::now();
  request->max_tokens = prompt.max_tokens > 0 ? prompt.max_tokens : options_.max_tokens;
  request->answer.id = prompt.id;
  waiting_.push_back(std::move(request));
}

Engine::Request* Engine::Find(RequestId id) {
  for (const auto& request : running_) {
    if (request->id == id) return request.get();
  }
  return nullptr;
}

Result<bool> Engine::Step() {
  if (stop_ != nullptr && stop_->load()) return Error{ErrorCode::kCancelled, "stopped"};
  // Calls that take the manager's lock for themselves come before the step that holds it.
  for (auto& request : waiting_) {
    if (request->tokens.empty()) Prepare(request);
  }
  std::erase_if(waiting_, [](const auto& request) { return request == nullptr; });
  Admit();
  const std::vector<Piece> pieces = FillBatch();
  const StepPlan plan = Plan(pieces);
  worker_.SubmitLoads(plan.loads);
  worker_.SubmitStores(plan.stores);
  worker_.RunLoads(options_.load_bytes_per_step);
  CollectTransfers(plan);

  bool progressed = !plan.loads.empty() || !plan.stores.empty() || worker_.HasLoads();
  if (!pieces.empty()) {
    progressed = true;
    auto decoded = Decode(pieces);
    if (!decoded.ok()) return std::move(decoded).error();
  }
  worker_.RunStores();
  CollectTransfers(plan);
  progressed = ReleaseFinished() || progressed;
  if (!progressed && !waiting_.empty()) node_.WaitForProgress(std::chrono::milliseconds(20));
  return !waiting_.empty() || !running_.empty();
}

std::string Engine::Progress() const {
  if (running_.empty()) return "waiting for the cache";
  const Request& request = *running_.front();
  const std::string place = " of prompt " + request.prompt.id;
  switch (request.phase) {
    case Phase::kLoading:
      return "loading " + std::to_string(request.answer.loaded.total()) + " tokens" + place;
    case Phase::kPrefill:
      return "computed " + std::to_string(request.in_memory) + " of " +
             std::to_string(request.prompt_size) + " tokens" + place;
    default:
      return "answered with " + std::to_string(request.answer.tokens.size()) + " of " +
             std::to_string(request.max_tokens) + " tokens" + place;
  }
}

// Makes the prompt's tokens and names, once what it continues is finished. A prompt that cannot run
// is answered with an error.
void Engine::Prepare(std::unique_ptr<Request>& slot) {
  Request& request = *slot;
  const Prompt& prompt = request.prompt;
  std::vector<Token> tokens;
  if (!prompt.continues.empty()) {
    const auto before = finished_.find(prompt.continues);
    if (before == finished_.end()) return;
    tokens = before->second.tokens;
  }
  if (!prompt.cut_like.empty()) {
    const auto like = finished_.find(prompt.cut_like);
    if (like == finished_.end()) return;
    request.extra_cut = like->second.restored;
  }
  const bool starts = tokens.empty();
  const std::vector<Token> added =
      prompt.tokens.empty() ? runtime_.Tokenize(prompt.text, starts) : prompt.tokens;
  tokens.insert(tokens.end(), added.begin(), added.end());
  request.prompt_size = static_cast<std::uint32_t>(tokens.size());
  request.tokens = std::move(tokens);
  request.answer.prompt_tokens = request.tokens;

  std::string error;
  const std::uint32_t context = runtime_.options().context_tokens;
  if (request.tokens.empty()) {
    error = "the prompt has no tokens";
  } else if (std::uint64_t{request.prompt_size} + request.max_tokens > context) {
    error = "the prompt has " + std::to_string(request.prompt_size) +
            " tokens and may answer with " + std::to_string(request.max_tokens) +
            ", the context holds " + std::to_string(context) + ": raise --context, or shorten it";
  } else if (const Token bad = runtime_.FirstUnknown(request.tokens); bad >= 0) {
    error = "token " + std::to_string(bad) + " is not in the model's vocabulary";
  }
  if (!error.empty()) {
    request.answer.error = error;
    finished_[prompt.id] = {.tokens = request.tokens};
    request.on_done(std::move(request.answer));
    slot.reset();
    return;
  }
  if (prompt.cache != CacheMode::kTerrace) return;
  KeyScope scope = scope_;
  scope.salt = prompt.salt;
  request.chain = std::make_unique<KeyChain>(scope);
  request.chain->Append(request.tokens);
  RequestOptions options;
  options.prompt_tokens = request.prompt_size;
  options.route = prompt.route;
  if (!prompt.may_load) options.max_load_tokens = 0;
  node_.connector().OnNewRequest(request.id, options);
  TellKeys(request);
}

void Engine::TellKeys(Request& request) {
  const auto keys = request.chain->keys();
  if (keys.size() == request.keys_told) return;
  node_.connector().AppendKeys(request.id, keys.subspan(request.keys_told));
  request.keys_told = keys.size();
}

// First come, first served. Who waits for the cache or for a predecessor lets others pass; who
// waits for room does not, or large prompts would wait until there are no small ones.
void Engine::Admit() {
  bool room = true;
  for (auto& request : waiting_) {
    const bool ready = room && !request->tokens.empty();
    if (ready && running_.empty() && !HasRoomFor(*request)) DropKept();
    room = room && (!ready || HasRoomFor(*request));
    if (ready && room && TryStart(*request)) {
      running_.push_back(std::move(request));
    } else {
      ++request->answer.steps_waited;
    }
  }
  std::erase_if(waiting_, [](const auto& request) { return request == nullptr; });
}

std::uint32_t Engine::CellsInUse() const {
  std::uint32_t cells = kept_cells_;
  for (const auto& request : running_) cells += request->prompt_size + request->max_tokens;
  return cells;
}

bool Engine::HasRoomFor(const Request& request) const {
  const auto kept = finished_.find(request.prompt.continues);
  const bool takes_over = request.prompt.cache == CacheMode::kKeep && kept != finished_.end() &&
                          kept->second.kept_sequence >= 0;
  const std::uint32_t reused = takes_over ? kept->second.in_memory : 0;
  return (takes_over || !free_sequences_.empty()) &&
         CellsInUse() - reused + request.prompt_size + request.max_tokens <=
             runtime_.options().context_tokens;
}

// Kept sequences are worth less than going on.
void Engine::DropKept() {
  for (auto& [id, finished] : finished_) {
    if (finished.kept_sequence < 0) continue;
    runtime_.Truncate(finished.kept_sequence, 0);
    free_sequences_.push_back(std::exchange(finished.kept_sequence, -1));
    finished.in_memory = 0;
  }
  kept_cells_ = 0;
}

// Pre: there is room for it. False if it must wait for what is on its way to host memory.
bool Engine::TryStart(Request& request) {
  MatchedTokens match;
  if (request.chain) {
    match = node_.connector().GetMatchedTokens(request.id, 0, request.prompt_size - 1);
    if (match.status == MatchedTokens::Status::kLater) return false;
  }
  if (!TakeOverKept(request)) {
    request.sequence = free_sequences_.back();
    free_sequences_.pop_back();
  }
  request.phase = Phase::kPrefill;
  if (match.tokens > 0) StartLoad(request, match.tokens);
  return true;
}

bool Engine::TakeOverKept(Request& request) {
  if (request.prompt.cache != CacheMode::kKeep) return false;
  const auto kept = finished_.find(request.prompt.continues);
  if (kept == finished_.end() || kept->second.kept_sequence < 0) return false;
  const std::uint32_t usable = std::min(kept->second.in_memory, request.prompt_size - 1);
  request.sequence = std::exchange(kept->second.kept_sequence, -1);
  kept_cells_ -= std::exchange(kept->second.in_memory, 0);
  // Whole chunks, as a restored run has them, so that both go on with the same cuts.
  request.in_memory = usable / scope_.tokens_per_chunk * scope_.tokens_per_chunk;
  runtime_.Truncate(request.sequence, static_cast<std::int32_t>(request.in_memory));
  request.answer.kept_tokens = request.in_memory;
  return true;
}

void Engine::StartLoad(Request& request, std::uint32_t tokens) {
  std::vector<BlockId> blocks;
  TellBlocks(request, tokens, blocks);
  node_.connector().UpdateAfterAlloc(request.id, blocks, 0, tokens);
  request.answer.loaded = node_.connector().GetLoadedTokens(request.id);
  request.phase = Phase::kLoading;
}

// The blocks of the chunks up to `tokens` that the connector does not know yet.
void Engine::TellBlocks(Request& request, std::uint32_t tokens,
                        std::vector<BlockId>& blocks) const {
  const std::uint32_t chunks = (tokens + scope_.tokens_per_chunk - 1) / scope_.tokens_per_chunk;
  for (; request.blocks_told < chunks; ++request.blocks_told) {
    blocks.push_back(BlockOf(request.sequence, request.blocks_told));
  }
}

// One token of each answering request, then whole chunks of prefilling ones.
std::vector<Engine::Piece> Engine::FillBatch() {
  std::vector<Piece> pieces;
  batch_.clear();
  std::uint32_t budget = runtime_.options().step_tokens;
  auto add = [&](Request& request, std::uint32_t tokens) {
    pieces.push_back({&request, batch_.size(), tokens});
    budget -= tokens;
    for (std::uint32_t i = 0; i < tokens; ++i) {
      const std::uint32_t position = request.in_memory + i;
      batch_.push_back({request.tokens[position], static_cast<std::int32_t>(position),
                        request.sequence, position + 1 == request.tokens.size()});
    }
  };
  for (const auto& request : running_) {
    if (request->phase == Phase::kAnswering && budget > 0) add(*request, 1);
  }
  for (const auto& request : running_) {
    if (request->phase != Phase::kPrefill) continue;
    if (const std::uint32_t tokens = PieceTokens(*request, budget); tokens > 0)
      add(*request, tokens);
  }
  return pieces;
}

std::uint32_t Engine::PieceTokens(const Request& request, std::uint32_t budget) const {
  const std::uint32_t size = request.prompt_size;
  const std::uint32_t begin = request.in_memory;
  if (request.prompt.cuts == Cuts::kFree) return std::min(budget, size - begin);
  const std::uint32_t per_chunk = scope_.tokens_per_chunk;
  const std::uint32_t last_boundary = (size - 1) / per_chunk * per_chunk;
  std::uint32_t cut = begin < last_boundary ? last_boundary : size;
  if (request.extra_cut > begin) cut = std::min(cut, request.extra_cut);
  if (cut - begin <= budget) return cut - begin;
  const std::uint32_t end = (begin + budget) / per_chunk * per_chunk;
  return end > begin ? end - begin : 0;
}

StepPlan Engine::Plan(const std::vector<Piece>& pieces) {
  std::vector<ScheduledRequest> scheduled;
  std::vector<std::vector<BlockId>> blocks(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Request& request = *pieces[i].request;
    if (!request.chain) continue;
    TellBlocks(request, request.in_memory + pieces[i].tokens, blocks[i]);
    scheduled.push_back({request.id, blocks[i], request.in_memory, pieces[i].tokens});
  }
  return node_.connector().BuildStep({.scheduled = scheduled, .preempted = {}});
}

void Engine::CollectTransfers(const StepPlan& plan) {
  const std::vector<TransferResult> results = worker_.TakeFinished();
  for (const TransferResult& result : results) {
    Request* request = Find(result.request);
    if (request == nullptr) continue;
    if (request->phase == Phase::kLoading) {
      OnLoadDone(*request, result);
    } else {
      OnStoreDone(*request, result, plan);
    }
  }
  node_.connector().OnTransfersDone(results);
}

void Engine::OnLoadDone(Request& request, const TransferResult& result) {
  request.phase = Phase::kPrefill;
  if (result.outcome == CopyOutcome::kOk) {
    request.in_memory = request.answer.loaded.total();
    request.answer.bytes_loaded = result.bytes;
    return;
  }
  std::fprintf(stderr, "terrace-llama: prompt %s is recomputed: %s\n", request.prompt.id.c_str(),
               result.error.c_str());
  runtime_.Truncate(request.sequence, 0);
  request.answer.loaded = {};
}

void Engine::OnStoreDone(Request& request, const TransferResult& result, const StepPlan& plan) {
  if (result.outcome == CopyOutcome::kFailed) {
    std::fprintf(stderr, "terrace-llama: chunks of prompt %s are not kept: %s\n",
                 request.prompt.id.c_str(), result.error.c_str());
    return;
  }
  request.answer.bytes_stored += result.bytes;
  if (!options_.verify) return;
  for (const EngineJob& job : plan.stores) {
    if (job.id != result.id) continue;
    for (const ChunkCopy& copy : job.chunks) {
      const std::uint32_t index = ChunkIndexOf(copy.blocks[0]);
      request.answer.stored.push_back(
          {request.chain->keys()[index], HashOf(node_.host_slots().Slot(copy.slot))});
    }
  }
}

void Engine::CountStep(const std::vector<Piece>& pieces) {
  const auto answering = std::count_if(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.request->phase == Phase::kAnswering;
  });
  ++stats_.steps;
  stats_.tokens += batch_.size();
  if (pieces.size() > 1) ++stats_.steps_of_several;
  if (answering > 0 && static_cast<std::size_t>(answering) < pieces.size()) ++stats_.mixed_steps;
}

Result<void> Engine::Decode(const std::vector<Piece>& pieces) {
  CountStep(pieces);
  const auto began = Clock::now();
  auto outcome = runtime_.Decode(batch_);
  stats_.last_end = Clock::now();
  stats_.model_time += stats_.last_end - began;
  if (outcome.ok() && outcome.value() == DecodeOutcome::kOk) {
    TakeTokens(pieces);
    return {};
  }
  worker_.FailStores("the model step did not run");
  if (outcome.ok()) return Error{ErrorCode::kCancelled, "stopped"};
  for (const Piece& piece : pieces) Finish(*piece.request, outcome.error().message);
  return {};
}

void Engine::TakeTokens(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    Request& request = *piece.request;
    request.in_memory += piece.tokens;
    if (request.in_memory < request.tokens.size()) continue;
    if (request.phase == Phase::kPrefill) {
      request.phase = Phase::kAnswering;
      request.answer.ttft_s = SecondsSince(request.submitted);
    }
    AddToken(request, runtime_.Greedy(piece.first_index + piece.tokens - 1));
  }
}

void Engine::AddToken(Request& request, Token token) {
  request.tokens.push_back(token);
  request.answer.tokens.push_back(token);
  if (request.chain) {
    request.chain->Append({&token, 1});
    TellKeys(request);
  }
  const bool ended = !options_.ignore_end_of_text && runtime_.IsEndOfText(token);
  if (ended || request.answer.tokens.size() >= request.max_tokens) Finish(request, "");
}

// What it computed last is planned for storing in the next step; until that is done it keeps its
// sequence.
void Engine::Finish(Request& request, std::string error) {
  request.phase = Phase::kFinishing;
  request.answer.error = std::move(error);
  request.answer.total_s = SecondsSince(request.submitted);
  request.answer.computed_tokens =
      request.prompt_size - request.answer.loaded.total() - request.answer.kept_tokens;
  if (request.chain) node_.connector().OnRequestFinished(request.id, request.in_memory);
}

bool Engine::ReleaseFinished() {
  bool released = false;
  for (auto& slot : running_) {
    Request& request = *slot;
    if (request.phase != Phase::kFinishing) continue;
    if (request.chain && node_.connector().HasTransfers(request.id)) {
      released = true;  // The next step has something to do.
      continue;
    }
    if (options_.verify) HashRestored(request);
    Finished finished{.tokens = std::move(request.tokens),
                      .restored = request.answer.loaded.total()};
    if (request.prompt.cache == CacheMode::kKeep) {
      finished.kept_sequence = request.sequence;
      finished.in_memory = request.in_memory;
      kept_cells_ += request.in_memory;
    } else {
      runtime_.Truncate(request.sequence, 0);
      free_sequences_.push_back(request.sequence);
    }
    finished_[request.prompt.id] = std::move(finished);
    request.on_done(std::move(request.answer));
    slot.reset();
    released = true;
  }
  std::erase_if(running_, [](const auto& request) { return request == nullptr; });
  return released;
}

void Engine::HashRestored(Request& request) {
  const std::uint32_t chunks = request.answer.loaded.total() / scope_.tokens_per_chunk;
  for (std::uint32_t i = 0; i < chunks; ++i) {
    const BlockId block = BlockOf(request.sequence, i);
    const auto read = kv_.ReadChunk({&block, 1}, scratch_chunk_);
    request.answer.restored.push_back(
        {request.chain->keys()[i], read.ok() ? HashOf(scratch_chunk_) : 0});
  }
}

}  // namespace terrace::llama
