#include "tier/peer/peer_options.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string_view>

namespace terrace {
namespace {

constexpr std::size_t kKeySize = 40;  // 32 bytes in Z85.
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

}  // namespace

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

std::vector<std::pair<std::string, std::string>> FaultsOf(const PeerTierConfig& config) {
  std::vector<std::pair<std::string, std::string>> faults;
  const bool has_public = !config.public_key.empty();
  const bool has_secret = !config.secret_key_file.empty();
  // Not repeated: whoever mixed the two up would find the secret one in a log.
  if (has_public && (config.public_key.size() != kKeySize ||
                     config.public_key.find_first_not_of(kZ85) != std::string::npos)) {
    faults.emplace_back("public_key",
                        "must be 40 characters of Z85, as \"terrace peer-keys FILE\" prints them");
  }
  if (has_public && !has_secret) {
    faults.emplace_back("secret_key_file",
                        "is missing, and public_key is there; keys come in pairs");
  }
  if (has_secret && !has_public) {
    faults.emplace_back("public_key",
                        "is missing, and secret_key_file is there; keys come in pairs");
  }
  if (!has_public && !has_secret && !config.allow_unauthenticated_network &&
      !IsLoopback(config.host)) {
    faults.emplace_back(
        "host",
        "can be reached from the network, and without keys anybody who connects reads every chunk: "
        "set public_key and secret_key_file, or a host of this machine alone (127.0.0.1), or say "
        "\"allow_unauthenticated_network\": true");
  }
  return faults;
}

}  // namespace terrace
