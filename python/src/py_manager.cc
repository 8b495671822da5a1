#include "py_manager.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace terrace_kv {

using terrace::ChunkKey;
using terrace::CopyOutcome;
using terrace::ErrorCode;
using terrace::Lane;
using terrace::LookupResult;
using terrace::RequestId;
using terrace::SlotId;
using EventKind = terrace::CacheEvent::Kind;

namespace {

constexpr const char* kHolder = "engine, by Python";
constexpr std::size_t kChangedChunksMax = 1 << 18;  // That wait for take_events().

// Differs for each thread.
const void* ThisThread() {
  static thread_local char marker;
  return &marker;
}

nb::object NameOf(nb::handle request) {
  if (PyUnicode_Check(request.ptr())) return nb::borrow(request);
  static PyObject* const req_id = PyUnicode_InternFromString("req_id");
  PyObject* name = PyObject_GetAttr(request.ptr(), req_id);
  if (name == nullptr) throw nb::python_error();
  return nb::steal(name);
}

}  // namespace

PyManager::Region::Region(PyManager& manager) : manager_(manager) {
  taken_ = manager.owner_.load(std::memory_order_relaxed) != ThisThread();
  if (taken_) manager_.Lock();
  if (manager_.is_inside_) {  // So the lock was held.
    PyErr_SetString(PyExc_RuntimeError, "a tier must not call the manager that calls it");
    throw nb::python_error();
  }
  manager_.is_inside_ = true;
}

PyManager::Region::~Region() {
  manager_.is_inside_ = false;
  if (taken_) manager_.Unlock();
}

PyManager::PyManager(std::shared_ptr<terrace::Node> node, std::shared_ptr<RequestBook> book,
                     nb::sequence answers, Options options)
    : node_(std::move(node)),
      manager_(node_->manager()),
      book_(std::move(book)),
      options_(options),
      forks_(Forks()) {
  if (nb::len(answers) != 4) throw nb::value_error("answers are four: miss, hit, pending, retry");
  for (std::size_t i = 0; i < 4; ++i) answers_[i] = answers[i];
  slot_writers_.resize(node_->host_slots().slot_count);
}

// A lock that nobody can give back any more must not keep the node from ending.
PyManager::~PyManager() {
  if (HoldsLock()) Unlock();
}

void PyManager::CheckMayCall() const {
  if (Forks() != forks_) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this process was forked from the node's, which alone may call its manager");
    throw nb::python_error();
  }
  // The lock may be the control thread's, which asks a tier: whoever waits for itself waits for
  // ever.
  if (!book_->ThisThreadAsks()) return;
  PyErr_SetString(PyExc_RuntimeError, "a tier must not call the manager that calls it");
  throw nb::python_error();
}

void PyManager::Lock() {
  if (owner_.load(std::memory_order_relaxed) == ThisThread()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this thread holds the manager's lock already; it is not re-entrant");
    throw nb::python_error();
  }
  CheckMayCall();
  if (!manager_.TryLockFor(std::chrono::nanoseconds(0), Lane::kEngine, kHolder)) {
    const WithoutInterpreter released;
    manager_.Lock(Lane::kEngine, kHolder);
  }
  owner_.store(ThisThread(), std::memory_order_relaxed);
}

bool PyManager::TryLockFor(double timeout_s) {
  if (HoldsLock()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this thread holds the manager's lock already; it is not re-entrant");
    throw nb::python_error();
  }
  CheckMayCall();
  bool locked = manager_.TryLockFor(std::chrono::nanoseconds(0), Lane::kEngine, kHolder);
  if (!locked && timeout_s > 0) {
    const WithoutInterpreter released;
    locked = manager_.TryLockFor(Milliseconds(timeout_s), Lane::kEngine, kHolder);
  }
  if (locked) owner_.store(ThisThread(), std::memory_order_relaxed);
  return locked;
}

