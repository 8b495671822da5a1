// A node in a process of its own, driven by the lines that it reads. Arguments: data plane, dtype,
// port, more of the peer tier's configuration. It says "here", and answers each line with one:
//   start                  ready: there is a node from now on
//   store P                ok
//   prefill P ID N         ok: the first N chunks are kept for the decoder of this transfer
//   fetch P host:port      how many chunks of the prompt it has in the end
//   decode P host:port ID  the same, of a prefiller
//   counter NAME           its value
//   left                   what is pinned, promised or under way, or "-"
//   descriptors            how many are open, or "all" that it may have
//   cpu                    ms of processor time that the process has used
//   limit N                so many descriptors it may have from now on
// It ends with its input.
#include <sys/resource.h>

#include <ctime>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/peer/node_process.h"
#include "tests/peer/test_node.h"

namespace terrace::testing {
namespace {

std::string Do(TestNode& node, const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  if (what == "store") {
    std::uint32_t prompt = 0;
    words >> prompt;
    node.Store(PromptKeys(prompt));
    return "ok";
  }
  if (what == "prefill") {
    std::uint32_t prompt = 0;
    std::string transfer;
    std::size_t count = 0;
    words >> prompt >> transfer >> count;
    node.Prefill(PromptKeys(prompt), transfer, count);
    return "ok";
  }
  if (what == "fetch" || what == "decode") {
    std::uint32_t prompt = 0;
    std::string from, transfer;
    words >> prompt >> from >> transfer;
    const std::size_t colon = from.rfind(':');
    const std::string host = from.substr(0, colon);
    const auto port = static_cast<std::uint32_t>(std::stoul(from.substr(colon + 1)));
    const auto route =
        what == "fetch" ? RouteTo(host, port) : RouteToPrefiller(host, port, transfer);
    return std::to_string(node.Fetch(PromptKeys(prompt), route));
  }
  if (what == "counter") {
    std::string name;
    words >> name;
    return std::to_string(node.Counter(name));
  }
  if (what == "left") {
    const std::string left = node.Leftovers();
    return left.empty() ? "-" : left;
  }
  if (what == "descriptors") {
    std::error_code error;
    const std::filesystem::directory_iterator open("/proc/self/fd", error);
    return error ? "all" : std::to_string(std::distance(begin(open), end(open)));
  }
  if (what == "cpu") {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::to_string(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
  }
  if (what == "limit") {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    words >> limit.rlim_cur;
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "ok" : "no";
  }
  return "what?";
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  terrace::testing::TestNodeOptions options;
  options.plane = argv[1];
  options.dtype = argv[2];
  options.port = static_cast<std::uint32_t>(std::stoul(argv[3]));
  options.more = argv[4];
  std::cout << "here" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 0;  // "start".
  terrace::testing::TestNode node(options);
  std::cout << "ready" << std::endl;
  while (std::getline(std::cin, line)) {
    std::cout << terrace::testing::Do(node, line) << std::endl;
  }
  return 0;
}
