// BuildInfo() stands here and not beside Version(), because it names the kinds of tier, and only
// node knows those.
#include <fmt/core.h>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <xxhash.h>
#include <zmq.h>

#include <msgpack/version.hpp>
#include <nlohmann/json.hpp>
#include <string_view>

#include "device/cuda_driver.h"
#include "node/build_labels.h"
#include "node/node_config_keys.h"
#include "terrace/version.h"
#include "tier/peer/peer_planes.h"

namespace terrace {
namespace {

static_assert(TERRACE_VERSION_MAJOR == TERRACE_PROJECT_VERSION_MAJOR &&
                  TERRACE_VERSION_MINOR == TERRACE_PROJECT_VERSION_MINOR &&
                  TERRACE_VERSION_PATCH == TERRACE_PROJECT_VERSION_PATCH,
              "version.h and CMakeLists.txt name different versions");

#define TERRACE_STRING_OF(token) #token
#define TERRACE_STRING(macro) TERRACE_STRING_OF(macro)
#if defined(__clang__)
constexpr std::string_view kCompiler = "clang " TERRACE_STRING(__clang_major__) "." TERRACE_STRING(
    __clang_minor__) "." TERRACE_STRING(__clang_patchlevel__);
#elif defined(__GNUC__)
constexpr std::string_view kCompiler = "gcc " __VERSION__;
#else
constexpr std::string_view kCompiler = "unknown";
#endif

std::string_view OrNone(std::string_view text) { return text.empty() ? "none" : text; }

// `number` as libraries encode it: major * 10000 + minor * 100 + patch.
std::string Decimal(unsigned number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string TierNames() {
  std::string names;
  for (const TierKind& kind : TierKinds()) {
    names += names.empty() ? "" : ", ";
    names += kind.name;
  }
  return names;
}

}  // namespace

MetricLabels BuildLabels() {
  return {{"version", Version()},
          {"compiler", std::string(kCompiler)},
          {"build_type", std::string(OrNone(TERRACE_BUILD_TYPE))},
          {"sanitizers", std::string(OrNone(TERRACE_SANITIZERS))},
          {"tiers", TierNames()}};
}

std::string BuildInfo() {
  // OpenSSL and xxHash are asked at run time: a shared one may be newer than its header was.
  std::string info;
  info += fmt::format("compiler: {}\n", kCompiler);
  info += fmt::format("build type: {}\n", OrNone(TERRACE_BUILD_TYPE));
  info += fmt::format("sanitizers: {}\n", OrNone(TERRACE_SANITIZERS));
  info += fmt::format("OpenSSL: {}\n", OpenSSL_version(OPENSSL_VERSION_STRING));
  info += fmt::format("xxHash: {}\n", Decimal(XXH_versionNumber()));
  info += fmt::format("spdlog: {}.{}.{}\n", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH);
  info += fmt::format("fmt: {}\n", Decimal(FMT_VERSION));
  info += fmt::format("nlohmann-json: {}.{}.{}\n", NLOHMANN_JSON_VERSION_MAJOR,
                      NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  int zmq_major = 0, zmq_minor = 0, zmq_patch = 0;
  zmq_version(&zmq_major, &zmq_minor, &zmq_patch);
  info += fmt::format("ZeroMQ: {}.{}.{}\n", zmq_major, zmq_minor, zmq_patch);
  info += fmt::format("msgpack: {}\n", MSGPACK_VERSION);
  info += fmt::format("CUDA: {}\n", CudaHeaderVersion());
  info += fmt::format("tiers: {}\n", TierNames());
  info += fmt::format("data planes of peers: {}\n", DataPlaneNames());
  return info;
}

}  // namespace terrace