void PyManager::Unlock() {
  if (owner_.load(std::memory_order_relaxed) != ThisThread()) {
    PyErr_SetString(PyExc_RuntimeError, "this thread does not hold the manager's lock");
    throw nb::python_error();
  }
  if (is_inside_) {
    PyErr_SetString(
        PyExc_RuntimeError,
        "a tier must not give up the lock of the call that asks it, nor end the manager");
    throw nb::python_error();
  }
  owner_.store(nullptr, std::memory_order_relaxed);
  manager_.Unlock();
}

bool PyManager::HoldsLock() const { return owner_.load(std::memory_order_relaxed) == ThisThread(); }

PyManager::Entry* PyManager::FindEntry(nb::handle name) {
  if (last_entry_ != nullptr && name.ptr() == last_name_.ptr()) return last_entry_;
  PyObject* number = PyDict_GetItemWithError(numbers_.ptr(), name.ptr());
  if (number == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return nullptr;
  }
  const auto found = entries_.find(PyLong_AsUnsignedLongLong(number));
  if (found == entries_.end()) return nullptr;
  last_name_ = nb::borrow(name);
  last_entry_ = found->second.get();
  return last_entry_;
}

// A request that was not announced is announced by its first call.
PyManager::Entry& PyManager::EntryOf(nb::handle request) {
  nb::object name = NameOf(request);
  if (Entry* entry = FindEntry(name)) return *entry;
  Entry& entry = Add(request, std::move(name));
  manager_.AssertHeld();
  manager_.OnNewRequest(entry.request);
  return entry;
}

PyManager::Entry& PyManager::Add(nb::handle request, nb::object name) {
  const std::uint64_t number = next_number_++;
  auto made = std::make_unique<Entry>();
  made->request.id = RequestId(number);
  made->name = name;
  numbers_[name] = number;
  if (book_->any_tier) book_->Add(made->request.id, nb::borrow(request));
  Entry& entry = *made;
  entries_.emplace(number, std::move(made));
  last_name_ = std::move(name);
  last_entry_ = &entry;
  return entry;
}

void PyManager::ForgetIfDone(Entry& entry) {
  if (!entry.finished || !entry.loads.empty() || entry.stores > 0 || !entry.reset_loads.empty() ||
      !entry.reset_stores.empty()) {
    return;
  }
  const std::uint64_t number = entry.request.id.value;
  if (last_entry_ == &entry) {
    last_entry_ = nullptr;
    last_name_ = nb::none();
  }
  lingering_.erase(number);
  entries_.erase(number);
}

bool PyManager::OnNewRequest(nb::handle request, std::uint32_t load_from,
                             std::optional<std::string> route) {
  std::shared_ptr<const terrace::PeerRoute> parsed;
  if (route) {
    parsed =
        std::make_shared<terrace::PeerRoute>(ValueOrRaise(terrace::ParseTransferParams(*route)));
  }
  Region region(*this);
  manager_.AssertHeld();
  nb::object name = NameOf(request);
  if (Entry* before = FindEntry(name)) Finish(*before);  // The same name again.
  Entry& entry = Add(request, std::move(name));
  entry.request.route = std::move(parsed);
  entry.request.load_from = terrace::LoadSourceSet::None();
  for (std::size_t i = 0; i < terrace::kLoadSourceCount; ++i) {
    if ((load_from >> i & 1) == 0) continue;
    entry.request.load_from = entry.request.load_from.With(static_cast<terrace::LoadSource>(i));
  }
  return manager_.OnNewRequest(entry.request) == terrace::StoreInterest::kWholeRequest;
}

nb::object PyManager::Lookup(nb::handle key, nb::handle request) {
  const ChunkKey parsed = KeyOf(key);
  Region region(*this);
  manager_.AssertHeld();
  Entry& entry = EntryOf(request);
  const bool timed = hit_time_.count % 16 == 0;
  std::chrono::steady_clock::time_point began;
  if (timed) began = std::chrono::steady_clock::now();
  const LookupResult result = manager_.Lookup(parsed, entry.request);
  if (result == LookupResult::kHit) {
    if (timed) last_hit_time_ = std::chrono::steady_clock::now() - began;
    hit_time_.Add(last_hit_time_);
  } else if (result == LookupResult::kMiss) {
    ++misses_;
  }
  return answers_[static_cast<std::size_t>(result)];
}

