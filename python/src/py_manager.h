// The manager, as Python calls it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "convert.h"
#include "request_book.h"
#include "terrace/node.h"

namespace terrace_kv {

// Names requests and chunks as Python does, and knows which copies of the engine are under way, so
// that no call of Python can break what the manager is promised: a completion of something that was
// not prepared is passed over.
//
// Every method is called with the interpreter held and takes the manager's lock for itself, unless
// its thread holds it (Lock()). The interpreter is released before that lock is waited for, never
// the other way round: a thread that has the lock may wait for the interpreter (tiers in Python).
class PyManager {
 public:
  // `answers`: what lookup() returns, by terrace::LookupResult: miss, hit, pending, retry.
  PyManager(std::shared_ptr<terrace::Node> node, std::shared_ptr<RequestBook> book,
            nb::sequence answers);
  ~PyManager();

  void Lock();
  void Unlock();

  // True if some tier wants all of its chunks offered.
  bool OnNewRequest(nb::handle request, std::uint32_t load_from, std::optional<std::string> route);
  nb::object Lookup(nb::handle key, nb::handle request);
  nb::str GetLoadSource(nb::handle key, nb::handle request);
  nb::list PrepareLoad(nb::handle keys, nb::handle request);
  void CompleteLoad(nb::handle keys, nb::handle request);
  void Touch(nb::handle keys, nb::handle request);
  // None, or (keys, slots, evicted keys).
  nb::object PrepareStore(nb::handle keys, nb::handle request, bool is_sequence);
  void CompleteStore(nb::handle keys, nb::handle request, bool success);
  void OnRequestFinished(nb::handle request);
  void OnScheduleEnd(nb::object step);
  bool HasPendingWork();
  nb::list TakeEvents();
  nb::list ReadyChunks();
  nb::tuple ResetCache();
  std::uint64_t OnResetFlushed();
  // Definite answers of Lookup(), and of them hits.
  std::uint64_t lookups() const { return lookups_; }
  std::uint64_t hits() const { return hits_; }
  nb::dict Stats();
  bool Drain(double timeout_s);
  void Shutdown();

 private:
  // A request of the engine, until it has finished and none of its copies is under way.
  struct Entry {
    terrace::Request request{};
    nb::object name;
    bool finished = false;
    std::vector<terrace::SlotId> loads;                      // Pinned, as often as they are.
    std::uint32_t stores = 0;                                // Slots that it writes.
    std::vector<terrace::SlotId> reset_loads, reset_stores;  // Of them, forgotten by a reset.
  };
  // Holds the manager's lock for one call, if its thread does not hold it anyway. A call within a
  // call is a tier's mistake, and raises.
  class Region {
   public:
    explicit Region(PyManager& manager);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

   private:
    PyManager& manager_;
    bool taken_;
  };

  Entry& EntryOf(nb::handle request);
  Entry* FindEntry(nb::handle name);
  Entry& Add(nb::handle request, nb::object name);
  void Finish(Entry& entry);
  void ForgetIfDone(Entry& entry);
  // Of those of `keys` that `entry`, or one before it of the same name, has pinned.
  void Unpin(std::vector<terrace::SlotId> slots, Entry& entry);

  const std::shared_ptr<terrace::Node> node_;
  terrace::OffloadingManager& manager_;
  const std::shared_ptr<RequestBook> book_;
  nb::object answers_[4];
  std::atomic<const void*> owner_{nullptr};  // The thread that is between Lock() and Unlock().

  bool is_inside_ = false;  // Of a call; under the lock.

  nb::dict numbers_;  // By name: the number of its entry.
  std::unordered_map<std::uint64_t, std::unique_ptr<Entry>> entries_;
  std::uint64_t next_number_ = 1;
  nb::object last_name_ = nb::none();
  Entry* last_entry_ = nullptr;
  std::vector<Entry*> slot_writers_;  // By slot; null: no store of the engine writes it.
  std::unordered_map<std::uint64_t, Entry*> lingering_;  // Finished, copies under way.

  std::uint64_t lookups_ = 0;
  std::uint64_t hits_ = 0;

  // Reused.
  Keys keys_;
  terrace::StorePlan plan_;
  std::vector<terrace::SlotId> slots_;
};

}  // namespace terrace_kv
