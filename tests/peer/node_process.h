// A TestNode in a process of its own (peer_node_program.cc), to be killed, stopped and restarted.
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "terrace/chunk_key.h"
#include "tests/peer/test_node.h"

namespace terrace::testing {

// More than a data link asks for at a time.
inline constexpr std::size_t kPromptChunks = 32;
// A prompt's chunks are the same on every node.
std::vector<ChunkKey> PromptKeys(std::uint32_t prompt);

// Thread-compatible. Killed at the end, if it lives.
class NodeProcess {
 public:
  // Serves when this returns. Aborts if it can't.
  explicit NodeProcess(TestNodeOptions options);
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  std::uint32_t port() const { return options_.port; }
  std::shared_ptr<const PeerRoute> route() const { return RouteTo("127.0.0.1", port()); }
  // For "fetch".
  std::string address() const { return "127.0.0.1:" + std::to_string(port()); }

  // Without waiting for the answer.
  void Say(const std::string& line) { process_.Say(line); }
  // The next answer; "gone" if none comes any more, or within kPatience.
  std::string Hear() { return process_.Hear(); }
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  std::uint64_t AskNumber(const std::string& line) { return std::stoull(Ask(line)); }
  // Until it answers so; false after kPatience.
  bool Answers(const std::string& line, const std::string& answer);

  void Stop();  // As by SIGSTOP. Returns when none of its threads runs any more.
  void Continue();
  void Kill();  // Returns when it is gone.
  // The process that takes over is there, and waits. For a Restart() that must not be late.
  void Prepare();
  // On the same port, and at once: the process that takes over is there before this one is killed.
  // How long nobody served.
  std::chrono::milliseconds Restart();
  // What it has logged.
  std::string Log() const;

 private:
  struct Process {
    pid_t pid = -1;
    UniqueFd socket;
    std::string heard;  // Not yet a line.

    void Say(const std::string& line);
    std::string Hear();
    void Kill();
  };
  // One that has no node yet, and waits to be told to start.
  Process Spawn();
  void Start(Process process);

  TestNodeOptions options_;
  std::string log_path_;
  Process process_, next_;
};

}  // namespace terrace::testing