nb::str PyManager::GetLoadSource(nb::handle key, nb::handle request) {
  const ChunkKey parsed = KeyOf(key);
  Region region(*this);
  manager_.AssertHeld();
  const auto source = LoadSourceName(manager_.GetLoadSource(parsed, EntryOf(request).request));
  return nb::str(source.data(), source.size());
}

namespace {

template <typename T>
T EndsOf(nb::handle ends) {
  T out;
  if (nb::try_cast(ends, out)) return out;
  PyErr_SetString(
      PyExc_TypeError,
      "ends are whole numbers from 0 to 4294967295, one for each key, or a dict of them");
  throw nb::python_error();
}

}  // namespace

bool PyManager::TakeEnds(nb::handle ends) {
  ends_.clear();
  if (ends.is_none()) return false;
  if (!PyDict_Check(ends.ptr())) {
    ends_ = EndsOf<std::vector<std::uint32_t>>(ends);
    if (ends_.size() != keys_.keys.size()) throw nb::value_error("as many ends as keys");
    return true;
  }
  ends_.reserve(keys_.keys.size());
  for (std::size_t i = 0; i < keys_.keys.size(); ++i) {
    PyObject* end = PyDict_GetItemWithError(ends.ptr(), keys_.item(i).ptr());
    if (end == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      ends_.clear();
      return false;
    }
    ends_.push_back(EndsOf<std::uint32_t>(nb::handle(end)));
  }
  return true;
}

nb::object PyManager::PrepareLoad(nb::handle keys, nb::handle request, nb::handle ends,
                                  bool packed) {
  Region region(*this);
  manager_.AssertHeld();
  KeysOf(keys, keys_);
  TakeEnds(ends);
  if (HasRepeats(keys_.keys)) throw nb::value_error("a chunk is named twice in one call");
  Entry& entry = EntryOf(request);
  slots_.resize(keys_.keys.size());
  if (!manager_.PrepareLoad(keys_.keys, entry.request, slots_, ends_)) {
    Raise({ErrorCode::kNotFound,
           "prepare to load " + std::to_string(slots_.size()) +
               " chunks: one of them is not in host memory any more; look it up under the same "
               "hold of the lock"});
  }
  entry.loads.insert(entry.loads.end(), slots_.begin(), slots_.end());
  if (packed) return PackedOf(slots_);
  return ListOf(slots_);
}

void PyManager::CompleteLoad(nb::handle keys, nb::handle request) {
  Region region(*this);
  manager_.AssertHeld();
  KeysOf(keys, keys_);
  const nb::object name = NameOf(request);
  slots_.clear();
  for (const ChunkKey& key : keys_.keys) {
    if (const auto slot = manager_.SlotOf(key)) slots_.push_back(*slot);
  }
  std::sort(slots_.begin(), slots_.end());
  if (Entry* entry = FindEntry(name)) Unpin(slots_, *entry);
  std::vector<Entry*> before;
  for (const auto& [number, entry] : lingering_) {
    if (!entry->loads.empty() && entry->name.equal(name)) before.push_back(entry);
  }
  for (Entry* entry : before) Unpin(slots_, *entry);
}

void PyManager::Unpin(std::vector<SlotId> slots, Entry& entry) {
  manager_.AssertHeld();
  std::sort(entry.loads.begin(), entry.loads.end());
  std::vector<SlotId> ended;
  std::set_intersection(entry.loads.begin(), entry.loads.end(), slots.begin(), slots.end(),
                        std::back_inserter(ended));
  if (ended.empty()) return;
  std::vector<SlotId> left;
  std::set_difference(entry.loads.begin(), entry.loads.end(), ended.begin(), ended.end(),
                      std::back_inserter(left));
  entry.loads = std::move(left);
  manager_.CompleteLoad(ended, entry.request);
  ForgetIfDone(entry);
}

void PyManager::Touch(nb::handle keys, nb::handle request) {
  Region region(*this);
  manager_.AssertHeld();
  KeysOf(keys, keys_);
  manager_.Touch(keys_.keys, EntryOf(request).request);
}

