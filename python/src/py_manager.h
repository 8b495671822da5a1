// The manager, as Python calls it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "convert.h"
#include "request_book.h"
#include "terrace/manager_stats.h"
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
  // Of the node's configuration.
  struct Options {
    bool records_events = false;
    std::uint32_t store_threshold = 0;
  };

  // `answers`: what lookup() returns, by terrace::LookupResult: miss, hit, pending, retry.
  PyManager(std::shared_ptr<terrace::Node> node, std::shared_ptr<RequestBook> book,
            nb::sequence answers, Options options);
  ~PyManager();

  void Lock();
  // The same with a bound: false if it could not be had in time.
  bool TryLockFor(double timeout_s);
  void Unlock();
  bool HoldsLock() const;

  // True if some tier wants all of its chunks offered.
  bool OnNewRequest(nb::handle request, std::uint32_t load_from, std::optional<std::string> route);
  nb::object Lookup(nb::handle key, nb::handle request);
  nb::str GetLoadSource(nb::handle key, nb::handle request);
  // `ends`: see terrace::ChunkEnds; None, a sequence of integers, or a dictionary that has them by
  // key: None if it lacks one. `packed`: slots as the bytes of 4-byte integers, else as a list.
  nb::object PrepareLoad(nb::handle keys, nb::handle request, nb::handle ends, bool packed);
  void CompleteLoad(nb::handle keys, nb::handle request);
  void Touch(nb::handle keys, nb::handle request);
  // None, or (keys, slots, evicted keys). Without the ends of all keys that a dictionary is asked
  // for they are no sequence.
  nb::object PrepareStore(nb::handle keys, nb::handle request, bool is_sequence, nb::handle ends,
                          bool packed);
  void CompleteStore(nb::handle keys, nb::handle request, bool success);
  void OnRequestFinished(nb::handle request);
  void OnScheduleEnd(nb::object step);
  bool HasPendingWork();
  // What came and went, one item for each call that changed something: (kind, keys).
  nb::list TakeEvents();
  nb::list ReadyChunks();
  nb::tuple ResetCache();
  std::uint64_t OnResetFlushed();
  // What there is to count, at one moment.
  struct Snapshot {
    terrace::ManagerStats stats;
    // Of Lookup().
    std::uint64_t misses = 0;
    terrace::DurationHistogram hit_time;  // One hit in 16 is timed.
    // (slots that a store wanted, how often), in the order of their first time.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> store_sizes;
    std::uint32_t store_threshold = 0;
  };
  Snapshot TakeSnapshot();
  nb::dict Stats();
  bool Drain(double timeout_s);
  // Gives up the lock if its thread holds it.
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

  // The same kind of thing happened to these chunks, in one call.
  struct Change {
    terrace::CacheEvent::Kind kind;  // Never kLost.
    std::vector<terrace::ChunkKey> keys;
  };

  // Raises where the manager must not be called: in a thread that is within a call of a tier, and
  // in a process that was forked from the node's, where its memory is shared and its threads are
  // not.
  void CheckMayCall() const;
  // What the manager has recorded since.
  void NoteChanges();
  // Fills ends_ with those of keys_; false, and none, if they are not known.
  bool TakeEnds(nb::handle ends);
  void CountStore(std::uint64_t wanted);
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
  const Options options_;
  const std::uint32_t forks_;  // When it was made.
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

  std::vector<Change> changes_;
  std::size_t changed_chunks_ = 0;  // In changes_.
  bool changes_lost_ = false;

  // Of Lookup().
  std::uint64_t misses_ = 0;
  std::chrono::nanoseconds last_hit_time_{0};
  terrace::DurationHistogram hit_time_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> store_sizes_;  // See Snapshot.
  std::unordered_map<std::uint64_t, std::size_t> store_size_places_;  // Of them, by size.

  // Reused.
  Keys keys_;
  std::vector<std::uint32_t> ends_;
  terrace::StorePlan plan_;
  std::vector<terrace::SlotId> slots_;
  std::vector<std::pair<Entry*, terrace::SlotId>> completed_;  // And who wrote it.
};

}  // namespace terrace_kv
