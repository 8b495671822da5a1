#include "matrix_node.h"

#include <memory>
#include <optional>
#include <utility>

#include "engine.h"
#include "identity.h"
#include "llama_kv.h"
#include "llama_runtime.h"
#include "matrix_engine.h"
#include "node_process.h"
#include "run_command.h"

namespace terrace::llama {
namespace {

constexpr std::uint32_t kTokensPerChunk = 64;
// The prompt that is measured, and two that keep the source busy.
constexpr std::uint32_t kSequences = 3;
constexpr std::uint32_t kStepTokens = 512;

class MatrixEngine final : public matrix::MatrixEngine {
 public:
  static Result<std::unique_ptr<MatrixEngine>> Create(const MatrixNodeCommand& command);
  ~MatrixEngine() override { Close(); }

  Result<void> Open(const NodeConfig& config) override;
  void Close() override;
  Node& node() override { return *node_; }
  std::uint32_t tokens_per_chunk() const override { return kTokensPerChunk; }
  std::uint64_t chunk_bytes() const override { return kv_->chunk_bytes(); }
  Token vocabulary_size() const override {
    return llama_vocab_n_tokens(llama_model_get_vocab(runtime_->model()));
  }
  void Submit(matrix::MatrixPrompt prompt,
              std::function<void(matrix::MatrixAnswer)> on_done) override;
  Result<bool> Step() override;
  matrix::MatrixWork TakeWork() override {
    return std::exchange(work_, {.tokens = 0, .step_s = {}, .last_end = work_.last_end});
  }

 private:
  MatrixEngine() = default;

  // In order of construction: each is used by those below it.
  std::unique_ptr<LlamaRuntime> runtime_;
  std::unique_ptr<LlamaKv> kv_;
  std::optional<CacheIdentity> identity_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Engine> engine_;
  matrix::MatrixWork work_;
};

Result<std::unique_ptr<MatrixEngine>> MatrixEngine::Create(const MatrixNodeCommand& command) {
  std::unique_ptr<MatrixEngine> engine(new MatrixEngine());
  auto runtime = LlamaRuntime::Create({.model_path = command.model_path,
                                       .context_tokens = command.context_tokens,
                                       .sequences = kSequences,
                                       .step_tokens = kStepTokens,
                                       .threads = command.threads});
  if (!runtime.ok()) return std::move(runtime).error();
  engine->runtime_ = std::move(runtime).value();
  auto kv = LlamaKv::Create(*engine->runtime_, kTokensPerChunk);
  if (!kv.ok()) return std::move(kv).error();
  engine->kv_ = std::move(kv).value();
  auto identity = MakeIdentity(*engine->runtime_, *engine->kv_, kTokensPerChunk);
  if (!identity.ok()) return std::move(identity).error();
  engine->identity_ = std::move(identity).value();
  return engine;
}

Result<void> MatrixEngine::Open(const NodeConfig& config) {
  auto node = Node::Create(config, *identity_);
  if (!node.ok()) return std::move(node).error();
  node_ = std::move(node).value();
  const KeyScope scope{.identity = identity_->digest(),
                       .salt = "",
                       .adapter = "",
                       .group = 0,
                       .tokens_per_chunk = kTokensPerChunk};
  engine_ = std::make_unique<Engine>(*runtime_, *kv_, *node_, scope,
                                     EngineOptions{.ignore_end_of_text = true}, nullptr);
  return {};
}

void MatrixEngine::Close() {
  engine_.reset();
  if (node_ != nullptr) node_->Shutdown();
  node_.reset();
  // What requests that were dropped left there.
  for (std::uint32_t i = 0; runtime_ != nullptr && i < kSequences; ++i) {
    runtime_->Truncate(static_cast<std::int32_t>(i), 0);
  }
}

void MatrixEngine::Submit(matrix::MatrixPrompt prompt,
                          std::function<void(matrix::MatrixAnswer)> on_done) {
  Prompt request;
  request.id = "matrix";
  request.tokens = std::move(prompt.tokens);
  request.max_tokens = prompt.answer_tokens;
  request.route = std::move(prompt.route);
  request.may_load = prompt.may_load;
  engine_->Submit(request, [on_done = std::move(on_done)](Answer done) {
    matrix::MatrixAnswer answer;
    answer.error = std::move(done.error);
    answer.tokens = std::move(done.tokens);
    answer.fetched_tokens =
        done.loaded.total() - done.loaded.by_source[static_cast<std::size_t>(LoadSource::kHost)];
    answer.computed_tokens = done.computed_tokens;
    answer.ttft_s = done.ttft_s;
    on_done(std::move(answer));
  });
}

Result<bool> MatrixEngine::Step() {
  const EngineStats before = engine_->stats();
  auto stepped = engine_->Step();
  const EngineStats& after = engine_->stats();
  if (after.steps == before.steps) return stepped;
  work_.tokens += after.tokens - before.tokens;
  work_.step_s.push_back(
      std::chrono::duration<double>(after.model_time - before.model_time).count());
  work_.last_end = after.last_end;
  return stepped;
}

}  // namespace

int RunMatrixNode(const MatrixNodeCommand& command) {
  auto engine = MatrixEngine::Create(command);
  if (!engine.ok()) return Fail(engine.error());
  return matrix::RunNodeProcess(*engine.value());
}

}  // namespace terrace::llama
