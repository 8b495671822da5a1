// A node with a peer tier as a test drives it: it stores prompts, fetches them from others, and
// looks what is left of that.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/node.h"
#include "tests/contract/fake_tier_host.h"

namespace terrace::testing {

inline constexpr std::uint64_t kNodeChunkBytes = 300'000;

struct TestNodeOptions {
  std::string plane = "auto";
  std::string more;  // Of the peer tier's configuration: `"lease_ms": 500, "data_port": 7`.
  std::string dtype = "f16";
  std::function<void(CacheIdentityFields&)> change_identity;  // May be empty. Not of a process.
  std::uint32_t port = 0;                                     // 0: one that is free.
};

// What a test of faults waits for is bounded by these, in ms.
inline constexpr std::uint32_t kConnectMs = 400, kLookupMs = 400, kFetchMs = 1'500, kLeaseMs = 900;
TestNodeOptions WithShortDeadlines(const std::string& plane, std::uint32_t lease_ms = kLeaseMs);
// For an asker that must not give up on a busy machine before it is killed or stopped.
TestNodeOptions WithLongDeadlines(const std::string& plane);

// A port that was free a moment ago, and that the system gives to nobody who asks for any.
std::uint32_t FreePort();

std::shared_ptr<const PeerRoute> RouteTo(const std::string& host, std::uint32_t port);
// To one that computes the prompt for us, under this name.
std::shared_ptr<const PeerRoute> RouteToPrefiller(const std::string& host, std::uint32_t port,
                                                  const std::string& transfer);

// Thread-compatible, but for Counter() and Leftovers(), which any thread may call.
class TestNode {
 public:
  // Aborts if there can be none.
  explicit TestNode(const TestNodeOptions& options = {});

  std::uint32_t port() const { return port_; }
  std::shared_ptr<const PeerRoute> route() const { return RouteTo("127.0.0.1", port_); }

  // Each byte depends on the key and on its place. Aborts if there is no room.
  void Store(const std::vector<ChunkKey>& keys);
  // Computes the first `count` of them for a decoder, which knows them by `transfer`. Until it has
  // computed all its request goes on, and the next call goes on with it.
  void Prefill(const std::vector<ChunkKey>& keys, const std::string& transfer, std::size_t count);
  // As an engine that has nothing else to do: asks until all is decided, loads what is there and
  // compares each byte. How many of `keys`, from the first on, it has in the end. Aborts on a wrong
  // byte, and if it takes longer than kPatience.
  std::size_t Fetch(const std::vector<ChunkKey>& keys, std::shared_ptr<const PeerRoute> route);
  // Again and again, with a pause, until it has them all; false if that takes longer than
  // kPatience. For a peer that is left alone for a while.
  bool FetchesInTheEnd(const std::vector<ChunkKey>& keys,
                       const std::shared_ptr<const PeerRoute>& route);

  // Fetches them some times; true if it got none and asked nobody: one that is down costs nothing.
  bool ComputesWithoutAsking(const std::vector<ChunkKey>& keys,
                             const std::shared_ptr<const PeerRoute>& route);

  std::uint64_t Counter(const std::string& name);
  bool Becomes(const std::string& name, std::uint64_t value);
  // What is pinned, being written, promised or otherwise under way; empty if nothing is.
  std::string Leftovers();
  // The same, once it is empty, or after kPatience.
  std::string LeftoversInTheEnd();

 private:
  std::byte* Slot(SlotId slot);
  Request NewRequest(std::shared_ptr<const PeerRoute> route = nullptr);
  void StoreOf(const Request& request, std::span<const ChunkKey> keys);
  void Finish(const Request& request);
  void Check(const std::vector<ChunkKey>& keys, const std::vector<SlotId>& slots);

  const std::uint32_t port_;
  std::unique_ptr<Node> node_;
  std::uint64_t next_request_ = 1;
  std::optional<Request> prefilling_;
};

}  // namespace terrace::testing
