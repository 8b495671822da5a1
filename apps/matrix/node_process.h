// One of the matrix's two processes: a node with an engine, told what to do over a pipe.
//
// A line of JSON on standard input for each order, one on standard output for each answer, in
// order; standard error is for people. It ends with its input.
//
//   {"do": "open", "interval_s": 0.001, "data_plane": "auto", "control_priority": "high",
//    "huge_pages": "off", "host_tokens": N}
//       -> {"port": N, "tokens_per_chunk": N, "chunk_bytes": N}  a new node, which has no work; the
//       one before is closed
//   {"do": "prompt", "seed": 7, "tokens": 1025, "answer_tokens": 8, "may_load": true,
//    "peer": {"host": "127.0.0.1", "port": N}}    -> the answer, when it is there
//   {"do": "busy", "tokens": 2048}                -> {} at once
//   {"do": "rest"}, {"do": "go_on"}               -> {}: no step between the two
//   {"do": "work"}                                -> what the engine has done since the last time
//   {"do": "forget"}                              -> {}: what is in host memory
//   {"do": "flood", "port": N, "ms": N}           -> {"answered": N}: look-ups, see flood.h
//   {"do": "stats"}                               -> what the manager has counted
//   {"do": "raw_serve", "bytes": N}               -> where raw_ping and raw_copy connect to
//   {"do": "raw_ping", ...}, {"do": "raw_copy", ...}   -> {"s": [...]}
//   {"do": "stop"}                                -> {}
// An order that fails is answered with {"error": "..."}.
#pragma once

#include <cstdint>
#include <string>

#include "matrix_engine.h"

namespace terrace::matrix {

// Of both nodes.
struct NodeSettings {
  double interval_s = 0.001;  // Of the control thread; 0: none.
  std::string data_plane = "auto";
  std::string control_priority = "high";
  std::string huge_pages = "off";
  std::uint64_t host_bytes = 0;
  std::uint16_t port = 0;
};
NodeConfig NodeConfigOf(const NodeSettings& settings, std::uint32_t tokens_per_chunk);

// Until the input ends or says stop. The exit status.
int RunNodeProcess(MatrixEngine& engine);

}  // namespace terrace::matrix
