#include "synthetic_engine.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace terrace::matrix {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

// One for each whole chunk, of all tokens up to its end.
std::vector<std::uint64_t> SeedsOf(const std::vector<Token>& tokens, std::uint32_t per_chunk) {
  std::vector<std::uint64_t> seeds;
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    state = Mix(state + static_cast<std::uint64_t>(tokens[i]) + 1);
    if ((i + 1) % per_chunk == 0) seeds.push_back(state);
  }
  return seeds;
}

// Calls visit(offset, word) for each 8 bytes of a chunk.
template <typename Visit>
void ForEachWord(std::uint64_t seed, std::size_t bytes, const Visit& visit) {
  std::uint64_t word = seed;
  for (std::size_t offset = 0; offset < bytes; offset += sizeof word) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    visit(offset, word);
  }
}

bool Holds(const std::vector<std::byte>& bytes, std::uint64_t seed) {
  std::uint64_t wrong = 0;
  ForEachWord(seed, bytes.size(), [&](std::size_t offset, std::uint64_t word) {
    std::uint64_t found = 0;
    std::memcpy(&found, bytes.data() + offset, sizeof found);
    wrong |= found ^ word;
  });
  return wrong == 0;
}

std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Uses processor time, not only time: what is taken from it makes it last longer.
void Burn(std::chrono::nanoseconds time) {
  const auto until = ThreadTime() + time;
  volatile std::uint64_t sink = 1;
  while (ThreadTime() < until) {
    std::uint64_t x = sink;
    for (int i = 0; i < 1000; ++i) x = Mix(x + 1);
    sink = x;
  }
}

}  // namespace

Result<void> SyntheticEngine::Memory::ReadChunk(std::span<const BlockId> blocks,
                                                std::span<std::byte> chunk) {
  std::memcpy(chunk.data(), Of(blocks[0]).data(), chunk.size());
  return {};
}

Result<void> SyntheticEngine::Memory::WriteChunk(std::span<const std::byte> chunk,
                                                 std::span<const BlockId> blocks) {
  std::memcpy(Of(blocks[0]).data(), chunk.data(), chunk.size());
  return {};
}

std::vector<BlockId> SyntheticEngine::Memory::Take(std::size_t count, std::uint64_t chunk_bytes) {
  std::vector<BlockId> taken;
  while (taken.size() < count) {
    if (free_.empty()) {
      free_.emplace_back(static_cast<std::int64_t>(blocks_.size()));
      blocks_.emplace_back(chunk_bytes);
    }
    taken.push_back(free_.back());
    free_.pop_back();
  }
  return taken;
}

void SyntheticEngine::Memory::GiveBack(const std::vector<BlockId>& blocks) {
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
}

SyntheticEngine::SyntheticEngine(const SyntheticOptions& options) : options_(options) {}
SyntheticEngine::~SyntheticEngine() { Close(); }

Result<void> SyntheticEngine::Open(const NodeConfig& config) {
  auto identity = CacheIdentity::Create({.model = "synthetic",
                                         .revision = "1",
                                         .dtype = "byte",
                                         .layout = "synthetic",
                                         .layout_version = 1,
                                         .tokens_per_chunk = options_.tokens_per_chunk,
                                         .chunk_bytes = options_.chunk_bytes,
                                         .shard_index = 0,
                                         .shard_count = 1,
                                         .engine = "terrace matrix"});
  if (!identity.ok()) return std::move(identity).error();
  auto node = Node::Create(config, identity.value());
  if (!node.ok()) return std::move(node).error();
  node_ = std::move(node).value();
  identity_ = identity.value().digest();
  worker_ = std::make_unique<Worker>(memory_, node_->host_slots());
  return {};
}

void SyntheticEngine::Close() {
  if (node_ == nullptr) return;
  node_->Shutdown();  // Gives up the open step. The worker's copies are all done at its end.
  for (const auto& request : requests_) memory_.GiveBack(request->blocks);
  requests_.clear();
  worker_.reset();
  node_.reset();
}

void SyntheticEngine::Submit(MatrixPrompt prompt, std::function<void(MatrixAnswer)> on_done) {
  auto request = std::make_unique<Request>();
  request->id = RequestId(next_request_++);
  request->submitted = Clock::now();
  request->prompt = std::move(prompt);
  request->on_done = std::move(on_done);
  request->seeds = SeedsOf(request->prompt.tokens, options_.tokens_per_chunk);
  // Here, since it is slow at first, and a step holds the manager's lock.
  request->blocks = memory_.Take(request->seeds.size(), options_.chunk_bytes);
  KeyChain chain({.identity = identity_,
                  .salt = "",
                  .adapter = "",
                  .group = 0,
                  .tokens_per_chunk = options_.tokens_per_chunk});
  chain.Append(request->prompt.tokens);
  RequestOptions options;
  options.prompt_tokens = request->size();
  options.route = request->prompt.route;
  if (!request->prompt.may_load) options.max_load_tokens = 0;
  node_->connector().OnNewRequest(request->id, options);
  node_->connector().AppendKeys(request->id, chain.keys());
  requests_.push_back(std::move(request));
}

