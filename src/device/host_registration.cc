#include "device/host_registration.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace terrace {

std::vector<HostPiece> PiecesOf(const HostSlots& slots, std::size_t page_bytes,
                                std::size_t piece_bytes) {
  std::vector<HostPiece> pieces;
  if (slots.slot_count == 0) return pieces;
  const auto base = reinterpret_cast<std::uintptr_t>(slots.base);
  std::uintptr_t begin = base / page_bytes * page_bytes;
  for (std::size_t i = 0; i < slots.slot_count; ++i) {
    const std::uintptr_t slot_end = base + i * slots.stride_bytes + slots.chunk_bytes;
    const std::uintptr_t end = (slot_end + page_bytes - 1) / page_bytes * page_bytes;
    if (i + 1 < slots.slot_count) {
      const std::uintptr_t next = base + (i + 1) * slots.stride_bytes;
      if (next < end) continue;  // They share a page.
      if (end - begin < piece_bytes && next - slot_end < kRegisteredGapBytesMax) continue;
      pieces.push_back({reinterpret_cast<std::byte*>(begin), end - begin});
      begin = next / page_bytes * page_bytes;
    } else {
      pieces.push_back({reinterpret_cast<std::byte*>(begin), end - begin});
    }
  }
  return pieces;
}

HostRegistration::HostRegistration(CudaDriver& driver, std::vector<HostPiece> pieces)
    : driver_(driver), pieces_(std::move(pieces)) {}

Result<std::unique_ptr<HostRegistration>> HostRegistration::Start(CudaDriver& driver,
                                                                  std::vector<HostPiece> pieces) {
  std::unique_ptr<HostRegistration> made(new HostRegistration(driver, std::move(pieces)));
  auto thread = StartThread("terrace-pin", "", [raw = made.get()] { raw->Run(); });
  if (!thread.ok()) return std::move(thread).error();
  made->thread_ = std::move(thread).value();
  return made;
}

HostRegistration::~HostRegistration() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  while (registered_ > 0) {
    IgnoreError(driver_.Unregister(pieces_[--registered_].base),
                "the driver may have ended with the process");
  }
}

void HostRegistration::Run() {
  std::size_t bytes = 0;
  std::size_t total = 0;
  for (const HostPiece& piece : pieces_) total += piece.bytes;
  const auto began = std::chrono::steady_clock::now();
  for (const HostPiece& piece : pieces_) {
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (auto done = driver_.Register(piece.base, piece.bytes); !done.ok()) {
      TERRACE_LOG_WARN(
          "page-lock host memory: {} of {} MiB are, copies from and to the rest are slower: {}",
          bytes >> 20, total >> 20, done.error().message);
      return;
    }
    ++registered_;
    bytes += piece.bytes;
  }
  TERRACE_LOG_INFO("page-locked {} MiB of host memory for device copies in {:.1f} s", total >> 20,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

}  // namespace terrace
