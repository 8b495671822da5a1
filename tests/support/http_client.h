// The least of an HTTP client, for tests of servers on 127.0.0.1.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace terrace::testing_support {

// `address` is "127.0.0.1:port".
inline UniqueFd Connect(const std::string& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{30, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return UniqueFd();
  return fd;
}

// False if the other side is gone.
inline bool Send(const UniqueFd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// Until the other side closes.
inline std::string ReadAll(const UniqueFd& fd) {
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EAGAIN) ADD_FAILURE() << "neither answered nor closed in 30 s";
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// The whole answer, head and body; empty if there is nobody.
inline std::string HttpGet(const std::string& address, const std::string& path) {
  const UniqueFd fd = Connect(address);
  if (!fd.valid()) return "";
  Send(fd, "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n");
  return ReadAll(fd);
}

}  // namespace terrace::testing_support
