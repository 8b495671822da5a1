// A tier for Terrace in a shared library: the example to copy. It keeps chunks in memory, the
// longest unused out first; put your storage where Shelf is.
//
// What every tier must do, and where it stands here: never block a caller (Submit() only queues, a
// thread of the tier's own copies), report each job exactly once (Finish), serve no byte that was
// not verified (Shelf::Get), give every job back at the end (Shutdown), and let no exception out
// (Guard).
#include <terrace/tier_plugin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

// As a key of containers. The bytes behind hash_size are zero, so all of them may be compared.
std::string NameOf(const terrace_tier_key& key) {
  return std::string(reinterpret_cast<const char*>(&key), sizeof(key));
}

// FNV-1a over words: finds bytes that changed, not bytes that somebody forged.
std::uint64_t Checksum(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
    hash = (hash ^ word) * 1099511628211u;
  }
  return hash;
}

// The storage. One thread puts and gets; any may ask what it has.
class Shelf {
 public:
  explicit Shelf(std::size_t chunks_max) : chunks_max_(chunks_max) {}

  bool Has(const terrace_tier_key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return places_.count(NameOf(key)) != 0;
  }
  // Bytes moved: none if it has the chunk.
  std::uint64_t Put(const terrace_tier_key& key, const void* from, std::size_t size) {
    if (Has(key)) return 0;
    Chunk chunk{NameOf(key), Checksum(from, size), std::make_shared<std::vector<char>>()};
    const auto* bytes = static_cast<const char*>(from);
    chunk.bytes->assign(bytes, bytes + size);
    const std::lock_guard<std::mutex> lock(mutex_);
    chunks_.push_back(std::move(chunk));
    places_[chunks_.back().name] = std::prev(chunks_.end());
    if (chunks_.size() > chunks_max_) Remove(chunks_.begin());
    return size;
  }
  // False if it does not have the chunk, or not as it was stored.
  bool Get(const terrace_tier_key& key, void* to, std::size_t size) {
    Chunk chunk;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = places_.find(NameOf(key));
      if (found == places_.end()) return false;
      chunks_.splice(chunks_.end(), chunks_, found->second);
      chunk = *found->second;
    }
    std::memcpy(to, chunk.bytes->data(), size);
    if (Checksum(to, size) == chunk.checksum) return true;
    const std::lock_guard<std::mutex> lock(mutex_);
    Remove(places_.at(chunk.name));
    return false;
  }

 private:
  struct Chunk {
    std::string name;
    std::uint64_t checksum = 0;
    std::shared_ptr<std::vector<char>> bytes;
  };

  void Remove(std::list<Chunk>::iterator place) {
    places_.erase(place->name);
    chunks_.erase(place);
  }

  const std::size_t chunks_max_;
  std::mutex mutex_;
  std::list<Chunk> chunks_;  // Longest unused first.
  std::unordered_map<std::string, std::list<Chunk>::iterator> places_;
};

std::uint64_t NowNs() {  // steady_clock is CLOCK_MONOTONIC.
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

// The handle that Terrace hands back with every call.
struct terrace_tier {
 public:
  terrace_tier(const terrace_tier_host& host, std::size_t chunks_max)
      : host_(host), shelf_(chunks_max), thread_([this] { Run(); }) {}

  bool Has(const terrace_tier_key& key) { return shelf_.Has(key); }

  void Submit(const terrace_tier_job* job, bool is_store) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({job, is_store});
    work_arrived_.notify_one();
  }

  std::size_t TakeFinished(terrace_tier_result* results, std::size_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t count = 0;
    for (; count < capacity && !finished_.empty(); ++count) {
      results[count] = finished_.front();
      finished_.pop_front();
    }
    return count;
  }

  bool Drain(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return became_idle_.wait_for(lock, timeout, [this] { return queue_.empty() && !running_; });
  }

  bool Shutdown(std::chrono::milliseconds timeout) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      work_arrived_.notify_one();
      // Its outcomes are "failed" until somebody says otherwise.
      for (const Work& work : queue_) finished_.push_back({work.job->id, 0, 0, NowNs()});
      queue_.clear();
      if (!became_idle_.wait_for(lock, timeout, [this] { return !running_; })) {
        return false;
      }
    }
    if (thread_.joinable()) thread_.join();
    return true;
  }

  std::uint64_t loaded_chunks() const { return loaded_chunks_; }

 private:
  struct Work {
    const terrace_tier_job* job;  // Terrace's, until it has been reported.
    bool is_store;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_arrived_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      const Work work = queue_.front();
      queue_.pop_front();
      running_ = true;
      lock.unlock();
      Finish(Copy(work));
      lock.lock();
    }
  }

  // The result first, then the notice, and that without the lock: who wakes must find it.
  void Finish(const terrace_tier_result& result) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      finished_.push_back(result);
      running_ = false;
      became_idle_.notify_all();
    }
    host_.notify_progress(host_.context);
  }

  terrace_tier_result Copy(const Work& work) {
    const terrace_tier_job& job = *work.job;
    terrace_tier_result result{};
    result.job = job.id;
    result.started_at_ns = NowNs();
    for (std::uint32_t i = 0; i < job.chunk_count; ++i) {
      try {
        if (work.is_store) {
          result.bytes += shelf_.Put(job.keys[i], job.chunks[i], host_.chunk_bytes);
        } else if (shelf_.Get(job.keys[i], job.chunks[i], host_.chunk_bytes)) {
          result.bytes += host_.chunk_bytes;
          ++loaded_chunks_;
        } else {
          continue;
        }
        job.outcomes[i] = TERRACE_TIER_COPY_OK;
      } catch (const std::exception&) {
        // No memory: this chunk failed.
      }
    }
    result.ended_at_ns = NowNs();
    return result;
  }

  const terrace_tier_host& host_;  // Lives until destroy() returns.
  Shelf shelf_;

  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable became_idle_;
  std::deque<Work> queue_;
  std::deque<terrace_tier_result> finished_;
  bool running_ = false;
  bool stopping_ = false;
  std::atomic<std::uint64_t> loaded_chunks_{0};

  std::thread thread_;  // Last: it uses all of the above.
};

