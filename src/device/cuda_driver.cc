#include "device/cuda_driver.h"

#include <fmt/format.h>

#if defined(TERRACE_WITH_CUDA)
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <utility>
#include <vector>
#endif

namespace terrace {

#if !defined(TERRACE_WITH_CUDA)

namespace {
Error NoCuda() {
  return {ErrorCode::kNotFound,
          "this build of Terrace has no CUDA: build it where cuda.h is found (TERRACE_CUDA)"};
}
}  // namespace

Result<CudaSymbols> LoadCudaSymbols() { return NoCuda(); }
std::string CudaHeaderVersion() { return "none"; }
Result<std::unique_ptr<CudaDriver>> OpenCudaDriver(const CudaSymbols& /*symbols*/, int /*device*/) {
  return NoCuda();
}

#else

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The functions by the names of their ABI, which cuda.h hides behind macros. All have been there
// since CUDA 11; those that came later are null in an older driver.
struct Functions {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) context_retain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) context_release = nullptr;
  decltype(&::cuCtxPushCurrent) context_push = nullptr;
  decltype(&::cuCtxPopCurrent) context_pop = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode) exchange_capture_mode = nullptr;
  decltype(&::cuCtxGetStreamPriorityRange) priority_range = nullptr;
  decltype(&::cuStreamCreateWithPriority) stream_create = nullptr;
  decltype(&::cuStreamDestroy) stream_destroy = nullptr;
  decltype(&::cuStreamSynchronize) stream_synchronize = nullptr;
  decltype(&::cuStreamWaitEvent) stream_wait_event = nullptr;
  decltype(&::cuEventCreate) event_create = nullptr;
  decltype(&::cuEventDestroy) event_destroy = nullptr;
  decltype(&::cuEventRecord) event_record = nullptr;
  decltype(&::cuEventQuery) event_query = nullptr;
  decltype(&::cuEventElapsedTime) event_elapsed_time = nullptr;
  decltype(&::cuMemcpyAsync) copy = nullptr;
  decltype(&::cuMemHostRegister) host_register = nullptr;
  decltype(&::cuMemHostUnregister) host_unregister = nullptr;
#if CUDA_VERSION >= 12080
  // CUDA 13 dropped the index of what failed, under a new name.
  CUresult (*copy_batch_12)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                            size_t*, size_t, size_t*, CUstream) = nullptr;
  CUresult (*copy_batch_13)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                            size_t*, size_t, CUstream) = nullptr;
#endif
};

// Looks functions up, and remembers which was not there.
class Finder {
 public:
  explicit Finder(const CudaSymbols& symbols) : symbols_(symbols) {}

  template <typename Function>
  void Optional(Function& function, const char* name) {
    function = reinterpret_cast<Function>(symbols_(name));
  }
  template <typename Function>
  void Needed(Function& function, const char* name) {
    Optional(function, name);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  const CudaSymbols& symbols_;
  std::string missing_;
};

Result<Functions> Find(const CudaSymbols& symbols) {
  Functions f;
  Finder finder(symbols);
  finder.Needed(f.init, "cuInit");
  finder.Needed(f.get_error_name, "cuGetErrorName");
  finder.Needed(f.get_error_string, "cuGetErrorString");
  finder.Needed(f.device_get, "cuDeviceGet");
  finder.Needed(f.context_retain, "cuDevicePrimaryCtxRetain");
  finder.Needed(f.context_release, "cuDevicePrimaryCtxRelease_v2");
  finder.Needed(f.context_push, "cuCtxPushCurrent_v2");
  finder.Needed(f.context_pop, "cuCtxPopCurrent_v2");
  finder.Needed(f.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  finder.Needed(f.priority_range, "cuCtxGetStreamPriorityRange");
  finder.Needed(f.stream_create, "cuStreamCreateWithPriority");
  finder.Needed(f.stream_destroy, "cuStreamDestroy_v2");
  finder.Needed(f.stream_synchronize, "cuStreamSynchronize");
  finder.Needed(f.stream_wait_event, "cuStreamWaitEvent");
  finder.Needed(f.event_create, "cuEventCreate");
  finder.Needed(f.event_destroy, "cuEventDestroy_v2");
  finder.Needed(f.event_record, "cuEventRecord");
  finder.Needed(f.event_query, "cuEventQuery");
  finder.Needed(f.event_elapsed_time, "cuEventElapsedTime");
  finder.Needed(f.copy, "cuMemcpyAsync");
  finder.Needed(f.host_register, "cuMemHostRegister_v2");
  finder.Needed(f.host_unregister, "cuMemHostUnregister");
#if CUDA_VERSION >= 12080
  finder.Optional(f.copy_batch_13, "cuMemcpyBatchAsync_v2");
  finder.Optional(f.copy_batch_12, "cuMemcpyBatchAsync");
#endif
  if (!finder.missing().empty()) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{} has no function {}: the CUDA driver is too old", kLibrary,
                             finder.missing())};
  }
  return f;
}

ErrorCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
      return ErrorCode::kInvalidArgument;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ErrorCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return ErrorCode::kNotFound;
    case CUDA_ERROR_NOT_PERMITTED:
      return ErrorCode::kPermissionDenied;
    default:
      return ErrorCode::kUnavailable;
  }
}

class LibraryDriver final : public CudaDriver {
 public:
  LibraryDriver(const Functions& functions, int ordinal) : cuda_(functions), ordinal_(ordinal) {}

  ~LibraryDriver() override {
    if (context_ != nullptr) cuda_.context_release(device_);
  }

  Result<void> Open() {
    if (auto done = Answer("cuInit", cuda_.init(0)); !done.ok()) return done;
    if (auto done = Answer("cuDeviceGet", cuda_.device_get(&device_, ordinal_)); !done.ok()) {
      return done;
    }
    if (auto done = Answer("cuDevicePrimaryCtxRetain", cuda_.context_retain(&context_, device_));
        !done.ok()) {
      context_ = nullptr;
      return done;
    }
    return Within("cuCtxGetStreamPriorityRange",
                  [&] { return cuda_.priority_range(&priority_least_, &priority_greatest_); });
  }

  Result<CudaStream> MakeStream(CudaPriority priority) override {
    const int number = PriorityNumber(priority);
    CUstream stream = nullptr;
    auto made = Within("cuStreamCreateWithPriority", [&] {
      return cuda_.stream_create(&stream, CU_STREAM_NON_BLOCKING, number);
    });
    if (!made.ok()) return std::move(made).error();
    return static_cast<CudaStream>(reinterpret_cast<std::uintptr_t>(stream));
  }
  Result<void> DestroyStream(CudaStream stream) override {
    return Within("cuStreamDestroy", [&] { return cuda_.stream_destroy(Raw(stream)); });
  }
  Result<void> Synchronize(CudaStream stream) override {
    return Within("cuStreamSynchronize", [&] { return cuda_.stream_synchronize(Raw(stream)); });
  }

  Result<CudaEvent> MakeEvent() override {
    CUevent event = nullptr;
    auto made =
        Within("cuEventCreate", [&] { return cuda_.event_create(&event, CU_EVENT_DEFAULT); });
    if (!made.ok()) return std::move(made).error();
    return static_cast<CudaEvent>(reinterpret_cast<std::uintptr_t>(event));
  }
  Result<void> DestroyEvent(CudaEvent event) override {
    return Within("cuEventDestroy", [&] { return cuda_.event_destroy(Raw(event)); });
  }
  Result<void> Record(CudaEvent event, CudaStream stream) override {
    return Within("cuEventRecord", [&] { return cuda_.event_record(Raw(event), Raw(stream)); });
  }
  Result<void> Await(CudaStream stream, CudaEvent event) override {
    return Within("cuStreamWaitEvent",
                  [&] { return cuda_.stream_wait_event(Raw(stream), Raw(event), 0); });
  }
  Result<bool> HasHappened(CudaEvent event) override {
    bool pending = false;
    auto asked = Within("cuEventQuery", [&] {
      const CUresult result = cuda_.event_query(Raw(event));
      pending = result == CUDA_ERROR_NOT_READY;
      return pending ? CUDA_SUCCESS : result;
    });
    if (!asked.ok()) return std::move(asked).error();
    return !pending;
  }
  Result<double> SecondsBetween(CudaEvent begin, CudaEvent end) override {
    float milliseconds = 0;
    auto asked = Within("cuEventElapsedTime", [&] {
      return cuda_.event_elapsed_time(&milliseconds, Raw(begin), Raw(end));
    });
    if (!asked.ok()) return std::move(asked).error();
    return milliseconds / 1e3;
  }

  Result<void> Copy(CudaStream stream, std::span<const BlockPage> pages,
                    BlockJob::Direction direction) override {
    std::vector<CUdeviceptr> to, from;
    std::vector<size_t> sizes;
    for (const BlockPage& page : pages) {
      const auto engine = reinterpret_cast<CUdeviceptr>(page.engine);
      const auto host = reinterpret_cast<CUdeviceptr>(page.host);
      const bool store = direction == BlockJob::Direction::kStore;
      to.push_back(store ? host : engine);
      from.push_back(store ? engine : host);
      sizes.push_back(page.bytes);
    }
#if CUDA_VERSION >= 12080
    if (cuda_.copy_batch_13 != nullptr || cuda_.copy_batch_12 != nullptr) {
      return CopyBatch(Raw(stream), to, from, sizes, direction);
    }
#endif
    return Within("cuMemcpyAsync", [&] {
      CUresult result = CUDA_SUCCESS;
      for (std::size_t i = 0; i < sizes.size() && result == CUDA_SUCCESS; ++i) {
        result = cuda_.copy(to[i], from[i], sizes[i], Raw(stream));
      }
      return result;
    });
  }