Result<bool> SyntheticEngine::Step() {
  bool progressed = false;
  for (const auto& request : requests_) {
    if (request->phase == Phase::kWaiting && TryStart(*request)) progressed = true;
  }
  StepPlan plan = Plan();
  progressed = progressed || !plan.loads.empty() || !plan.stores.empty();
  worker_->SubmitLoads(std::move(plan.loads));
  worker_->SubmitStores(std::move(plan.stores));
  worker_->RunLoads(UINT64_MAX);
  for (const auto& request : requests_) progressed = progressed || request->scheduled > 0;
  RunModel();
  worker_->RunStores();
  CollectTransfers();
  progressed = ReleaseFinished() || progressed;
  if (!progressed && !requests_.empty()) node_->WaitForProgress(std::chrono::milliseconds(20));
  return !requests_.empty();
}

// False if it must wait for what is on its way to host memory.
bool SyntheticEngine::TryStart(Request& request) {
  Connector& connector = node_->connector();
  const MatchedTokens match = connector.GetMatchedTokens(request.id, 0, request.size() - 1);
  if (match.status == MatchedTokens::Status::kLater) return false;
  connector.UpdateAfterAlloc(request.id, request.blocks, 0, match.tokens);
  request.phase = Phase::kPrefill;
  if (match.tokens == 0) return true;
  const LoadedTokens loaded = connector.GetLoadedTokens(request.id);
  request.answer.fetched_tokens =
      loaded.total() - loaded.by_source[static_cast<std::size_t>(LoadSource::kHost)];
  request.loaded = match.tokens;
  request.phase = Phase::kLoading;
  return true;
}

// First come, first served, whole chunks as long as there are any.
StepPlan SyntheticEngine::Plan() {
  std::vector<ScheduledRequest> scheduled;
  std::uint32_t budget = options_.step_tokens;
  for (const auto& request : requests_) {
    request->scheduled = 0;
    if (request->phase != Phase::kPrefill) continue;
    std::uint32_t tokens = std::min(budget, request->size() - request->in_memory);
    if (request->in_memory + tokens < request->size()) {
      tokens -= tokens % options_.tokens_per_chunk;
    }
    if (tokens == 0) continue;
    budget -= tokens;
    request->scheduled = tokens;
    scheduled.push_back({request->id, {}, request->in_memory, tokens});
  }
  return node_->connector().BuildStep({.scheduled = scheduled, .preempted = {}});
}

void SyntheticEngine::RunModel() {
  const auto began = Clock::now();
  std::uint32_t tokens = 0;
  for (const auto& request : requests_) tokens += request->scheduled;
  if (tokens == 0) return;
  Burn(options_.step_time + tokens * options_.token_time);
  const std::uint32_t per_chunk = options_.tokens_per_chunk;
  for (const auto& request : requests_) {
    if (request->scheduled == 0) continue;
    const std::uint32_t end = request->in_memory + request->scheduled;
    for (std::uint32_t i = request->in_memory / per_chunk; i < end / per_chunk; ++i) {
      auto& bytes = memory_.Of(request->blocks[i]);
      ForEachWord(request->seeds[i], bytes.size(), [&](std::size_t offset, std::uint64_t word) {
        std::memcpy(bytes.data() + offset, &word, sizeof word);
      });
    }
    request->in_memory = end;
    request->answer.computed_tokens += request->scheduled;
    if (end == request->size()) Answer(*request);
  }
  work_.tokens += tokens;
  work_.step_s.push_back(SecondsSince(began));
  work_.last_end = Clock::now();
}

// A function of what is in KV memory; where that is not what the tokens give, so is this.
void SyntheticEngine::Answer(Request& request) {
  request.answer.ttft_s = SecondsSince(request.submitted);
  std::uint64_t state = request.size();
  for (std::size_t i = 0; i < request.seeds.size(); ++i) {
    const auto& bytes = memory_.Of(request.blocks[i]);
    request.answer.bytes_right = request.answer.bytes_right && Holds(bytes, request.seeds[i]);
    std::uint64_t last = 0;
    std::memcpy(&last, bytes.data() + bytes.size() - sizeof last, sizeof last);
    state = Mix(state + last);
  }
  for (std::uint32_t i = 0; i < request.prompt.answer_tokens; ++i) {
    request.answer.tokens.push_back(
        static_cast<Token>(Mix(state + i) % static_cast<std::uint64_t>(vocabulary_size())));
  }
  request.phase = Phase::kFinishing;
  node_->connector().OnRequestFinished(request.id, request.size());
}

void SyntheticEngine::CollectTransfers() {
  const std::vector<TransferResult> results = worker_->TakeFinished();
  for (const TransferResult& result : results) {
    for (const auto& request : requests_) {
      if (request->id != result.request || request->phase != Phase::kLoading) continue;
      request->in_memory = request->loaded;  // A copy in memory does not fail.
      request->phase = Phase::kPrefill;
    }
  }
  node_->connector().OnTransfersDone(results);
}

bool SyntheticEngine::ReleaseFinished() {
  bool released = false;
  for (auto& slot : requests_) {
    Request& request = *slot;
    if (request.phase != Phase::kFinishing) continue;
    released = true;  // Or the next step has something to do.
    if (node_->connector().HasTransfers(request.id)) continue;
    memory_.GiveBack(request.blocks);
    request.on_done(std::move(request.answer));
    slot.reset();
  }
  std::erase_if(requests_, [](const auto& request) { return request == nullptr; });
  return released;
}

}  // namespace terrace::matrix
