// PeerTier::Create(): the real network, the planes of this build, keys from their file.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fd.h"
#include "base/log.h"
#include "tier/peer/peer_options.h"
#include "tier/peer/peer_planes.h"
#include "tier/peer/peer_tier.h"
#include "tier/peer/zmq_network.h"

namespace terrace {
namespace {

constexpr std::size_t kKeyChars = 40;        // Z85 of 32 bytes.
constexpr std::uint32_t kStrangersMax = 64;  // Connections that are no peers, or not yet.

std::uint64_t SystemRandom() {
  std::uint64_t number = 0;
  TERRACE_CHECK(::getrandom(&number, sizeof(number), 0) == sizeof(number), "no random numbers");
  return number;
}

// A line of Z85; the file is this user's alone.
Result<std::string> ReadSecretKey(const std::string& path) {
  const std::string attempt = "read secret_key_file " + path;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(attempt, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(attempt, errno);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{ErrorCode::kPermissionDenied, attempt + ": others can read it too; chmod 600 it"};
  }
  std::string text(4 * kKeyChars, '\0');
  const ssize_t size = ::read(fd.get(), text.data(), text.size());
  if (size < 0) return ErrnoError(attempt, errno);
  text.resize(static_cast<std::size_t>(size));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  if (text.size() != kKeyChars) {
    return Error{ErrorCode::kInvalidArgument, attempt + ": a key has " + std::to_string(kKeyChars) +
                                                  " characters, this has " +
                                                  std::to_string(text.size())};
  }
  return text;
}

Result<void> CheckConfig(const PeerTierConfig& config) {
  std::string faults;
  for (const auto& [key, fault] : FaultsOf(config)) {
    faults += (faults.empty() ? "" : "\n") + key + " " + fault;
  }
  if (!faults.empty()) return Error{ErrorCode::kInvalidArgument, faults};
  return {};
}

}  // namespace

Result<std::unique_ptr<PeerTier>> PeerTier::Create(const PeerTierConfig& config, TierHost& host) {
  if (auto checked = CheckConfig(config); !checked) return std::move(checked).error();
  ZmqNetworkOptions options;
  options.host = config.host;
  options.port = static_cast<std::uint16_t>(config.port);
  options.public_key = config.public_key;
  options.message_bytes_max = kPeerMessageBytesMax;
  options.connect_timeout_ms = config.connect_timeout_ms;
  options.callers_max = 2 * config.max_peers + kStrangersMax;
  if (!config.secret_key_file.empty()) {
    auto secret = ReadSecretKey(config.secret_key_file);
    if (!secret.ok()) return std::move(secret).error();
    options.secret_key = std::move(secret).value();
  }
  auto network = ZmqNetwork::Create(options);
  if (!network.ok()) return std::move(network).error();

  PeerTierParts parts;
  parts.random = SystemRandom;
  parts.leases = std::make_unique<LeaseTable>(
      LeaseTable::Options{.lease_time = std::chrono::milliseconds(config.lease_ms)});
  parts.network = std::move(network).value();
  DataPlaneContext context;
  context.host = &host;
  context.leases = parts.leases.get();
  context.listen_host = config.host;
  context.listen_port = static_cast<std::uint16_t>(config.data_port);
  context.links_max = config.max_peers;
  context.on_event = [&host] { host.NotifyProgress(); };
  auto planes = MakeDataPlanes(config.data_plane, context);
  if (!planes.ok()) return std::move(planes).error();
  parts.planes = std::move(planes).value();
  TERRACE_LOG_INFO("peer tier: listens on {}:{}{}", config.host, parts.network->port(),
                   config.public_key.empty() ? "" : ", encrypted, for holders of the key");
  return Make(config, host, std::move(parts));
}

}  // namespace terrace