void PyManager::CountStore(std::uint64_t wanted) {
  if (wanted == 0) return;
  const auto [place, is_new] = store_size_places_.try_emplace(wanted, store_sizes_.size());
  if (is_new) store_sizes_.emplace_back(wanted, 0);
  ++store_sizes_[place->second].second;
}

nb::object PyManager::PrepareStore(nb::handle keys, nb::handle request, bool is_sequence,
                                   nb::handle ends, bool packed) {
  Region region(*this);
  manager_.AssertHeld();
  KeysOf(keys, keys_);
  if (!TakeEnds(ends) && PyDict_Check(ends.ptr())) is_sequence = false;
  if (HasRepeats(keys_.keys)) throw nb::value_error("a chunk is named twice in one call");
  Entry& entry = EntryOf(request);
  entry.request.is_sequence = is_sequence;
  const auto outcome = manager_.PrepareStore(keys_.keys, entry.request, plan_, ends_);
  CountStore(plan_.wanted);
  if (outcome == terrace::StoreOutcome::kNoRoom) return nb::none();
  if (!plan_.evicted.empty()) NoteChanges();
  nb::list kept;
  std::size_t at = 0;
  for (const ChunkKey& key : plan_.keys) {  // A subset, in the offer's order.
    while (keys_.keys[at] != key) ++at;
    kept.append(keys_.item(at++));
  }
  for (const SlotId slot : plan_.slots) slot_writers_[slot.value] = &entry;
  entry.stores += static_cast<std::uint32_t>(plan_.slots.size());
  nb::list evicted;
  for (const ChunkKey& key : plan_.evicted) evicted.append(BytesOf(key));
  if (packed) return nb::make_tuple(kept, PackedOf(plan_.slots), evicted);
  return nb::make_tuple(kept, ListOf(plan_.slots), evicted);
}

void PyManager::CompleteStore(nb::handle keys, nb::handle /*request*/, bool success) {
  Region region(*this);
  manager_.AssertHeld();
  KeysOf(keys, keys_);
  completed_.clear();
  for (const ChunkKey& key : keys_.keys) {
    const auto slot = manager_.SlotOf(key);
    if (!slot) continue;
    // A chunk that is named twice is completed once.
    Entry* const writer = std::exchange(slot_writers_[slot->value], nullptr);
    if (writer != nullptr) completed_.emplace_back(writer, *slot);
  }
  // In one call for each request, as a rule one.
  while (!completed_.empty()) {
    Entry& writer = *completed_.front().first;
    slots_.clear();
    std::erase_if(completed_, [&](const auto& one) {
      if (one.first != &writer) return false;
      slots_.push_back(one.second);
      return true;
    });
    writer.stores -= static_cast<std::uint32_t>(slots_.size());
    manager_.CompleteStore(slots_, writer.request,
                           success ? CopyOutcome::kOk : CopyOutcome::kFailed);
    ForgetIfDone(writer);
  }
  NoteChanges();
}

void PyManager::OnRequestFinished(nb::handle request) {
  Region region(*this);
  manager_.AssertHeld();
  const nb::object name = NameOf(request);
  if (Entry* entry = FindEntry(name)) Finish(*entry);
}

void PyManager::Finish(Entry& entry) {
  manager_.AssertHeld();
  if (PyDict_DelItem(numbers_.ptr(), entry.name.ptr()) != 0) PyErr_Clear();  // Its hash changed.
  last_entry_ = nullptr;
  last_name_ = nb::none();
  entry.finished = true;
  manager_.OnRequestFinished(entry.request);
  lingering_.emplace(entry.request.id.value, &entry);
  ForgetIfDone(entry);
}

void PyManager::OnScheduleEnd(nb::object step) {
  Region region(*this);
  manager_.AssertHeld();
  book_->step = std::move(step);
  manager_.OnScheduleEnd();
  book_->step = nb::none();
}

bool PyManager::HasPendingWork() {
  Region region(*this);
  manager_.AssertHeld();
  return manager_.HasPendingWork();
}

