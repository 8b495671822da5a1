// What the machine gives without Terrace, measured in the same run: a round trip over ZeroMQ, and a
// copy of bytes out of another process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "terrace/result.h"

namespace terrace::matrix {

// How many times `bytes` both sides have, to go round in.
inline constexpr std::size_t kRawRounds = 8;

// The side that answers: a ROUTER that sends back what it gets, memory that others may map, and a
// port that sends it. Both threads sleep while nobody asks.
class RawServer {
 public:
  // `bytes` of memory to copy from at a time, in pages like those of a node: NodeConfig's
  // huge_pages.
  static Result<std::unique_ptr<RawServer>> Start(std::size_t bytes, const std::string& pages);
  ~RawServer();

  std::uint16_t ping_port() const { return ping_port_; }
  std::uint16_t copy_port() const { return copy_port_; }
  // Of the memory, in this process.
  int descriptor() const { return memory_.get(); }

 private:
  RawServer(std::size_t bytes, std::size_t mapped_bytes)
      : bytes_(bytes), mapped_bytes_(mapped_bytes) {}
  void Echo();
  void SendCopies();

  const std::size_t bytes_;
  const std::size_t mapped_bytes_;
  UniqueFd memory_;
  UniqueFd listener_;
  std::uint16_t ping_port_ = 0;
  std::uint16_t copy_port_ = 0;
  void* context_ = nullptr;
  void* router_ = nullptr;
  std::byte* mapped_ = nullptr;
  std::atomic<bool> stop_{false};
  std::thread echo_;
  std::thread sender_;
};

// Seconds of each round trip of 256 bytes, `gap_ms` apart, so that both sides sleep in between as
// they do between look-ups.
Result<std::vector<double>> RawPing(std::uint16_t port, int count, int gap_ms);

// Seconds of each copy of `bytes` into memory of this process, which has been used before. One
// copy's bytes lie behind the last one's on both sides, so that they come from memory and not from
// a cache, as a prompt's do. `pages` as for the server.
//   "shared_memory": out of a mapping of the other process's descriptor;  "tcp": over loopback
Result<std::vector<double>> RawCopy(const std::string& plane, int pid, int descriptor,
                                    std::uint16_t port, std::size_t bytes, int count,
                                    const std::string& pages);

}  // namespace terrace::matrix
