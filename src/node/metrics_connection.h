// One HTTP connection of the metrics server: reads a question, answers it, closes.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace terrace {

// Never blocks. Confined to the server's thread.
class HttpConnection {
 public:
  // The text of /metrics, which outlives the call of Advance(); nullopt if there is none.
  using Metrics = std::function<std::optional<std::string_view>()>;
  static constexpr std::size_t kRequestBytesMax = std::size_t{8} << 10;

  // `fd` is a non-blocking stream socket.
  HttpConnection(UniqueFd fd, std::chrono::steady_clock::time_point deadline)
      : fd_(std::move(fd)), deadline_(deadline) {}

  int fd() const { return fd_.get(); }
  short awaited_events() const { return state_ == State::kWriting ? POLLOUT : POLLIN; }
  // After that it is to be dropped, whatever it does.
  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  // To be dropped: all was said, or the other side is gone.
  bool done() const { return state_ == State::kDone; }

  // Goes on as far as that is possible at once. `metrics` is called at most once.
  void Advance(const Metrics& metrics);

 private:
  enum class State {
    kReading,
    kWriting,
    kLingering,  // All is written. Closing before the other side does would, if bytes of it were
                 // still on their way, make it lose the end of the answer.
    kDone,
  };

  void Read(const Metrics& metrics);
  void Write();
  void Linger();

  UniqueFd fd_;
  std::chrono::steady_clock::time_point deadline_;
  State state_ = State::kReading;
  std::string request_;
  std::string answer_;
  std::size_t written_ = 0;
};

// The whole answer to a request's head.
std::string AnswerTo(std::string_view head, const HttpConnection::Metrics& metrics);

}  // namespace terrace
