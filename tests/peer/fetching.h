// A fetch that goes on while a test does something to one of the nodes, or to the network.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "tests/peer/node_process.h"
#include "tests/peer/test_node.h"

namespace terrace::testing {

// Far more than all deadlines of a fetch together, far less than none at all.
inline constexpr std::chrono::milliseconds kFewDeadlines{10 * kFetchMs};

// That this build has.
inline constexpr const char* kDataPlanes[] = {
    "shared_memory",
    "tcp",
#ifdef TERRACE_WITH_UCX
    "ucx",
#endif
};

// Fetches a prompt in a thread, to be waited for within kFewDeadlines.
class Fetching {
 public:
  Fetching(TestNode& node, std::shared_ptr<const PeerRoute> route, std::uint32_t prompt = 1)
      : thread_([&node, route = std::move(route), prompt, this] {
          const auto since = std::chrono::steady_clock::now();
          got_ = node.Fetch(PromptKeys(prompt), route);
          took_ = std::chrono::steady_clock::now() - since;
        }) {}
  // How many chunks came.
  std::size_t Wait() {
    thread_.join();
    EXPECT_LT(took_, kFewDeadlines);
    return got_;
  }

 private:
  std::size_t got_ = 0;
  std::chrono::nanoseconds took_{0};
  std::thread thread_;
};

}  // namespace terrace::testing
