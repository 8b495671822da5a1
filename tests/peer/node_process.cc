#include "tests/peer/node_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/support/keys.h"

extern char** environ;

namespace terrace::testing {

std::vector<ChunkKey> PromptKeys(std::uint32_t prompt) {
  return testing_support::Keys(1 + std::uint64_t{1000} * prompt, kPromptChunks);
}

NodeProcess::NodeProcess(TestNodeOptions options) : options_(std::move(options)) {
  if (options_.port == 0) options_.port = FreePort();
  std::string path = "/tmp/terrace-peer-node-XXXXXX";
  const UniqueFd made(::mkstemp(path.data()));
  if (!made.valid()) std::abort();
  log_path_ = path;
  Start(Spawn());
}

NodeProcess::~NodeProcess() {
  Kill();
  next_.Kill();
  ::unlink(log_path_.c_str());
}

NodeProcess::Process NodeProcess::Spawn() {
  Process spawned;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const UniqueFd theirs(ends[1]);
  spawned.socket = UniqueFd(ends[0]);
  const timeval patience{std::chrono::seconds(kPatience).count(), 0};
  (void)::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_path_.c_str(),
                                     O_WRONLY | O_APPEND, 0);
  std::string port = std::to_string(options_.port);
  std::string program = PEER_NODE_PROGRAM;
  char* const argv[] = {program.data(), options_.plane.data(), options_.dtype.data(),
                        port.data(),    options_.more.data(),  nullptr};
  if (::posix_spawn(&spawned.pid, PEER_NODE_PROGRAM, &actions, nullptr, argv, environ) != 0) {
    std::abort();
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (spawned.Hear() != "here") std::abort();
  return spawned;
}

void NodeProcess::Start(Process process) {
  process_ = std::move(process);
  if (Ask("start") != "ready") {
    std::fprintf(stderr, "a node does not start: %s\n", Log().c_str());
    std::abort();
  }
}

void NodeProcess::Process::Say(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

std::string NodeProcess::Process::Hear() {
  for (;;) {
    if (const std::size_t end = heard.find('\n'); end != std::string::npos) {
      std::string line = heard.substr(0, end);
      heard.erase(0, end + 1);
      return line;
    }
    char bytes[256];
    const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (got <= 0) return "gone";
    heard.append(bytes, static_cast<std::size_t>(got));
  }
}

bool NodeProcess::Answers(const std::string& line, const std::string& answer) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const std::string heard = Ask(line);
    if (heard == answer) return true;
    if (heard == "gone") return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void NodeProcess::Stop() {
  ::kill(process_.pid, SIGSTOP);
  ::waitpid(process_.pid, nullptr, WUNTRACED);
}

void NodeProcess::Continue() { ::kill(process_.pid, SIGCONT); }

void NodeProcess::Process::Kill() {
  if (pid <= 0) return;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  pid = -1;
}

void NodeProcess::Kill() { process_.Kill(); }

void NodeProcess::Prepare() {
  if (next_.pid <= 0) next_ = Spawn();
}

std::chrono::milliseconds NodeProcess::Restart() {
  Prepare();
  const auto since = std::chrono::steady_clock::now();
  Kill();
  Start(std::exchange(next_, {}));
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               since);
}

std::string NodeProcess::Log() const {
  std::ifstream file(log_path_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace terrace::testing
