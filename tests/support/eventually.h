// A condition that another thread or process brings about.
#pragma once

#include <chrono>
#include <thread>

namespace terrace::testing_support {

// Asks until it is true: false if it is not after half a minute.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace terrace::testing_support
