#include "flood.h"

#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace terrace::matrix {
namespace {

// Far from those of any engine.
constexpr std::uint64_t kFirstRequest = std::uint64_t{1} << 40;

// Nobody has chunks of these names.
std::vector<ChunkKey> KeysOf(std::uint64_t request, std::uint32_t count) {
  std::vector<ChunkKey> keys;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::array<std::uint8_t, 32> hash{};
    std::memcpy(hash.data(), &request, sizeof request);
    std::memcpy(hash.data() + sizeof request, &i, sizeof i);
    keys.emplace_back(hash, 0);
  }
  return keys;
}

}  // namespace

std::uint64_t RunFlood(Node& node, const Flood& flood) {
  Connector& connector = node.connector();
  auto route = std::make_shared<PeerRoute>();
  PeerRoute::Source source;
  source.address = flood.peer;
  route->source = std::move(source);
  const std::uint32_t tokens = flood.chunks * flood.tokens_per_chunk;

  std::uint64_t next = kFirstRequest, answered = 0;
  const auto begin = [&] {
    const RequestId id(next++);
    RequestOptions options;
    options.prompt_tokens = tokens;
    options.route = route;
    connector.OnNewRequest(id, options);
    connector.AppendKeys(id, KeysOf(id.value, flood.chunks));
    return id;
  };
  std::vector<RequestId> open;
  while (open.size() < flood.requests) open.push_back(begin());
  const auto until = std::chrono::steady_clock::now() + flood.time;
  while (std::chrono::steady_clock::now() < until) {
    std::vector<std::size_t> known;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const MatchedTokens match = connector.GetMatchedTokens(open[i], 0, tokens);
      if (match.status == MatchedTokens::Status::kKnown) known.push_back(i);
    }
    connector.BuildStep({});
    for (const std::size_t i : known) {
      connector.OnRequestFinished(open[i], 0);
      open[i] = begin();
      ++answered;
    }
    if (known.empty()) node.WaitForProgress(std::chrono::milliseconds(5));
  }
  for (const RequestId id : open) connector.OnRequestFinished(id, 0);
  connector.BuildStep({});
  return answered;
}

}  // namespace terrace::matrix
