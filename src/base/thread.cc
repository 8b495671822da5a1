#include "base/thread.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

constexpr std::size_t kThreadNameSizeMax = 15;

std::string ThreadName(std::string_view name, std::string_view suffix) {
  suffix = suffix.substr(0, kThreadNameSizeMax);
  return std::string(name.substr(0, kThreadNameSizeMax - suffix.size())) + std::string(suffix);
}

}  // namespace

Result<std::thread> StartThread(std::string_view name, std::string_view suffix,
                                std::function<void()> body) {
  const std::string full_name = ThreadName(name, suffix);
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), full_name.c_str());
    return thread;
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kResourceExhausted,
                 "start thread " + full_name + ": " + error.code().message()};
  }
}

Result<void> EndingThread::Start(std::string_view name, std::string_view suffix,
                                 std::function<void()> body) {
  auto thread = StartThread(name, suffix, [this, body = std::move(body)] {
    body();
    MutexLock lock(mutex_);
    ended_ = true;
    ended_cond_.NotifyAll();
  });
  if (!thread.ok()) return std::move(thread).error();
  thread_ = std::move(thread).value();
  return {};
}

bool EndingThread::JoinUntil(std::chrono::steady_clock::time_point deadline) {
  if (!thread_.joinable()) return true;
  {
    MutexLock lock(mutex_);
    while (!ended_) {
      if (!ended_cond_.WaitUntil(mutex_, deadline) && !ended_) return false;
    }
  }
  thread_.join();
  return true;
}

}  // namespace terrace
