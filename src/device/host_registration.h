// Page-locks slots for a CUDA device in the background, so that its copies need no staging.
//
// Piece by piece, each a call of its own: one call over all of it would hold up whoever maps memory
// in this process for as long as that takes. No slot lies on two pieces, as CUDA refuses a copy
// across two registrations.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "device/cuda_driver.h"
#include "terrace/result.h"
#include "terrace/worker.h"

namespace terrace {

struct HostPiece {
  std::byte* base;
  std::size_t bytes;
  bool operator==(const HostPiece&) const = default;
};

// Whole pages that together have all slots; no two share a page, no slot lies on two. Of about
// `piece_bytes`, if the slots' places permit it; gaps of at least kRegisteredGapBytesMax between
// slots (other ranks' parts) are left out.
std::vector<HostPiece> PiecesOf(const HostSlots& slots, std::size_t page_bytes,
                                std::size_t piece_bytes);
inline constexpr std::size_t kRegisteredGapBytesMax = std::size_t{2} << 20;

// Confined to one thread at a time.
class HostRegistration {
 public:
  // Starts the thread. It ends with the last piece, or the first that is refused: then a warning
  // says so, once, and the rest stays as it is. `driver` and the memory outlive this.
  // kResourceExhausted if the system has no thread left.
  static Result<std::unique_ptr<HostRegistration>> Start(CudaDriver& driver,
                                                         std::vector<HostPiece> pieces);
  // Waits for the piece under way, and takes all of them back.
  // Pre: no copy is under way from or to the memory.
  ~HostRegistration();
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

 private:
  HostRegistration(CudaDriver& driver, std::vector<HostPiece> pieces);
  void Run();

  CudaDriver& driver_;
  const std::vector<HostPiece> pieces_;
  std::thread thread_;
  std::size_t registered_ = 0;         // Of the thread; of the destructor once it is joined.
  std::atomic<bool> stopping_{false};  // Orders nothing: relaxed.
};

}  // namespace terrace
