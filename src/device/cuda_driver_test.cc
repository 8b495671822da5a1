// The driver against functions of CUDA's ABI that write down how they are called.
#include "device/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Address = unsigned long long;

// What the functions below share; they have no object to be called on.
struct Library {
  std::vector<std::string> calls;
  std::map<std::string, int> answers;  // Other than 0.
  int contexts = 0;                    // Pushed, and not popped.
  int capture_mode = 0;                // 0: CUDA's default, 2: captures elsewhere do not matter.
};
Library library;

int Answer(const std::string& call) {
  library.calls.push_back(call);
  const auto found = library.answers.find(call.substr(0, call.find(' ')));
  return found == library.answers.end() ? 0 : found->second;
}
std::string Text(const void* handle) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(handle));
}
int InContext(const std::string& call) {
  EXPECT_EQ(library.contexts, 1) << call;
  EXPECT_EQ(library.capture_mode, 2) << call;
  return Answer(call);
}
void* Handle(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

std::string OneCopy(Address to, Address from, std::size_t bytes) {
  return std::to_string(to) + "<" + std::to_string(from) + ":" + std::to_string(bytes);
}

extern "C" {
int FakeInit(unsigned) { return Answer("init"); }
int FakeErrorName(int error, const char** name) {
  *name = error == 999 ? nullptr : "CUDA_ERROR_FAKE";
  return 0;
}
int FakeErrorString(int error, const char** text) {
  *text = error == 999 ? nullptr : "it is a fake";
  return 0;
}
int FakeDeviceGet(int* device, int ordinal) {
  *device = 70 + ordinal;
  return Answer("get " + std::to_string(ordinal));
}
int FakeRetain(void** context, int device) {
  *context = Handle(5);
  return Answer("retain " + std::to_string(device));
}
int FakeRelease(int device) { return Answer("release " + std::to_string(device)); }
int FakePush(void* context) {
  EXPECT_EQ(context, Handle(5));
  ++library.contexts;
  return 0;
}
int FakePop(void** context) {
  *context = Handle(5);
  --library.contexts;
  return 0;
}
int FakeCaptureMode(int* mode) {
  std::swap(library.capture_mode, *mode);
  return 0;
}
int FakePriorities(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return InContext("priorities");
}
int FakeStreamCreate(void** stream, unsigned flags, int priority) {
  *stream = Handle(21);
  return InContext("stream " + std::to_string(flags) + " " + std::to_string(priority));
}
int FakeStreamDestroy(void* stream) { return InContext("end " + Text(stream)); }
int FakeSynchronize(void* stream) { return InContext("synchronize " + Text(stream)); }
int FakeWait(void* stream, void* event, unsigned) {
  return InContext("wait " + Text(stream) + " " + Text(event));
}
int FakeEventCreate(void** event, unsigned flags) {
  *event = Handle(31);
  return InContext("event " + std::to_string(flags));
}
int FakeEventDestroy(void* event) { return InContext("forget " + Text(event)); }
int FakeRecord(void* event, void* stream) {
  return InContext("record " + Text(event) + " " + Text(stream));
}
int FakeQuery(void* event) { return InContext("query " + Text(event)); }
int FakeElapsed(float* milliseconds, void*, void*) {
  *milliseconds = 1500;
  return InContext("elapsed");
}
int FakeCopy(Address to, Address from, std::size_t bytes, void* stream) {
  return InContext("copy " + OneCopy(to, from, bytes) + " on " + Text(stream));
}
// Its first field is the order in which the source is read.
int FakeBatch13(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                const int* attributes, const std::size_t* first, std::size_t kinds, void* stream) {
  std::string call = "batch13 order " + std::to_string(attributes[0]);
  EXPECT_EQ(*first, 0u);
  EXPECT_EQ(kinds, 1u);
  for (std::size_t i = 0; i < count; ++i) call += " " + OneCopy(to[i], from[i], bytes[i]);
  return InContext(call + " on " + Text(stream));
}
int FakeBatch12(Address*, Address*, std::size_t*, std::size_t count, const int*, std::size_t*,
                std::size_t, std::size_t* failed, void* stream) {
  *failed = 0;
  return InContext("batch12 " + std::to_string(count) + " on " + Text(stream));
}
int FakeRegister(void* base, std::size_t bytes, unsigned) {
  return InContext("register " + Text(base) + " " + std::to_string(bytes));
}
int FakeUnregister(void* base) { return InContext("unregister " + Text(base)); }
}  // extern "C"

std::map<std::string, void*> Functions() {
  const auto pointer = [](auto* function) { return reinterpret_cast<void*>(function); };
  return {{"cuInit", pointer(FakeInit)},
          {"cuGetErrorName", pointer(FakeErrorName)},
          {"cuGetErrorString", pointer(FakeErrorString)},
          {"cuDeviceGet", pointer(FakeDeviceGet)},
          {"cuDevicePrimaryCtxRetain", pointer(FakeRetain)},
          {"cuDevicePrimaryCtxRelease_v2", pointer(FakeRelease)},
          {"cuCtxPushCurrent_v2", pointer(FakePush)},
          {"cuCtxPopCurrent_v2", pointer(FakePop)},
          {"cuThreadExchangeStreamCaptureMode", pointer(FakeCaptureMode)},
          {"cuCtxGetStreamPriorityRange", pointer(FakePriorities)},
          {"cuStreamCreateWithPriority", pointer(FakeStreamCreate)},
          {"cuStreamDestroy_v2", pointer(FakeStreamDestroy)},
          {"cuStreamSynchronize", pointer(FakeSynchronize)},
          {"cuStreamWaitEvent", pointer(FakeWait)},
          {"cuEventCreate", pointer(FakeEventCreate)},
          {"cuEventDestroy_v2", pointer(FakeEventDestroy)},
          {"cuEventRecord", pointer(FakeRecord)},
          {"cuEventQuery", pointer(FakeQuery)},
          {"cuEventElapsedTime", pointer(FakeElapsed)},
          {"cuMemcpyAsync", pointer(FakeCopy)},
          {"cuMemcpyBatchAsync", pointer(FakeBatch12)},
          {"cuMemcpyBatchAsync_v2", pointer(FakeBatch13)},
          {"cuMemHostRegister_v2", pointer(FakeRegister)},
          {"cuMemHostUnregister", pointer(FakeUnregister)}};
}

class CudaDriverTest : public testing::Test {
 protected:
  CudaDriverTest() { library = {}; }
  ~CudaDriverTest() override {
    EXPECT_EQ(library.contexts, 0);
    EXPECT_EQ(library.capture_mode, 0);
  }

  void SetUp() override {
    if (CudaHeaderVersion() == "none") GTEST_SKIP() << "built without cuda.h";
  }

  Result<std::unique_ptr<CudaDriver>> Open(int device = 1) {
    return OpenCudaDriver(
        [this](const char* name) -> void* {
          const auto found = functions_.find(name);
          return found == functions_.end() ? nullptr : found->second;
        },
        device);
  }
  // What the driver calls for a copy of two pages.
  std::vector<std::string> CallsOfCopy(BlockJob::Direction direction) {
    auto opened = Open();
    library.calls.clear();
    const std::vector<BlockPage> pages{{At(1000), At(500), 8}, {At(2000), At(600), 16}};
    EXPECT_TRUE(opened.value()->Copy(CudaStream{21}, pages, direction).ok());
    return library.calls;
  }
  static std::byte* At(std::uintptr_t address) { return static_cast<std::byte*>(Handle(address)); }

  std::map<std::string, void*> functions_ = Functions();
};

TEST_F(CudaDriverTest, OpensTheDevicesPrimaryContextAndReleasesIt) {
  {
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_THAT(library.calls, ElementsAre("init", "get 1", "retain 71", "priorities"));
    library.calls.clear();
  }
  EXPECT_THAT(library.calls, ElementsAre("release 71"));
}

TEST_F(CudaDriverTest, SaysWhichCallFailedOnWhat) {
  library.answers = {{"get", 101}};
  EXPECT_EQ(Open(3).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(Open(3).error().message,
              HasSubstr("cuDeviceGet on CUDA device 3: CUDA_ERROR_FAKE (it is a fake)"));
  library.answers = {{"retain", 2}};
  library.calls.clear();
  EXPECT_EQ(Open().error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(library.calls, ElementsAre("init", "get 1", "retain 71"));
  library.answers = {{"init", 999}};
  EXPECT_THAT(Open().error().message, HasSubstr("cuInit on CUDA device 1: unknown error (999)"));
}

TEST_F(CudaDriverTest, ADriverWithoutANeededFunctionIsTooOld) {
  for (const auto& [name, function] : Functions()) {
    functions_ = Functions();
    functions_.erase(name);
    auto opened = Open();
    const bool optional = name.starts_with("cuMemcpyBatch");
    EXPECT_EQ(opened.ok(), optional) << name;
    if (!opened.ok()) {
      EXPECT_THAT(opened.error().message, HasSubstr("no function " + name));
    }
  }
}

TEST_F(CudaDriverTest, StreamsHaveTheirPriorities) {
  auto opened = Open();
  library.calls.clear();
  for (const auto priority : {CudaPriority::kUrgent, CudaPriority::kLoad, CudaPriority::kStore}) {
    EXPECT_EQ(opened.value()->MakeStream(priority).value(), CudaStream{21});
  }
  // 1: does not wait for the default stream.
  EXPECT_THAT(library.calls, ElementsAre("stream 1 -5", "stream 1 -4", "stream 1 0"));
}

TEST_F(CudaDriverTest, PassesHandlesOn) {
  auto opened = Open();
  CudaDriver& driver = *opened.value();
  library.calls.clear();
  EXPECT_EQ(driver.MakeEvent().value(), CudaEvent{31});
  EXPECT_TRUE(driver.Record(CudaEvent{31}, CudaStream{21}).ok());
  EXPECT_TRUE(driver.Await(CudaStream{21}, CudaEvent{32}).ok());
  EXPECT_TRUE(driver.Synchronize(CudaStream{21}).ok());
  EXPECT_TRUE(driver.Register(At(4096), 8192).ok());
  EXPECT_TRUE(driver.Unregister(At(4096)).ok());
  EXPECT_TRUE(driver.DestroyEvent(CudaEvent{31}).ok());
  EXPECT_TRUE(driver.DestroyStream(CudaStream{21}).ok());
  // Events without flags: they keep time.
  EXPECT_THAT(library.calls,
              ElementsAre("event 0", "record 31 21", "wait 21 32", "synchronize 21",
                          "register 4096 8192", "unregister 4096", "forget 31", "end 21"));
  EXPECT_EQ(driver.SecondsBetween(CudaEvent{31}, CudaEvent{32}).value(), 1.5);
}

TEST_F(CudaDriverTest, AnEventHasHappenedOrNotOrFailed) {
  auto opened = Open();
  EXPECT_TRUE(opened.value()->HasHappened(CudaEvent{31}).value());
  library.answers = {{"query", 600}};  // Not ready.
  EXPECT_FALSE(opened.value()->HasHappened(CudaEvent{31}).value());
  library.answers = {{"query", 700}};
  EXPECT_THAT(opened.value()->HasHappened(CudaEvent{31}).error().message,
              HasSubstr("cuEventQuery on CUDA device 1: CUDA_ERROR_FAKE"));
}

TEST_F(CudaDriverTest, CopiesInOneCallWhereTheDriverCan) {
  // A load's source may be read at any time (3), a store's in stream order (1).
  EXPECT_THAT(CallsOfCopy(BlockJob::Direction::kLoad),
              ElementsAre("batch13 order 3 1000<500:8 2000<600:16 on 21"));
  EXPECT_THAT(CallsOfCopy(BlockJob::Direction::kStore),
              ElementsAre("batch13 order 1 500<1000:8 600<2000:16 on 21"));
  functions_.erase("cuMemcpyBatchAsync_v2");
  EXPECT_THAT(CallsOfCopy(BlockJob::Direction::kLoad), ElementsAre("batch12 2 on 21"));
}

TEST_F(CudaDriverTest, CopiesOneByOneWhereItCannotAndStopsAtTheFirstFailure) {
  functions_.erase("cuMemcpyBatchAsync_v2");
  functions_.erase("cuMemcpyBatchAsync");
  EXPECT_THAT(CallsOfCopy(BlockJob::Direction::kStore),
              ElementsAre("copy 500<1000:8 on 21", "copy 600<2000:16 on 21"));
  auto opened = Open();
  library.calls.clear();
  library.answers = {{"copy", 1}};
  const std::vector<BlockPage> pages{{At(1000), At(500), 8}, {At(2000), At(600), 16}};
  auto copied = opened.value()->Copy(CudaStream{21}, pages, BlockJob::Direction::kLoad);
  ASSERT_FALSE(copied.ok());
  EXPECT_THAT(copied.error().message, HasSubstr("cuMemcpyAsync on CUDA device 1"));
  EXPECT_EQ(library.calls.size(), 1u);
}

}  // namespace
}  // namespace terrace
