#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/version.h"

namespace terrace {
namespace {

TEST(BuildInfo, HasALineForEachThing) {
  const std::string number = "[0-9]+\\.[0-9]+\\.[0-9]+\n";
  EXPECT_THAT(
      BuildInfo(),
      testing::MatchesRegex(
          "compiler: (clang|gcc) [0-9].*\n"
          "build type: [A-Za-z]+\n"
          "sanitizers: [a-z,-]+\n"
          "OpenSSL: " +
          number + "xxHash: " + number + "spdlog: " + number + "fmt: " + number +
          "nlohmann-json: " + number + "ZeroMQ: " + number + "msgpack: " + number +
          "CUDA: (none|[0-9]+\\.[0-9]+)\n"
          "tiers: memory, file, peer, plugin\ndata planes of peers: shared_memory, (ucx, )?tcp\n"));
}

}  // namespace
}  // namespace terrace
