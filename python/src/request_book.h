// Which Python object stands for a request: what tiers in Python are shown.
//
// Every member is used with the interpreter held.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <unordered_map>

#include "terrace/types.h"

namespace terrace_kv {

namespace nb = nanobind;

class RequestBook {
 public:
  // `make_context(number)` makes the object of a request that came from a peer.
  explicit RequestBook(nb::object make_context) : make_context_(std::move(make_context)) {}

  void Add(terrace::RequestId id, nb::object context) { held_[id] = {std::move(context), 0}; }

  // A tier hears of the request: it is kept until as many have let go of it.
  nb::object Hold(terrace::RequestId id) {
    Held& held = Of(id);
    ++held.by;
    return held.context;
  }
  nb::object Find(terrace::RequestId id) { return Of(id).context; }
  nb::object LetGo(terrace::RequestId id) {
    Held& held = Of(id);
    nb::object context = held.context;
    if (held.by <= 1) {
      held_.erase(id);
    } else {
      --held.by;
    }
    return context;
  }

  // While a tier in Python is asked under the manager's lock: by which thread.
  class Asking {
   public:
    explicit Asking(RequestBook& book) : book_(book) {
      book_.asking_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~Asking() { book_.asking_.store({}, std::memory_order_relaxed); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    RequestBook& book_;
  };
  bool ThisThreadAsks() const {
    return asking_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  bool any_tier = false;  // In Python.
  // What the engine said of the step that ends now; None between.
  nb::object step = nb::none();

 private:
  // Relaxed: a thread only compares it with its own id, which only itself writes.
  std::atomic<std::thread::id> asking_{};

  struct Held {
    nb::object context;
    std::uint32_t by = 0;
  };
  Held& Of(terrace::RequestId id) {
    const auto [found, is_new] = held_.try_emplace(id);
    if (is_new) {
      found->second.context = make_context_.is_none() ? nb::none() : make_context_(id.value);
    }
    return found->second;
  }

  nb::object make_context_;
  std::unordered_map<terrace::RequestId, Held> held_;
};

}  // namespace terrace_kv
