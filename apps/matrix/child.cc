#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

extern char** environ;

namespace terrace::matrix {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// Both ends close on exec; posix_spawn makes copies that do not.
Result<std::array<UniqueFd, 2>> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError("make a pipe", errno);
  return std::array<UniqueFd, 2>{UniqueFd(KeepAwayFromStdio(ends[0])),
                                 UniqueFd(KeepAwayFromStdio(ends[1]))};
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return std::string("was killed by ") + strsignal(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Result<std::unique_ptr<Child>> Child::Start(std::string name, const std::string& program,
                                            std::vector<std::string> arguments) {
  auto orders = MakePipe();
  if (!orders.ok()) return std::move(orders).error();
  auto answers = MakePipe();
  if (!answers.ok()) return std::move(answers).error();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, orders.value()[0].get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, answers.value()[1].get(), STDOUT_FILENO);
  std::vector<char*> argv;
  arguments.insert(arguments.begin(), program);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // A model's threads that wait for one another spinning keep the processor from the very thread
  // that they wait for; a node's log, but for warnings, does not belong between our lines.
  ::setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  ::setenv("TERRACE_LOG_LEVEL", "warning", /*overwrite=*/0);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError("start " + program, error);
  return std::unique_ptr<Child>(
      new Child(std::move(name), pid, std::move(orders.value()[1]), std::move(answers.value()[0])));
}

Child::~Child() {
  if (pid_ <= 0) return;
  orders_.Reset();  // It ends with its input.
  for (int i = 0; i < 100; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Error Child::Gone(const std::string& attempt) {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return {ErrorCode::kUnavailable, attempt + ": it " + HowItEnded(status)};
}

Result<Json> Child::Ask(const Json& order, std::chrono::milliseconds patience) {
  const std::string attempt = "tell " + name_ + " to " + order.value("do", "do something");
  if (pid_ <= 0) return Error{ErrorCode::kUnavailable, attempt + ": it has ended"};
  const std::string line = order.dump() + "\n";
  // Shorter than what a pipe takes at once.
  if (::write(orders_.get(), line.data(), line.size()) < 0) return Gone(attempt);
  const auto deadline = Clock::now() + patience;
  std::size_t end = std::string::npos;
  while ((end = received_.find('\n')) == std::string::npos) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd answer{answers_.get(), POLLIN, 0};
    const int ready =
        left.count() <= 0
            ? 0
            : ::poll(&answer, 1,
                     static_cast<int>(std::min<std::int64_t>(left.count() + 1, 60'000)));
    if (ready < 0 && errno != EINTR) return ErrnoError(attempt, errno);
    if (ready == 0 && Clock::now() >= deadline) {
      return Error{
          ErrorCode::kUnavailable,
          attempt + ": no answer after " +
              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience).count()) +
              " s"};
    }
    if (ready <= 0) continue;
    std::array<char, 65536> chunk{};
    const ssize_t size = ::read(answers_.get(), chunk.data(), chunk.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return Gone(attempt);
    received_.append(chunk.data(), static_cast<std::size_t>(size));
  }
  Json answer = Json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  received_.erase(0, end + 1);
  if (answer.is_discarded()) {
    return Error{ErrorCode::kUnavailable, attempt + ": it answered what is no JSON"};
  }
  if (answer.contains("error")) {
    return Error{ErrorCode::kUnavailable, attempt + ": " + answer["error"].get<std::string>()};
  }
  return answer;
}

}  // namespace terrace::matrix
