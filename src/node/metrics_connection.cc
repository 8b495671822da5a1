#include "node/metrics_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace terrace {
namespace {

constexpr std::string_view kText = "text/plain; charset=utf-8";
constexpr std::string_view kMetricsText = "text/plain; version=0.0.4; charset=utf-8";

enum class Body { kWith, kWithout };

std::string Answer(std::string_view status, std::string_view type, std::string_view body,
                   Body with_body = Body::kWith) {
  std::string answer = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{}"
      "Connection: close\r\n\r\n",
      status, type, body.size(), status.starts_with("405") ? "Allow: GET, HEAD\r\n" : "");
  if (with_body == Body::kWith) answer += body;
  return answer;
}

// Whether the call has to be made again later; else it failed.
bool IsForLater() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

std::string AnswerTo(std::string_view head, const HttpConnection::Metrics& metrics) {
  std::string_view line = head.substr(0, head.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == line.npos || first == 0 || last <= first + 1 ||
      !line.substr(last + 1).starts_with("HTTP/1.")) {
    return Answer("400 Bad Request", kText, "not a request of HTTP/1\n");
  }
  const std::string_view method = line.substr(0, first);
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  if (method != "GET" && method != "HEAD") {
    return Answer("405 Method Not Allowed", kText, "only GET\n");
  }
  const Body body = method == "GET" ? Body::kWith : Body::kWithout;
  if (path == "/healthz") return Answer("200 OK", kText, "ok\n", body);
  if (path != "/metrics") {
    return Answer("404 Not Found", kText, "there are /metrics and /healthz\n", body);
  }
  if (const auto text = metrics()) return Answer("200 OK", kMetricsText, *text, body);
  return Answer("503 Service Unavailable", kText,
                "the engine held the manager's lock for too long; try again\n", body);
}

void HttpConnection::Advance(const Metrics& metrics) {
  if (state_ == State::kReading) Read(metrics);
  if (state_ == State::kWriting) Write();
  if (state_ == State::kLingering) Linger();
}

void HttpConnection::Read(const Metrics& metrics) {
  std::array<char, 2048> buffer;
  const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (count < 0 && IsForLater()) return;
  if (count <= 0) return void(state_ = State::kDone);
  request_.append(buffer.data(), static_cast<std::size_t>(count));
  const bool complete =
      request_.find("\r\n\r\n") != request_.npos || request_.find("\n\n") != request_.npos;
  if (complete) {
    answer_ = AnswerTo(request_, metrics);
  } else if (request_.size() > kRequestBytesMax) {
    answer_ = Answer("431 Request Header Fields Too Large", kText, "too long\n");
  } else {
    return;
  }
  state_ = State::kWriting;
}

void HttpConnection::Write() {
  while (written_ < answer_.size()) {
    const ssize_t count =
        ::send(fd_.get(), answer_.data() + written_, answer_.size() - written_, MSG_NOSIGNAL);
    if (count < 0 && IsForLater()) return;
    if (count < 0) return void(state_ = State::kDone);
    written_ += static_cast<std::size_t>(count);
  }
  ::shutdown(fd_.get(), SHUT_WR);
  state_ = State::kLingering;
}

void HttpConnection::Linger() {
  std::array<char, 2048> buffer;
  const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (count == 0 || (count < 0 && !IsForLater())) state_ = State::kDone;
}

}  // namespace terrace
