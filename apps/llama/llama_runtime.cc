#include "llama_runtime.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace terrace::llama {
namespace {

// llama.cpp explains a failure only in its log: the last lines are kept for our messages, the rest
// is for TERRACE_LLAMA_LOG=1.
std::string& LastLogLines() {
  static std::string lines;
  return lines;
}

void KeepLog(ggml_log_level level, const char* text, void* /*unused*/) {
  static const bool show = std::getenv("TERRACE_LLAMA_LOG") != nullptr;
  if (show) std::fputs(text, stderr);
  if (level < GGML_LOG_LEVEL_ERROR) return;
  std::string& lines = LastLogLines();
  lines += text;
  if (lines.size() > 400) lines.erase(0, lines.size() - 400);
}

std::string TakeLog() {
  std::string lines = std::exchange(LastLogLines(), {});
  std::replace(lines.begin(), lines.end(), '\n', ' ');
  while (!lines.empty() && lines.back() == ' ') lines.pop_back();
  return lines.empty() ? "llama.cpp gave no reason" : lines;
}

Result<void> CheckIsGguf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Error{ErrorCode::kNotFound, "load model " + path + ": no such file"};
  }
  if (std::filesystem::is_directory(path, error)) {
    return Error{ErrorCode::kInvalidArgument,
                 "load model " + path + ": is a directory, not a GGUF file"};
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Error{ErrorCode::kPermissionDenied, "load model " + path + ": " + std::strerror(errno)};
  }
  char magic[4] = {};
  file.read(magic, sizeof magic);
  if (!file || std::memcmp(magic, "GGUF", 4) != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "load model " + path + ": not a GGUF file (it does not start with \"GGUF\")"};
  }
  return {};
}

// Returns false to give up loading.
bool TellProgress(float done, void* user_data) {
  const auto& options = *static_cast<const RuntimeOptions*>(user_data);
  if (options.on_progress) options.on_progress(done);
  return options.stop == nullptr || !options.stop->load();
}

bool ShouldStop(void* stop) { return static_cast<const std::atomic<bool>*>(stop)->load(); }

}  // namespace

Result<std::unique_ptr<LlamaRuntime>> LlamaRuntime::Create(const RuntimeOptions& options) {
  if (auto gguf = CheckIsGguf(options.model_path); !gguf.ok()) return std::move(gguf).error();
  static const bool backend = [] {
    llama_log_set(KeepLog, nullptr);
    llama_backend_init();
    return true;
  }();
  (void)backend;
  std::unique_ptr<LlamaRuntime> runtime(new LlamaRuntime());
  runtime->options_ = options;
  if (runtime->options_.threads == 0) {
    runtime->options_.threads = std::max(1U, std::thread::hardware_concurrency());
  }
  TakeLog();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model_params.progress_callback = TellProgress;
  model_params.progress_callback_user_data = const_cast<RuntimeOptions*>(&options);
  runtime->model_.reset(llama_model_load_from_file(options.model_path.c_str(), model_params));
  if (options.stop != nullptr && options.stop->load()) {
    return Error{ErrorCode::kCancelled, "stopped"};
  }
  if (!runtime->model_) {
    return Error{ErrorCode::kInvalidArgument,
                 "load model " + options.model_path + ": " + TakeLog()};
  }
  const llama_model* model = runtime->model_.get();
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
      llama_model_has_encoder(model)) {
    return Error{ErrorCode::kIncompatible, "load model " + options.model_path +
                                               ": it keeps recurrent or encoder state, and Terrace "
                                               "stores plain attention caches only"};
  }
  const auto trained = static_cast<std::uint32_t>(llama_model_n_ctx_train(model));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_tokens;
  params.n_batch = params.n_ubatch = options.step_tokens;
  params.n_seq_max = options.sequences + 1;
  params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(runtime->options_.threads);
  // What makes a chunk of one sequence movable: one pool of cells for all sequences, all positions
  // kept also in sliding-window layers, and values not transposed.
  params.kv_unified = true;
  params.swa_full = true;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (options.stop != nullptr) {
    params.abort_callback = ShouldStop;
    params.abort_callback_data = const_cast<std::atomic<bool>*>(options.stop);
  }
  runtime->context_.reset(llama_init_from_model(runtime->model_.get(), params));
  if (!runtime->context_) {
    return Error{ErrorCode::kInvalidArgument,
                 "make a context of " + std::to_string(options.context_tokens) + " tokens for " +
                     options.model_path + " (trained with " + std::to_string(trained) +
                     "): " + TakeLog()};
  }
  runtime->vocab_ = llama_model_get_vocab(model);
  return runtime;
}

