// TCP sockets as data links want them, and names of hosts without waiting for them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "terrace/result.h"
#include "tier/peer/plane_dialer.h"

namespace terrace {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Listens at `host`, a name or an address; 0 is any port. Not blocking but for the name.
Result<UniqueFd> ListenTcp(const std::string& host, std::uint16_t port);
Result<std::uint16_t> PortOf(int socket);

// For many bytes in a row on this machine's and other networks; what is refused is left as it is.
void TuneTcp(int socket);

// Tries each address of `host`, without blocking: names are resolved by a thread that lives only so
// long, shares nothing with this process's other parts, and is left alone if nobody waits any more.
std::unique_ptr<Dial> DialTcp(const std::string& host, std::uint16_t port);
// The same; the port is what a peer says.
std::unique_ptr<Dial> DialTcpOffer(const std::string& host, const std::string& offer);

}  // namespace terrace