namespace {

constexpr std::size_t kChunksMaxDefault = 1024;

// No more than a condition variable can count to.
std::chrono::milliseconds Milliseconds(std::uint64_t count) {
  constexpr std::uint64_t kMax = std::chrono::milliseconds(std::chrono::hours(1)).count();
  return std::chrono::milliseconds(std::min(count, kMax));
}

// Answers `otherwise` where C++ would throw: no exception may reach Terrace.
template <typename Answer, typename Body>
Answer Guard(Answer otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

// The one option by hand, to need no library here: yours has a parser for JSON.
bool TakeOptions(const std::string& options, std::size_t& chunks_max) {
  int used = 0;
  if (std::sscanf(options.c_str(), " { } %n", &used) == 0 && used > 0) {
    return static_cast<std::size_t>(used) == options.size();
  }
  const int read = std::sscanf(options.c_str(), " { \"max_chunks\" : %zu } %n", &chunks_max, &used);
  return read == 1 && static_cast<std::size_t>(used) == options.size() && chunks_max >= 1;
}

terrace_tier_status Create(const terrace_tier_host* host, terrace_tier_text options,
                           terrace_tier** tier, terrace_tier_info* info,
                           terrace_tier_error* error) {
  return Guard<terrace_tier_status>(TERRACE_TIER_RESOURCE_EXHAUSTED, [&] {
    const std::string text(options.data, options.size);
    std::size_t chunks_max = kChunksMaxDefault;
    if (!TakeOptions(text, chunks_max)) {
      std::snprintf(error->data, error->capacity,
                    "read options: only \"max_chunks\" is known, 1 or more; got %s", text.c_str());
      return TERRACE_TIER_INVALID_ARGUMENT;
    }
    *tier = new terrace_tier(*host, chunks_max);
    info->source = TERRACE_TIER_SOURCE_MEMORY;
    return TERRACE_TIER_OK;
  });
}

void Destroy(terrace_tier* tier) { delete tier; }

std::int32_t Lookup(terrace_tier* tier, const terrace_tier_key* key, const terrace_tier_request*) {
  return Guard<std::int32_t>(
      TERRACE_TIER_MISS, [&] { return tier->Has(*key) ? TERRACE_TIER_HIT : TERRACE_TIER_MISS; });
}

terrace_tier_status Submit(terrace_tier* tier, const terrace_tier_job* job, bool is_store) {
  return Guard<terrace_tier_status>(TERRACE_TIER_RESOURCE_EXHAUSTED, [&] {
    tier->Submit(job, is_store);
    return TERRACE_TIER_OK;
  });
}
terrace_tier_status SubmitStore(terrace_tier* tier, const terrace_tier_job* job) {
  return Submit(tier, job, true);
}
terrace_tier_status SubmitLoad(terrace_tier* tier, const terrace_tier_job* job) {
  return Submit(tier, job, false);
}

std::size_t TakeFinished(terrace_tier* tier, terrace_tier_result* results, std::size_t capacity) {
  return Guard<std::size_t>(0, [&] { return tier->TakeFinished(results, capacity); });
}

terrace_tier_status Drain(terrace_tier* tier, std::uint64_t timeout_ms) {
  return Guard<terrace_tier_status>(TERRACE_TIER_TIMED_OUT, [&] {
    return tier->Drain(Milliseconds(timeout_ms)) ? TERRACE_TIER_OK : TERRACE_TIER_TIMED_OUT;
  });
}

terrace_tier_status Shutdown(terrace_tier* tier, std::uint64_t timeout_ms) {
  return Guard<terrace_tier_status>(TERRACE_TIER_TIMED_OUT, [&] {
    return tier->Shutdown(Milliseconds(timeout_ms)) ? TERRACE_TIER_OK : TERRACE_TIER_TIMED_OUT;
  });
}

std::size_t ReadCounters(terrace_tier* tier, terrace_tier_counter* counters, std::size_t) {
  static constexpr char kLoaded[] = "terrace_shelf_loaded_chunks_total";
  counters[0] = {{kLoaded, sizeof(kLoaded) - 1}, tier->loaded_chunks()};
  return 1;
}

// Members that are not set here stay null: they are optional.
terrace_tier_plugin_v1 MakePlugin() {
  terrace_tier_plugin_v1 plugin{};
  plugin.struct_size = sizeof(plugin);
  plugin.abi_major = TERRACE_TIER_ABI_MAJOR;
  plugin.abi_minor = TERRACE_TIER_ABI_MINOR;
  plugin.name = {"shelf", 5};
  plugin.create = Create;
  plugin.destroy = Destroy;
  plugin.lookup = Lookup;
  plugin.submit_store = SubmitStore;
  plugin.submit_load = SubmitLoad;
  plugin.take_finished = TakeFinished;
  plugin.drain = Drain;
  plugin.shutdown = Shutdown;
  plugin.read_counters = ReadCounters;
  return plugin;
}

}  // namespace

const terrace_tier_plugin_v1* terrace_tier_plugin(std::uint32_t, std::uint32_t) {
  static const terrace_tier_plugin_v1 plugin = MakePlugin();
  return &plugin;
}
