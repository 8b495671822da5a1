// The planes under test, one line each, and raw sockets to their ports.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "tests/contract/data_plane_driver.h"
#include "tier/peer/shm_plane.h"
#include "tier/peer/tcp_plane.h"
#include "tier/peer/ucx_plane.h"
#include "wire/peer_data.h"

namespace terrace::testing {

struct PlaneKit {
  const char* name;
  PlaneFactory create;
  // A blocking socket that is connected to the plane with that offer; not valid if it can't.
  UniqueFd (*connect)(const std::string& offer);
  // A socket that listens and says nothing, and its offer.
  std::pair<UniqueFd, std::string> (*listen)();

  friend std::ostream& operator<<(std::ostream& out, const PlaneKit& kit) {
    return out << kit.name;
  }
};

inline UniqueFd ConnectTcp(const std::string& offer) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(offer)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd.valid() &&
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.Reset();
  }
  return fd;
}

inline std::pair<UniqueFd, std::string> ListenTcpSilently() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), 8) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  return {std::move(fd), std::to_string(ntohs(address.sin_port))};
}

inline std::pair<sockaddr_un, socklen_t> UnixAddress(const std::string& offer) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path =
      std::string(1, '\0') + "terrace-peer/" + offer.substr(0, offer.find(' '));
  std::memcpy(address.sun_path, path.data(), path.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size())};
}

inline UniqueFd ConnectUnix(const std::string& offer) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, size] = UnixAddress(offer);
  if (fd.valid() && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    fd.Reset();
  }
  return fd;
}

inline std::pair<UniqueFd, std::string> ListenUnixSilently() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  const std::string offer = "00112233445566778899aabbccddeeff " + boot_id;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, size] = UnixAddress(offer);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), 8) != 0) {
    std::abort();
  }
  return {std::move(fd), offer};
}

// A plane to be tested is one line here.
inline std::vector<PlaneKit> AllPlaneKits() {
  return {
      {"tcp", CreateTcpPlane, ConnectTcp, ListenTcpSilently},
      {"shared_memory", CreateShmPlane, ConnectUnix, ListenUnixSilently},
#ifdef TERRACE_WITH_UCX
      {"ucx", CreateUcxPlane, ConnectTcp, ListenTcpSilently},
#endif
  };
}

inline void SendAll(const UniqueFd& fd, std::span<const std::byte> bytes) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
inline void SendText(const UniqueFd& fd, std::string_view text) {
  SendAll(fd, std::as_bytes(std::span(text)));
}
inline void SendFrame(const UniqueFd& fd, const DataFrame& frame) {
  std::vector<std::byte> bytes;
  AppendDataFrame(frame, bytes);
  SendAll(fd, bytes);
}
// What comes before the other end closes it; nullopt if it does not within kPatience.
inline std::optional<std::size_t> AwaitClosed(const UniqueFd& fd) {
  const timeval patience{std::chrono::seconds(kPatience).count(), 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::vector<char> dropped(64 << 10);
  std::size_t came = 0;
  while (true) {
    const ssize_t got = ::recv(fd.get(), dropped.data(), dropped.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return came;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    came += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
}
inline bool IsOpen(const UniqueFd& fd) {
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}
// Until no more comes, since the other end is done, or nobody takes it; or the other end is gone.
inline void AwaitStill(const UniqueFd& fd) {
  int before = -1;
  for (int same = 0; same < 10 && (before != 0 || IsOpen(fd));) {
    int now = 0;
    (void)::ioctl(fd.get(), FIONREAD, &now);
    same = now > 0 && now == before ? same + 1 : 0;
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace terrace::testing
