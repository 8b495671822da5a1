// A loaded model and its context: what of llama.cpp the engine uses, with errors as Results.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llama.h"
#include "terrace/chunk_key.h"
#include "terrace/result.h"

namespace terrace::llama {

struct RuntimeOptions {
  std::string model_path;
  std::uint32_t context_tokens = 8192;  // KV cells over all sequences together.
  std::uint32_t sequences = 4;      // Running at once; one more is made for chunks on their way.
  std::uint32_t step_tokens = 512;  // Most tokens in one decode.
  std::uint32_t threads = 0;        // 0: one for each core.
  // Told how much of the model is loaded, 0 to 1. May be empty.
  std::function<void(float)> on_progress = {};
  // Set by a signal handler: ends loading, or a decode under way. May be null.
  const std::atomic<bool>* stop = nullptr;
};

// One token of a decode.
struct BatchToken {
  Token token;
  std::int32_t position;
  std::int32_t sequence;
  bool wants_logits;
};

enum class DecodeOutcome : std::uint8_t { kOk, kStopped };

// Confined to the engine's thread.
class LlamaRuntime {
 public:
  // kNotFound, kInvalidArgument (not a GGUF file, or the context does not fit the model),
  // kIncompatible (a model whose memory is not a plain KV cache). Cost: reads the model.
  static Result<std::unique_ptr<LlamaRuntime>> Create(const RuntimeOptions& options);

  // With the model's begin-of-text token in front if it has one and `add_special`.
  std::vector<Token> Tokenize(std::string_view text, bool add_special) const;
  std::string Detokenize(std::span<const Token> tokens) const;
  bool IsEndOfText(Token token) const;
  // The first token that the vocabulary does not have; -1 if it has all.
  Token FirstUnknown(std::span<const Token> tokens) const;

  // Runs the model over `batch`, at most step_tokens of them. An error leaves the KV memory as it
  // was, kStopped may not.
  Result<DecodeOutcome> Decode(std::span<const BatchToken> batch);
  // The most probable token after entry `index` of the last batch. Pre: it wanted logits.
  Token Greedy(std::size_t index) const;

  // Forgets positions from `from` on of a sequence.
  void Truncate(std::int32_t sequence, std::int32_t from);

  // Fingerprint of the weights: XXH3-128 of the whole model file, in hex. Cost: reads the file once
  // more (from the page cache).
  Result<std::string> WeightsFingerprint() const;
  // The model's own name for itself, or its file's name.
  std::string ModelName() const;

  llama_context* context() const { return context_.get(); }
  llama_model* model() const { return model_.get(); }
  const RuntimeOptions& options() const { return options_; }
  // The sequence that no request uses.
  std::int32_t scratch_sequence() const { return static_cast<std::int32_t>(options_.sequences); }

 private:
  struct FreeModel {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  struct FreeContext {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  LlamaRuntime() = default;

  RuntimeOptions options_;
  std::unique_ptr<llama_model, FreeModel> model_;
  std::unique_ptr<llama_context, FreeContext> context_;
  const llama_vocab* vocab_ = nullptr;
};

}  // namespace terrace::llama
