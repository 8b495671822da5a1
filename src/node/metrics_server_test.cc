#include "node/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "node/metrics_connection.h"
#include "tests/support/http_client.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::Connect;
using testing_support::HttpGet;
using testing_support::ReadAll;
using testing_support::Send;

std::unique_ptr<MetricsServer> Serve(
    MetricsServer::Render render = [] { return "x 1\n"; }, MetricsServer::Options options = {}) {
  auto server = MetricsServer::Start("127.0.0.1:0", std::move(render), options);
  EXPECT_TRUE(server.ok()) << (server.ok() ? "" : server.error().message);
  return server.ok() ? std::move(server).value() : nullptr;
}

TEST(ParseListenAddress, SplitsHostAndPort) {
  const auto v4 = ParseListenAddress("127.0.0.1:9464");
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, "9464");
  const auto v6 = ParseListenAddress("[::1]:0");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->host, "::1");
}

TEST(MetricsServer, AnswersMetricsAndHealth) {
  const auto server = Serve();
  EXPECT_EQ(HttpGet(server->address(), "/metrics"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 4\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nx 1\n");
  EXPECT_THAT(HttpGet(server->address(), "/healthz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(HttpGet(server->address(), "/metrics?a=b"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(HttpGet(server->address(), "/metricsx"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(HttpGet(server->address(), "/"), StartsWith("HTTP/1.1 404 "));
}

TEST(MetricsServer, SaysWhenThereAreNone) {
  const auto server = Serve([] { return std::nullopt; });
  EXPECT_THAT(HttpGet(server->address(), "/metrics"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(HttpGet(server->address(), "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(MetricsServer, TakesARequestInPieces) {
  const auto server = Serve();
  const UniqueFd client = Connect(server->address());
  for (const char c : std::string_view("GET /metrics HTTP/1.0\r\n\r\n")) Send(client, {&c, 1});
  EXPECT_THAT(ReadAll(client), HasSubstr("\r\n\r\nx 1\n"));
}

TEST(AnswerTo, RefusesWhatItDoesNotKnow) {
  int asked = 0;
  const HttpConnection::Metrics metrics = [&] {
    ++asked;
    return "x 1\n";
  };
  EXPECT_THAT(AnswerTo("POST /metrics HTTP/1.1\r\n\r\n", metrics), StartsWith("HTTP/1.1 405 "));
  for (const char* head :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", " / HTTP/1.1\n\n",
        "GET  HTTP/1.1\r\n\r\n", "GET /metrics HTTP/2\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_THAT(AnswerTo(head, metrics), StartsWith("HTTP/1.1 400 ")) << head;
  }
  EXPECT_EQ(asked, 0);
  const std::string head = AnswerTo("HEAD /metrics HTTP/1.1\r\n\r\n", metrics);
  EXPECT_THAT(head, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

TEST(MetricsServer, RefusesARequestThatDoesNotEnd) {
  const auto server = Serve();
  const UniqueFd client = Connect(server->address());
  Send(client, std::string(HttpConnection::kRequestBytesMax + 1, 'x'));
  EXPECT_THAT(ReadAll(client), StartsWith("HTTP/1.1 431 "));
}

// However a client behaves: silent, dripping, or not reading what it asked for.
TEST(MetricsServer, AStuckClientIsDroppedAtItsDeadline) {
  const std::string large(std::size_t{64} << 20, 'x');
  const auto server = Serve([&] { return large; }, {.connection_time = milliseconds(300)});
  const UniqueFd silent = Connect(server->address());
  const UniqueFd asking = Connect(server->address());
  Send(asking, "GET /metrics HTTP/1.1\r\n\r\n");
  const UniqueFd dripping = Connect(server->address());
  const auto began = std::chrono::steady_clock::now();
  while (Send(dripping, "G") && std::chrono::steady_clock::now() - began < seconds(20)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
  EXPECT_EQ(ReadAll(silent), "");
  EXPECT_LT(ReadAll(asking).size(), large.size());
}

TEST(MetricsServer, StuckClientsNeverKeepANewOneOut) {
  const auto server =
      Serve([] { return "x 1\n"; }, {.connection_time = seconds(600), .connections_max = 4});
  std::vector<UniqueFd> stuck;
  for (int i = 0; i < 20; ++i) {
    stuck.push_back(Connect(server->address()));
    EXPECT_THAT(HttpGet(server->address(), "/metrics"), HasSubstr("x 1\n"));
  }
  EXPECT_EQ(ReadAll(stuck.front()), "") << "it gave way";
}

TEST(MetricsServer, EndsAtOnceWhateverClientsDo) {
  std::atomic<int> rendered{0};
  auto server = Serve(
      [&] {
        ++rendered;
        return std::string(std::size_t{64} << 20, 'x');
      },
      {.connection_time = seconds(600)});
  const UniqueFd silent = Connect(server->address());
  const UniqueFd asking = Connect(server->address());
  Send(asking, "GET /metrics HTTP/1.1\r\n\r\n");
  const UniqueFd half = Connect(server->address());
  Send(half, "GET /metr");
  while (rendered == 0) std::this_thread::yield();
  const auto began = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(60));
  EXPECT_EQ(ReadAll(silent), "");
}

TEST(MetricsServer, APortInUseIsAnErrorThatNamesTheKey) {
  const auto server = Serve();
  const auto second = MetricsServer::Start(server->address(), [] { return ""; });
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(second.error().message,
            "listen on metrics_listen \"" + server->address() + "\": Address already in use");
}

TEST(MetricsServer, AHostThatIsNotKnownIsAnError) {
  const auto server = MetricsServer::Start("no-such-host.invalid:0", [] { return ""; });
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().message,
              StartsWith("listen on metrics_listen \"no-such-host.invalid:0\": "));
}

TEST(MetricsServer, ManyAskAtOnce) {
  std::atomic<int> inside{0};
  std::atomic<bool> together{false};
  const auto server = Serve([&] {
    if (++inside > 1) together = true;
    --inside;
    return "x 1\n";
  });
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        if (HttpGet(server->address(), "/metrics").ends_with("x 1\n")) ++answered;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 200);
  EXPECT_FALSE(together);
}

}  // namespace
}  // namespace terrace