std::vector<Token> LlamaRuntime::Tokenize(std::string_view text, bool add_special) const {
  std::vector<Token> tokens(text.size() + 8);
  std::int32_t count =
      llama_tokenize(vocab_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), add_special, false);
  if (count < 0) {
    tokens.resize(static_cast<std::size_t>(-count));
    count =
        llama_tokenize(vocab_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                       static_cast<std::int32_t>(tokens.size()), add_special, false);
  }
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

std::string LlamaRuntime::Detokenize(std::span<const Token> tokens) const {
  std::string text;
  char piece[256];
  for (Token token : tokens) {
    const std::int32_t size = llama_token_to_piece(vocab_, token, piece, sizeof piece, 0, false);
    if (size > 0) text.append(piece, static_cast<std::size_t>(size));
  }
  return text;
}

bool LlamaRuntime::IsEndOfText(Token token) const { return llama_vocab_is_eog(vocab_, token); }

Token LlamaRuntime::FirstUnknown(std::span<const Token> tokens) const {
  const Token size = llama_vocab_n_tokens(vocab_);
  const auto found = std::find_if(tokens.begin(), tokens.end(),
                                  [size](Token token) { return token < 0 || token >= size; });
  return found == tokens.end() ? -1 : *found;
}

Result<DecodeOutcome> LlamaRuntime::Decode(std::span<const BatchToken> batch) {
  llama_batch raw = llama_batch_init(static_cast<std::int32_t>(batch.size()), 0, 1);
  raw.n_tokens = static_cast<std::int32_t>(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    raw.token[i] = batch[i].token;
    raw.pos[i] = batch[i].position;
    raw.n_seq_id[i] = 1;
    raw.seq_id[i][0] = batch[i].sequence;
    raw.logits[i] = batch[i].wants_logits;
  }
  TakeLog();
  const std::int32_t code = llama_decode(context_.get(), raw);
  llama_batch_free(raw);
  if (code == 0) return DecodeOutcome::kOk;
  if (code == 2 || (options_.stop != nullptr && options_.stop->load()))
    return DecodeOutcome::kStopped;
  return Error{ErrorCode::kUnavailable, "run the model over " + std::to_string(batch.size()) +
                                            " tokens: llama_decode returned " +
                                            std::to_string(code) + ", " + TakeLog()};
}

Token LlamaRuntime::Greedy(std::size_t index) const {
  const float* logits = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(index));
  return static_cast<Token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab_)) -
                            logits);
}

void LlamaRuntime::Truncate(std::int32_t sequence, std::int32_t from) {
  llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, from, -1);
}

Result<std::string> LlamaRuntime::WeightsFingerprint() const {
  const std::string& path = options_.model_path;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    const int saved = errno;
    if (fd >= 0) ::close(fd);
    return Error{ErrorCode::kUnavailable, "fingerprint " + path + ": " + std::strerror(saved)};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (bytes == MAP_FAILED) {
    return Error{ErrorCode::kUnavailable, "fingerprint " + path + ": " + std::strerror(errno)};
  }
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  ::munmap(bytes, size);
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return std::string(hex);
}

std::string LlamaRuntime::ModelName() const {
  char name[256];
  if (llama_model_meta_val_str(model_.get(), "general.name", name, sizeof name) > 0) return name;
  return std::filesystem::path(options_.model_path).filename().string();
}

}  // namespace terrace::llama
