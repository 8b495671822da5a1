// Answers GET /metrics and GET /healthz over HTTP, on a thread of its own.
//
// Not a web server: one question a connection, no bodies, nothing but GET and HEAD. It is written
// here because a scraper that hangs or dawdles must hold up neither another one nor the end of the
// node. cpp-httplib 0.11 (Debian's) has a thread for each connection and no limit on how long one
// takes as a whole: two clients that send a byte now and then kept two threads, every other client
// and stop() waiting for as long as they liked.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/fd.h"
#include "terrace/result.h"

namespace terrace {

// An address as `metrics_listen` has it: "127.0.0.1:9464", "localhost:0", "[::1]:9464".
struct ListenAddress {
  std::string host;
  std::string port;
};
// nullopt if it is none.
std::optional<ListenAddress> ParseListenAddress(std::string_view text);

// Thread-safe.
class MetricsServer {
 public:
  // What /metrics answers with; nullopt makes it a 503. Called on the server's thread, one call at
  // a time; may block for some hundred milliseconds.
  using Render = std::function<std::optional<std::string>()>;

  struct Options {
    // From the connection to the last byte of the answer; then it is closed.
    std::chrono::milliseconds connection_time{5'000};
    // One more makes the oldest give way, so that the stuck ones never keep a new one out.
    std::size_t connections_max = 32;
  };

  // Listens before it returns. `listen` is named in errors: kUnavailable if the port is in use,
  // kInvalidArgument if it is no address, kNotFound if the host is not known.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Render render,
                                                      const Options& options);
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Render render) {
    return Start(listen, std::move(render), Options());
  }
  // Drops all connections and ends after the Render that is running. `render` is not called again.
  ~MetricsServer();

  // Where it listens: "127.0.0.1:43211", the port a real one.
  const std::string& address() const { return address_; }

 private:
  class Loop;

  MetricsServer(UniqueFd stop, std::string address);

  const UniqueFd stop_;  // An eventfd, readable once it is to end.
  const std::string address_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace terrace
