#include "tier/plugin/plugin_server.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "terrace/secondary_tier.h"
#include "tier/plugin/plugin_types.h"

namespace terrace {
namespace {

// Far above what the budget of a round lets through; bounds what a wrong count costs.
constexpr std::size_t kKeysMax = 65536;

}  // namespace

// No exception may run through the plug-in's frames.
template <typename Answer, typename Question>
Answer PluginServer::Ask(const char* what, Answer otherwise, const Question& question) noexcept {
  try {
    if (lent_to_.load(std::memory_order_acquire) == std::this_thread::get_id()) {
      return question(*server_);
    }
    hooks_.fault(std::string("it called ") + what + "() outside serve_external_requests()");
  } catch (...) {
    // The node is out of memory: the question is not answered.
  }
  return otherwise;
}

PluginServer::PluginServer(Hooks hooks)
    : hooks_(std::move(hooks)),
      seen_{.struct_size = sizeof(terrace_tier_server),
            .context = this,
            .begin_request = [](void* self) -> std::uint64_t {
              return static_cast<PluginServer*>(self)->Ask(
                  "begin_request", std::uint64_t{0},
                  [](TierServer& server) { return server.BeginRequest().id.value; });
            },
            .lookup = [](void* self, const terrace_tier_key* key,
                         std::uint64_t request) -> std::int32_t {
              auto& me = *static_cast<PluginServer*>(self);
              return me.Ask("lookup", std::int32_t{TERRACE_TIER_SERVE_MISS},
                            [&](TierServer& server) -> std::int32_t {
                              const auto asked = key != nullptr ? FromPlugin(*key) : std::nullopt;
                              if (!asked) {
                                me.hooks_.fault("it asked the node for what is no key");
                                return TERRACE_TIER_SERVE_MISS;
                              }
                              switch (server.Lookup(*asked, Request{RequestId(request)})) {
                                case LookupResult::kHit:
                                  return TERRACE_TIER_SERVE_HIT;
                                case LookupResult::kMiss:
                                  return TERRACE_TIER_SERVE_MISS;
                                case LookupResult::kHitPending:
                                case LookupResult::kRetry:
                                  break;
                              }
                              return TERRACE_TIER_SERVE_RETRY;
                            });
            },
            .create_store_job = [](void* self, const terrace_tier_key* keys, std::size_t count,
                                   std::uint64_t request,
                                   const terrace_tier_job** job) -> terrace_tier_status {
              auto& me = *static_cast<PluginServer*>(self);
              return me.Ask("create_store_job", terrace_tier_status{TERRACE_TIER_INVALID_ARGUMENT},
                            [&](TierServer& server) {
                              return me.CreateStoreJob(server, keys, count, request, job);
                            });
            },
            .finish_request =
                [](void* self, std::uint64_t request) {
                  static_cast<PluginServer*>(self)->Ask(
                      "finish_request", 0, [&](TierServer& server) {
                        server.FinishRequest(Request{RequestId(request)});
                        return 0;
                      });
                },
            .should_yield = [](void* self) -> std::int32_t {
              return static_cast<PluginServer*>(self)->Ask(
                  "should_yield", std::int32_t{1},
                  [](TierServer& server) -> std::int32_t { return server.ShouldYield() ? 1 : 0; });
            }} {}

terrace_tier_status PluginServer::CreateStoreJob(TierServer& server, const terrace_tier_key* keys,
                                                 std::size_t count, std::uint64_t request,
                                                 const terrace_tier_job** job) {
  std::vector<ChunkKey> asked;
  bool right = keys != nullptr && job != nullptr && count >= 1 && count <= kKeysMax;
  for (std::size_t i = 0; right && i < count; ++i) {
    const auto key = FromPlugin(keys[i]);
    right = key.has_value();
    if (right) asked.push_back(*key);
  }
  if (right) {
    std::vector<ChunkKey> sorted = asked;
    std::sort(sorted.begin(), sorted.end());
    right = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  }
  if (!right) {
    hooks_.fault("it wanted a store job of no keys, too many, wrong ones, or one twice");
    return TERRACE_TIER_INVALID_ARGUMENT;
  }
  auto made = server.CreateStoreJob(asked, Request{RequestId(request)});
  if (!made) return TERRACE_TIER_UNAVAILABLE;
  *job = hooks_.add_job(std::move(*made));
  return TERRACE_TIER_OK;
}

void PluginServer::Lend(TierServer& server,
                        const std::function<void(const terrace_tier_server&)>& serve) {
  struct Loan {
    explicit Loan(PluginServer& of) : of_(of) {
      of_.lent_to_.store(std::this_thread::get_id(), std::memory_order_release);
    }
    ~Loan() {
      of_.lent_to_.store({}, std::memory_order_release);
      of_.server_ = nullptr;
    }
    PluginServer& of_;
  };
  server_ = &server;
  const Loan loan(*this);
  serve(seen_);
}

}  // namespace terrace
