// What the matrix needs of an inference engine, so that it measures a real one and one that only
// takes time alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/node.h"
#include "terrace/peer_route.h"
#include "terrace/result.h"

namespace terrace::matrix {

struct MatrixPrompt {
  std::vector<Token> tokens;
  std::uint32_t answer_tokens = 1;
  std::shared_ptr<const PeerRoute> route = nullptr;
  bool may_load = true;  // False: it is computed, whatever is cached.
};

struct MatrixAnswer {
  std::string error;  // Empty if all went well.
  std::vector<Token> tokens;
  std::uint32_t fetched_tokens = 0;  // Of the prompt: loaded, and not from this node's memory.
  std::uint32_t computed_tokens = 0;
  double ttft_s = 0;  // From submission to the first token.
  // False if what was loaded is known not to be what was stored. An engine that can't tell by the
  // bytes tells by its answer.
  bool bytes_right = true;
};

// Of steps in which the model ran.
struct MatrixWork {
  std::uint64_t tokens = 0;
  std::vector<double> step_s;
  std::chrono::steady_clock::time_point last_end{};  // Of the last one ever.
};

// Confined to one thread.
class MatrixEngine {
 public:
  virtual ~MatrixEngine() = default;

  // Starts a node and takes up service with it; whatever is costly (a model) stays from node to
  // node. Pre: none is open.
  virtual Result<void> Open(const NodeConfig& config) = 0;
  // Drops everything under way, and the node. Nothing if none is open.
  virtual void Close() = 0;
  // Pre: open.
  virtual Node& node() = 0;

  virtual std::uint32_t tokens_per_chunk() const = 0;
  virtual std::uint64_t chunk_bytes() const = 0;
  // The model knows the tokens 0 to this one - 1.
  virtual Token vocabulary_size() const = 0;

  // `on_done` is called from Step(). Pre: open.
  virtual void Submit(MatrixPrompt prompt, std::function<void(MatrixAnswer)> on_done) = 0;
  // One scheduler step; an error is final. False once there is nothing left to do. It may wait some
  // milliseconds for a promotion if there is nothing else to do. Pre: open.
  virtual Result<bool> Step() = 0;
  // Since the last call.
  virtual MatrixWork TakeWork() = 0;
};

}  // namespace terrace::matrix
