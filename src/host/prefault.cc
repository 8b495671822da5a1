#include "host/prefault.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "host/memory_limits.h"
#include "host/region_layout.h"

// Headers of older C libraries lack it; a kernel without it answers EINVAL.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// clang's no_sanitize("thread") leaves atomic accesses instrumented, and what is inlined is its
// caller's.
#ifdef __clang__
#define TERRACE_NOT_INSTRUMENTED __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define TERRACE_NOT_INSTRUMENTED __attribute__((no_sanitize("thread"), noinline))
#endif

namespace terrace {
namespace {

constexpr std::uint64_t kPage = RegionLayout::kAlignment;
constexpr std::int64_t kLogIntervalNs = 5'000'000'000;
// How often the limits are looked at, and what must be left of them to go on.
constexpr std::uint64_t kCheckBytes = 256ULL << 20;
// Under the engine, whose threads may want every core; not so low that one that holds the kernel's
// lock of the address space would starve.
constexpr int kNice = 10;

std::int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Whole pages around what is wanted; one long row if nothing lies between rows.
PrefaultPlan Normalise(PrefaultPlan plan) {
  plan.begin = plan.begin / kPage * kPage;
  plan.end = (plan.end + kPage - 1) / kPage * kPage;
  if (plan.begin == 0 && plan.end == plan.stride_bytes) {
    plan.end *= plan.row_count;
    plan.stride_bytes = plan.end;
    plan.row_count = 1;
  }
  return plan;
}

// Writes each page without changing it, whatever others write meanwhile. A compare-and-swap of a
// byte with itself: compilers turn an atomic OR of 0 whose result nobody reads into a mere fence.
// Not for the thread sanitizer, which can't know that this write changes nothing.
TERRACE_NOT_INSTRUMENTED void TouchByHand(std::byte* begin, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kPage) {
    auto* byte = reinterpret_cast<unsigned char*>(begin + at);
    unsigned char value = __atomic_load_n(byte, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(byte, &value, value, /*weak=*/false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);  // If it fails, another's write touched it.
  }
}

}  // namespace

Result<std::unique_ptr<Prefault>> Prefault::Start(MemoryOps& ops, const PrefaultPlan& plan,
                                                  std::uint32_t thread_count) {
  std::unique_ptr<Prefault> prefault(new Prefault(ops, Normalise(plan)));
  for (std::uint32_t i = 0; i < thread_count; ++i) {
    auto thread =
        StartThread("terrace-touch", std::to_string(i), [raw = prefault.get()] { raw->Run(); });
    if (!thread.ok()) return std::move(thread).error();
    prefault->threads_.push_back(std::move(thread).value());
  }
  return prefault;
}

Prefault::Prefault(MemoryOps& ops, const PrefaultPlan& plan)
    : ops_(ops),
      plan_(plan),
      batches_per_row_((plan.end - plan.begin + kBatchBytes - 1) / kBatchBytes),
      total_bytes_((plan.end - plan.begin) * plan.row_count),
      start_ns_(NowNs()),
      logged_ns_(start_ns_) {}

Prefault::~Prefault() {
  stopping_.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads_) thread.join();
}

PrefaultProgress Prefault::progress() const {
  PrefaultProgress progress;
  progress.touched_bytes = touched_bytes_.load(std::memory_order_relaxed);
  progress.total_bytes = total_bytes_;
  MutexLock lock(mutex_);
  progress.error = error_;
  progress.state = !error_.empty()                          ? PrefaultProgress::State::kFailed
                   : progress.touched_bytes == total_bytes_ ? PrefaultProgress::State::kDone
                                                            : PrefaultProgress::State::kRunning;
  return progress;
}

void Prefault::Run() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);  // If it may not: as it is.
  while (!stopping_.load(std::memory_order_relaxed) && TouchNext()) LogProgress();
}

bool Prefault::TouchNext() {
  const std::uint64_t batch = next_batch_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t row = batch / batches_per_row_;
  if (row >= plan_.row_count) return false;
  const std::uint64_t in_row = plan_.begin + batch % batches_per_row_ * kBatchBytes;
  const std::uint64_t bytes = std::min(kBatchBytes, plan_.end - in_row);
  if (!StillHasMemory()) return false;
  if (const int error = Touch(plan_.base + row * plan_.stride_bytes + in_row, bytes); error != 0) {
    if (!stopping_.load(std::memory_order_relaxed)) {
      Fail(ErrnoError("madvise(MADV_POPULATE_WRITE)", error).message);
    }
    return false;
  }
  if (touched_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes == total_bytes_) Finish();
  return true;
}

int Prefault::Touch(std::byte* begin, std::uint64_t bytes) {
  while (populate_works_.load(std::memory_order_relaxed)) {
    const int result = ops_.Madvise(begin, bytes, MADV_POPULATE_WRITE);
    if (result == 0) return 0;
    if (result == -EINTR || result == -EAGAIN) {
      if (stopping_.load(std::memory_order_relaxed)) return -result;
      continue;
    }
    if (result != -EINVAL) return -result;
    populate_works_.store(false, std::memory_order_relaxed);  // A kernel before 5.14.
  }
  TouchByHand(begin, bytes);
  return 0;
}

// Others may have taken memory since the region was made. To touch what is not there ends in the
// OOM killer; not to touch it leaves a chance.
bool Prefault::StillHasMemory() {
  if (plan_.pages == HugePages::kExplicit) return true;
  const std::uint64_t touched = touched_bytes_.load(std::memory_order_relaxed);
  std::uint64_t due = checked_bytes_.load(std::memory_order_relaxed);
  if (touched < due) return true;
  // One thread looks; the others go on meanwhile.
  if (!checked_bytes_.compare_exchange_strong(due, touched + kCheckBytes,
                                              std::memory_order_relaxed)) {
    return true;
  }
  const AvailableMemory available = FindAvailableMemory(ops_.limits_root());
  const std::uint64_t need = std::min(total_bytes_ - touched, 2 * kCheckBytes);
  if (available.bytes >= need) return true;
  Fail(fmt::format("{} has only {} available, {} are still needed", available.limited_by,
                   FormatBytes(available.bytes), FormatBytes(total_bytes_ - touched)));
  return false;
}

void Prefault::Fail(const std::string& why) {
  const std::string touched = FormatBytes(touched_bytes_.load(std::memory_order_relaxed));
  const std::string message = fmt::format(
      "touch host memory: stopped after {} of {}: {}; the process may be killed when "
      "the rest is used; lower cpu_bytes_to_use",
      touched, FormatBytes(total_bytes_), why);
  stopping_.store(true, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    if (!error_.empty()) return;
    error_ = message;
  }
  TERRACE_LOG_ERROR("{}", message);
}

void Prefault::LogProgress() {
  const std::int64_t now = NowNs();
  std::int64_t last = logged_ns_.load(std::memory_order_relaxed);
  if (now - last < kLogIntervalNs) return;
  if (!logged_ns_.compare_exchange_strong(last, now, std::memory_order_relaxed)) return;
  TERRACE_LOG_INFO("host memory: {} of {} touched",
                   FormatBytes(touched_bytes_.load(std::memory_order_relaxed)),
                   FormatBytes(total_bytes_));
}

void Prefault::Finish() {
  const std::int64_t took_ns = NowNs() - start_ns_;
  if (took_ns < kLogIntervalNs) return;
  TERRACE_LOG_INFO("host memory: all of {} touched in {:.1f} s", FormatBytes(total_bytes_),
                   static_cast<double>(took_ns) / 1e9);
}

}  // namespace terrace