void PyManager::NoteChanges() {
  if (!options_.records_events) return;
  manager_.AssertHeld();
  // Of one call: changes of before have their own items.
  const std::size_t before = changes_.size();
  for (const terrace::CacheEvent& event : manager_.TakeEvents()) {
    if (event.kind == EventKind::kLost) {
      changes_lost_ = true;
      continue;
    }
    if (changes_.size() == before || changes_.back().kind != event.kind) {
      changes_.push_back({event.kind, {}});
    }
    changes_.back().keys.push_back(event.key);
    ++changed_chunks_;
  }
  if (changed_chunks_ > kChangedChunksMax) changes_lost_ = true;
  if (changes_lost_) {
    changes_.clear();
    changed_chunks_ = 0;
  }
}

nb::list PyManager::TakeEvents() {
  Region region(*this);
  manager_.AssertHeld();
  NoteChanges();
  nb::list events;
  if (std::exchange(changes_lost_, false)) events.append(nb::make_tuple("lost", nb::list()));
  for (const Change& change : changes_) {
    nb::list keys;
    for (const ChunkKey& key : change.keys) {
      // One that came back since is announced by what came of that.
      if (change.kind == EventKind::kFailed && manager_.SlotOf(key)) continue;
      keys.append(BytesOf(key));
    }
    if (nb::len(keys) == 0) continue;
    const char* kind = "stored";
    if (change.kind == EventKind::kRemoved) kind = "removed";
    if (change.kind == EventKind::kFailed) kind = "failed";
    events.append(nb::make_tuple(kind, keys));
  }
  changes_.clear();
  changed_chunks_ = 0;
  return events;
}

nb::list PyManager::ReadyChunks() {
  Region region(*this);
  manager_.AssertHeld();
  nb::list keys;
  for (const ChunkKey& key : manager_.ReadyChunks()) keys.append(BytesOf(key));
  return keys;
}

nb::tuple PyManager::ResetCache() {
  Region region(*this);
  manager_.AssertHeld();
  for (std::uint32_t slot = 0; slot < slot_writers_.size(); ++slot) {
    Entry* writer = std::exchange(slot_writers_[slot], nullptr);
    if (writer != nullptr) writer->reset_stores.emplace_back(slot);
  }
  for (const auto& [number, entry] : entries_) {
    entry->stores = 0;
    entry->reset_loads.insert(entry->reset_loads.end(), entry->loads.begin(), entry->loads.end());
    entry->loads.clear();
  }
  const terrace::ResetReport report = manager_.ResetCache();
  return nb::make_tuple(report.removed_chunks, report.busy_slots);
}

std::uint64_t PyManager::OnResetFlushed() {
  Region region(*this);
  manager_.AssertHeld();
  std::uint64_t freed = 0;
  std::vector<Entry*> entries;
  for (const auto& [number, entry] : entries_) entries.push_back(entry.get());
  for (Entry* entry : entries) {
    const auto loads = std::exchange(entry->reset_loads, {});
    const auto stores = std::exchange(entry->reset_stores, {});
    freed += loads.size() + stores.size();
    if (!loads.empty()) manager_.CompleteLoad(loads, entry->request);
    if (!stores.empty()) manager_.CompleteStore(stores, entry->request, CopyOutcome::kFailed);
    ForgetIfDone(*entry);
  }
  return freed;
}

PyManager::Snapshot PyManager::TakeSnapshot() {
  Region region(*this);
  manager_.AssertHeld();
  return {manager_.Stats(), misses_, hit_time_, store_sizes_, options_.store_threshold};
}

bool PyManager::Drain(double timeout_s) {
  if (HoldsLock()) {
    PyErr_SetString(PyExc_RuntimeError, "drain() must be called without holding the lock");
    throw nb::python_error();
  }
  CheckMayCall();
  const WithoutInterpreter released;
  return node_->Drain(Milliseconds(timeout_s));
}

void PyManager::Shutdown() {
  if (Forks() != forks_) return;  // There is nothing of it to end.
  CheckMayCall();
  if (HoldsLock()) Unlock();  // As after an engine's step that failed: nothing follows.
  const WithoutInterpreter released;
  node_->Shutdown();
}

}  // namespace terrace_kv
