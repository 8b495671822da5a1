// A node in a process of its own, driven by the lines that it reads. Arguments: data plane, dtype,
// port, more of the peer tier's configuration. It answers each line with one:
//   store P             ok
//   fetch P host:port   how many chunks of the prompt it has in the end
//   counter NAME        its value
//   left                what is pinned, promised or under way, or "-"
//   descriptors         how many are open, or "all" that it may have
//   cpu                 ms of processor time that the process has used
//   limit N             so many descriptors it may have from now on
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
  if (what == "store" || what == "fetch") {
    std::uint32_t prompt = 0;
    std::string from;
    words >> prompt >> from;
    if (what == "store") {
      node.Store(PromptKeys(prompt));
      return "ok";
    }
    const std::size_t colon = from.rfind(':');
    const auto route = RouteTo(from.substr(0, colon),
                               static_cast<std::uint32_t>(std::stoul(from.substr(colon + 1))));
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
  terrace::testing::TestNode node(options);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << terrace::testing::Do(node, line) << std::endl;
  }
  return 0;
}
