// Peers of a test that say what no node says: an asker and a holder made of bare sockets.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "base/fd.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/peer/test_node.h"
#include "wire/peer_data.h"
#include "wire/peer_message.h"

namespace terrace::testing {

inline PeerHello GoodHello(std::uint8_t instance) {
  PeerHello hello;
  hello.instance.fill(instance);
  hello.fields = TestIdentityFields(kNodeChunkBytes);
  hello.identity = CacheIdentity::Create(hello.fields).value().digest();
  return hello;
}

// A socket that is connected to the port, from 127.0.0.3; not valid if it can't. Reset when closed.
// With SOCK_NONBLOCK it may still be on its way.
inline UniqueFd ConnectTo(std::uint32_t port, int flags = 0) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd.valid()) return fd;
  const linger reset{1, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  const int late = 1;
  (void)::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
  const timeval patience{2, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, "127.0.0.3", &address.sin_addr);
  (void)::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    fd.Reset();
  }
  return fd;
}

// The next message of a socket; nullopt if none comes within kPatience.
inline std::optional<PeerMessage> NextMessage(zmq::socket_t& socket) {
  zmq::message_t bytes;
  if (!socket.recv(bytes)) return std::nullopt;
  auto message = DecodePeerMessage({static_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  if (!message.ok()) return std::nullopt;
  return std::move(message).value();
}

// Confined to its thread.
class RawAsker {
 public:
  explicit RawAsker(std::uint32_t port) : RawAsker(port, [](zmq::socket_t&) {}) {}
  template <typename Prepare>  // Of the socket, before it connects.
  RawAsker(std::uint32_t port, const Prepare& prepare)
      : socket_(context_, zmq::socket_type::dealer) {
    prepare(socket_);
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo,
                static_cast<int>(std::chrono::milliseconds(kPatience).count()));
    socket_.connect("tcp://127.0.0.1:" + std::to_string(port));
  }

  void Say(const PeerMessage& message) { SayBytes(EncodePeerMessage(message)); }
  void SayBytes(std::span<const std::uint8_t> bytes) {
    socket_.send(zmq::message_t(bytes.data(), bytes.size()), zmq::send_flags::none);
  }
  // What is no T is passed over; a T without anything in it if none comes.
  template <typename T>
  T Hear() {
    while (auto message = NextMessage(socket_)) {
      if (auto* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
    }
    return {};
  }
  template <typename T>
  T Ask(const PeerMessage& message) {
    Say(message);
    return Hear<T>();
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

// A data link over TCP, from the asker's side. Thread-compatible.
class RawDataLink {
 public:
  RawDataLink(std::uint32_t port, const std::array<std::uint8_t, 16>& token)
      : fd_(ConnectTo(port)) {
    const timeval patience{std::chrono::seconds(kPatience).count(), 0};
    (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    Say(DataOpen{.plane = 2, .token = token});
  }
  void Say(const DataFrame& frame) {
    std::vector<std::byte> bytes;
    AppendDataFrame(frame, bytes);
    (void)!::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // The next frame; nullopt if the holder hung up. The bytes behind a BYTES are passed over.
  std::optional<DataFrame> Hear() {
    for (;;) {
      if (auto decoded = DecodeDataFrame(in_); decoded.ok() && decoded.value()) {
        Drop(decoded.value()->size);
        if (const auto* bytes = std::get_if<DataBytes>(&decoded.value()->frame)) {
          while (in_.size() < bytes->size && More()) {
          }
          Drop(std::min<std::size_t>(bytes->size, in_.size()));
        }
        return decoded.value()->frame;
      }
      if (!More()) return std::nullopt;
    }
  }
  // What the holder says of the chunk.
  std::optional<DataStatus> Read(std::uint64_t lease, std::uint32_t index) {
    Say(DataRead{.tag = ++tag_, .lease = lease, .index = index});
    while (auto frame = Hear()) {
      if (const auto* chunk = std::get_if<DataChunk>(&*frame)) return chunk->status;
    }
    return std::nullopt;
  }

 private:
  bool More() {
    std::array<std::byte, 65536> bytes;
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    in_.insert(in_.end(), bytes.begin(), bytes.begin() + got);
    return true;
  }
  void Drop(std::size_t size) {
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(size));
  }

  const UniqueFd fd_;
  std::vector<std::byte> in_;
  std::uint64_t tag_ = 0;
};

}  // namespace terrace::testing
