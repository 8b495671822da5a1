// As much of CUDA's driver as copies need, for one device: the seam between CudaCopier and CUDA.
//
// The driver's library is loaded when a device is first asked for, so that neither a build nor a
// package needs CUDA; a build without CUDA's header (cuda.h) has no driver and says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "device/block_layout.h"
#include "terrace/result.h"

namespace terrace {

// CUDA's own handles.
enum class CudaStream : std::uintptr_t {};
enum class CudaEvent : std::uintptr_t {};

// Most urgent first. CUDA promises this order for kernels; for copies it may keep it or not, but
// streams never wait for one another.
enum class CudaPriority : std::uint8_t { kUrgent, kLoad, kStore };
inline constexpr std::size_t kCudaPriorityCount = 3;

// Thread-safe. Errors say which call failed, on what, and what CUDA answered.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  virtual Result<CudaStream> MakeStream(CudaPriority priority) = 0;
  virtual Result<void> DestroyStream(CudaStream stream) = 0;
  // Blocks until all that was put into the stream has ended.
  virtual Result<void> Synchronize(CudaStream stream) = 0;

  virtual Result<CudaEvent> MakeEvent() = 0;
  virtual Result<void> DestroyEvent(CudaEvent event) = 0;
  virtual Result<void> Record(CudaEvent event, CudaStream stream) = 0;
  // What comes later in the stream waits for the event, as it was recorded last.
  virtual Result<void> Await(CudaStream stream, CudaEvent event) = 0;
  virtual Result<bool> HasHappened(CudaEvent event) = 0;
  // Pre: both have happened.
  virtual Result<double> SecondsBetween(CudaEvent begin, CudaEvent end) = 0;

  // Puts copies into the stream. After an error some of them may be in it.
  virtual Result<void> Copy(CudaStream stream, std::span<const BlockPage> pages,
                            BlockJob::Direction direction) = 0;

  // Page-locks host memory. Slow: some 100 ms a GiB, and it touches every page.
  virtual Result<void> Register(std::byte* base, std::size_t bytes) = 0;
  // Pre: registered at this very address.
  virtual Result<void> Unregister(std::byte* base) = 0;
};

// A function of the driver's library by its name; null if it has none of that name.
using CudaSymbols = std::function<void*(const char* name)>;

// The driver's library. kNotFound if this build has no CUDA, or the machine has no driver.
Result<CudaSymbols> LoadCudaSymbols();

// What of cuda.h this build has: "13.0", or "none".
std::string CudaHeaderVersion();

// kNotFound if the build has no CUDA or a needed function is not there; otherwise what the driver
// answers, for instance if there is no such device. Retains the device's primary context.
Result<std::unique_ptr<CudaDriver>> OpenCudaDriver(const CudaSymbols& symbols, int device);

}  // namespace terrace