  Result<void> Register(std::byte* base, std::size_t bytes) override {
    return Within("cuMemHostRegister",
                  [&] { return cuda_.host_register(base, bytes, CU_MEMHOSTREGISTER_PORTABLE); });
  }
  Result<void> Unregister(std::byte* base) override {
    return Within("cuMemHostUnregister", [&] { return cuda_.host_unregister(base); });
  }

 private:
  // Lower numbers go first; a device may have one only.
  int PriorityNumber(CudaPriority priority) const {
    switch (priority) {
      case CudaPriority::kUrgent:
        return priority_greatest_;
      case CudaPriority::kLoad:
        return std::min(priority_greatest_ + 1, priority_least_);
      case CudaPriority::kStore:
        break;
    }
    return priority_least_;
  }

  static CUstream Raw(CudaStream stream) {
    return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(stream));
  }
  static CUevent Raw(CudaEvent event) {
    return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(event));
  }

#if CUDA_VERSION >= 12080
  Result<void> CopyBatch(CUstream stream, std::vector<CUdeviceptr>& to,
                         std::vector<CUdeviceptr>& from, std::vector<size_t>& sizes,
                         BlockJob::Direction direction) {
    CUmemcpyAttributes attributes{};
    // What a load reads lies still from before Submit() to its end. What a store reads is written
    // by what it comes after.
    attributes.srcAccessOrder = direction == BlockJob::Direction::kLoad
                                    ? CU_MEMCPY_SRC_ACCESS_ORDER_ANY
                                    : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t first = 0;
    if (cuda_.copy_batch_13 != nullptr) {
      return Within("cuMemcpyBatchAsync", [&] {
        return cuda_.copy_batch_13(to.data(), from.data(), sizes.data(), sizes.size(), &attributes,
                                   &first, 1, stream);
      });
    }
    size_t failed = 0;
    return Within("cuMemcpyBatchAsync", [&] {
      return cuda_.copy_batch_12(to.data(), from.data(), sizes.data(), sizes.size(), &attributes,
                                 &first, 1, &failed, stream);
    });
  }
#endif

  Result<void> Answer(const char* call, CUresult result) const {
    if (result == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    const char* text = nullptr;
    cuda_.get_error_name(result, &name);
    cuda_.get_error_string(result, &text);
    return Error{CodeOf(result), fmt::format("{} on CUDA device {}: {} ({})", call, ordinal_,
                                             name != nullptr ? name : "unknown error",
                                             text != nullptr ? text : fmt::to_string(+result))};
  }

  // `body` with the device's context current, whichever the caller's thread has. An engine captures
  // graphs while memory is page-locked: without leave, calls of another thread would be refused
  // then, and spoil the capture.
  template <typename Body>
  Result<void> Within(const char* call, Body body) const {
    if (auto pushed = Answer("cuCtxPushCurrent", cuda_.context_push(context_)); !pushed.ok()) {
      return pushed;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda_.exchange_capture_mode(&mode);
    const CUresult result = body();
    cuda_.exchange_capture_mode(&mode);
    CUcontext popped = nullptr;
    cuda_.context_pop(&popped);
    return Answer(call, result);
  }

  const Functions cuda_;
  const int ordinal_;
  // Constant after Open().
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  int priority_least_ = 0;
  int priority_greatest_ = 0;
};

}  // namespace

Result<CudaSymbols> LoadCudaSymbols() {
  // Never closed: CUDA's library has threads and handlers of its own.
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("no CUDA driver on this machine: {} is not found", kLibrary)};
  }
  return CudaSymbols([](const char* name) { return dlsym(library, name); });
}

std::string CudaHeaderVersion() {
  return fmt::format("{}.{}", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
}

Result<std::unique_ptr<CudaDriver>> OpenCudaDriver(const CudaSymbols& symbols, int device) {
  auto functions = Find(symbols);
  if (!functions.ok()) return std::move(functions).error();
  auto driver = std::make_unique<LibraryDriver>(functions.value(), device);
  if (auto opened = driver->Open(); !opened.ok()) return std::move(opened).error();
  return std::unique_ptr<CudaDriver>(std::move(driver));
}

#endif

}  // namespace terrace
