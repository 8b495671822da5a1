// The prompts file: JSON Lines, one prompt a line.
//
//   {"id": "q1", "prompt": "text", "max_tokens": 32}
//   {"id": "q2", "continues": "q1", "prompt": "more text"}      q1's tokens, its answer, then this
//   text
//   {"id": "q3", "tokens": [2, 818, 6824]}                      tokens instead of text
//
//   {"id": "q4", "prompt": "text", "salt": "tenant 1"}          shares chunks only with the same
//   salt
//
// "kv_transfer_params" names the nodes that have it or wait for it, as terrace/peer_route.h says.
//
// "cache" says who keeps KV for the prompt: "terrace" (default), "none" (nothing is looked up or
// kept: an engine without Terrace), or "keep" (nothing is looked up; what continues it takes over
// the sequence, as an engine does that keeps its own cache). "cuts": "chunk" (default) ends prefill
// steps on chunk boundaries, "free" does not (only with "none"); "cut_like" names an earlier prompt
// and adds a cut where that one's restored tokens ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/chunk_key.h"
#include "terrace/peer_route.h"
#include "terrace/result.h"

namespace terrace::llama {

enum class CacheMode : std::uint8_t { kTerrace, kNone, kKeep };
enum class Cuts : std::uint8_t { kChunk, kFree };

struct Prompt {
  std::string id;  // Unique in its file; "line N" if not given.
  std::string text;
  std::vector<Token> tokens;     // Instead of text, if not empty.
  std::string continues;         // An earlier prompt's id, or "".
  std::uint32_t max_tokens = 0;  // >= 1; 0: the run's default.
  CacheMode cache = CacheMode::kTerrace;
  Cuts cuts = Cuts::kChunk;
  std::string salt;                                  // "" for none.
  std::string cut_like;                              // An earlier prompt's id, or "".
  std::shared_ptr<const PeerRoute> route = nullptr;  // The nodes it concerns; null: nobody said.
  bool may_load = true;  // False: it is computed, and stored all the same. Not in the file.
};

// kInvalidArgument names every faulty line by number, at most 20 of them.
Result<std::vector<Prompt>> ParsePrompts(std::string_view jsonl, const std::string& file_name);
// The same for a file, "-" for standard input. kNotFound or kPermissionDenied if it cannot be read;
// kCancelled once `stop`, which may be null, is set by a signal.
Result<std::vector<Prompt>> LoadPrompts(const std::string& path, const std::atomic<bool>* stop);

}  // namespace terrace::llama
