// A TierServer, as a plug-in sees it.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "terrace/tier_plugin.h"
#include "terrace/tier_server.h"

namespace terrace {

// What a plug-in asks is checked; a question that is wrong is answered with a miss or an error, and
// is a fault. One that comes outside Lend(), or on another thread, touches nothing.
class PluginServer {
 public:
  struct Hooks {
    // Takes the job down, to be reported by take_finished().
    std::function<const terrace_tier_job*(TransferJob)> add_job;
    std::function<void(std::string)> fault;  // Thread-safe.
  };

  explicit PluginServer(Hooks hooks);
  PluginServer(const PluginServer&) = delete;
  PluginServer& operator=(const PluginServer&) = delete;

  // Calls `serve` with what passes the plug-in's questions on to `server`.
  void Lend(TierServer& server, const std::function<void(const terrace_tier_server&)>& serve);

 private:
  template <typename Answer, typename Question>
  Answer Ask(const char* what, Answer otherwise, const Question& question) noexcept;
  terrace_tier_status CreateStoreJob(TierServer& server, const terrace_tier_key* keys,
                                     std::size_t count, std::uint64_t request,
                                     const terrace_tier_job** job);

  const Hooks hooks_;
  const terrace_tier_server seen_;
  TierServer* server_ = nullptr;  // Touched by the thread of lent_to_ only.
  // Acquire and release: who finds itself here sees server_.
  std::atomic<std::thread::id> lent_to_{};
};

}  // namespace terrace
