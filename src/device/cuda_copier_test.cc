#include "device/cuda_copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>

#include "base/deadline.h"
#include "base/mutex.h"

namespace terrace {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Direction = BlockJob::Direction;

// A device that does nothing until it is told to, or waited for: what is put into a stream stays
// there. Its memory is the host's. With a lock, as the copier page-locks on a thread
// (StartThread()).
class FakeDevice {
 public:
  class Driver;
  enum class Call { kMakeStream, kMakeEvent, kRecord, kAwait, kQuery, kCopy, kSynchronize };

  // The n-th call from now on (0: the next) and all after it fail.
  void FailFrom(Call call, int n = 0) {
    MutexLock lock(mutex_);
    fails_from_[call] = n;
  }
  void Heal() {
    MutexLock lock(mutex_);
    fails_from_.clear();
  }
  // Of a copy, this many pages are taken before it fails.
  void TakeOfFailingCopy(std::size_t pages) {
    MutexLock lock(mutex_);
    taken_of_failing_copy_ = pages;
  }
  void RefuseRegistrationFrom(std::size_t piece) {
    MutexLock lock(mutex_);
    registrations_max_ = piece;
  }

  // An event of the compute stream, that has not happened.
  CudaEvent ComputeEvent() {
    MutexLock lock(mutex_);
    return NewEvent(false);
  }
  void Happen(CudaEvent event) {
    MutexLock lock(mutex_);
    events_[event] = true;
  }
  // Does all that waits for nothing that has not happened.
  void Run() {
    MutexLock lock(mutex_);
    RunLocked(nullptr);
  }
  // The same in one stream.
  void RunStream(CudaPriority priority) {
    MutexLock lock(mutex_);
    const CudaStream stream = StreamOf(priority);
    RunLocked(&stream);
  }
  // Query after query it does all by itself, from the n-th on.
  void RunAtQuery(int n) {
    MutexLock lock(mutex_);
    queries_until_run_ = n;
  }

  std::size_t queued() {
    MutexLock lock(mutex_);
    std::size_t count = 0;
    for (const auto& [stream, work] : streams_) count += work.size();
    return count;
  }
  std::size_t copies() {
    MutexLock lock(mutex_);
    return copies_;
  }
  std::size_t events_alive() {
    MutexLock lock(mutex_);
    return events_.size();
  }
  std::size_t streams_alive() {
    MutexLock lock(mutex_);
    return streams_.size();
  }
  std::map<std::byte*, std::size_t> registered() {
    MutexLock lock(mutex_);
    return registered_;
  }
  bool AwaitRegistrations(std::size_t calls) {
    const auto deadline = DeadlineIn(std::chrono::milliseconds(20'000));
    MutexLock lock(mutex_);
    while (registration_calls_ < calls) {
      if (!registered_cond_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }
  // What was done wrong: a copy across registrations, an unregistering with work under way.
  std::vector<std::string> faults() {
    MutexLock lock(mutex_);
    return faults_;
  }

 private:
  struct Work {
    enum class Kind { kCopy, kRecord, kAwait } kind;
    BlockPage page{};
    Direction direction{};
    CudaEvent event{};
  };

  Result<void> Answer(Call call) TERRACE_REQUIRES(mutex_) {
    const auto found = fails_from_.find(call);
    if (found == fails_from_.end() || found->second-- > 0) return {};
    found->second = 0;
    return Error{ErrorCode::kUnavailable, "the fake fails call " + std::to_string(int(call))};
  }
  CudaEvent NewEvent(bool happened) TERRACE_REQUIRES(mutex_) {
    const CudaEvent event(static_cast<CudaEvent>(next_++));
    events_[event] = happened;
    return event;
  }
  CudaStream StreamOf(CudaPriority priority) TERRACE_REQUIRES(mutex_) {
    return by_priority_.at(priority);
  }
  void RunLocked(const CudaStream* only) TERRACE_REQUIRES(mutex_) {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [stream, work] : streams_) {
        if (only != nullptr && stream != *only) continue;
        while (!work.empty() && Do(work.front())) {
          work.pop_front();
          moved = true;
        }
      }
    }
  }
  bool Do(const Work& work) TERRACE_REQUIRES(mutex_) {
    switch (work.kind) {
      case Work::Kind::kCopy:
        if (work.direction == Direction::kStore) {
          std::memcpy(work.page.host, work.page.engine, work.page.bytes);
        } else {
          std::memcpy(work.page.engine, work.page.host, work.page.bytes);
        }
        return true;
      case Work::Kind::kRecord:
        events_[work.event] = true;
        return true;
      case Work::Kind::kAwait:
        return events_.at(work.event);
    }
    return false;
  }
  void CheckRegistration(const BlockPage& page) TERRACE_REQUIRES(mutex_) {
    for (const auto& [base, bytes] : registered_) {
      const bool begins = page.host >= base && page.host < base + bytes;
      const bool ends = page.host + page.bytes > base && page.host + page.bytes <= base + bytes;
      if (begins != ends) faults_.emplace_back("a copy across registrations");
    }
  }

  Mutex mutex_;
  CondVar registered_cond_;
  std::uintptr_t next_ TERRACE_GUARDED_BY(mutex_) = 1;
  std::map<CudaPriority, CudaStream> by_priority_ TERRACE_GUARDED_BY(mutex_);
  std::map<CudaStream, std::deque<Work>> streams_ TERRACE_GUARDED_BY(mutex_);
  std::map<CudaEvent, bool> events_ TERRACE_GUARDED_BY(mutex_);
  std::map<Call, int> fails_from_ TERRACE_GUARDED_BY(mutex_);
  std::size_t taken_of_failing_copy_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::size_t copies_ TERRACE_GUARDED_BY(mutex_) = 0;
  int queries_until_run_ TERRACE_GUARDED_BY(mutex_) = -1;
  std::map<std::byte*, std::size_t> registered_ TERRACE_GUARDED_BY(mutex_);
  std::size_t registration_calls_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::size_t registrations_max_ TERRACE_GUARDED_BY(mutex_) = ~std::size_t{0};
  std::vector<std::string> faults_ TERRACE_GUARDED_BY(mutex_);
};

class FakeDevice::Driver final : public CudaDriver {
 public:
  explicit Driver(FakeDevice& device) : d_(device) {}

  Result<CudaStream> MakeStream(CudaPriority priority) override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kMakeStream); !answer.ok()) return answer.error();
    const auto stream = static_cast<CudaStream>(d_.next_++);
    d_.streams_[stream];
    d_.by_priority_[priority] = stream;
    return stream;
  }
  Result<void> DestroyStream(CudaStream stream) override {
    MutexLock lock(d_.mutex_);
    d_.streams_.erase(stream);
    return {};
  }
  Result<void> Synchronize(CudaStream stream) override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kSynchronize); !answer.ok()) return answer;
    d_.RunLocked(&stream);
    if (!d_.streams_[stream].empty()) d_.faults_.emplace_back("the test would wait for ever");
    return {};
  }
  Result<CudaEvent> MakeEvent() override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kMakeEvent); !answer.ok()) return answer.error();
    return d_.NewEvent(true);
  }
  Result<void> DestroyEvent(CudaEvent event) override {
    MutexLock lock(d_.mutex_);
    if (d_.events_.erase(event) == 0) d_.faults_.emplace_back("an event destroyed twice");
    return {};
  }
  Result<void> Record(CudaEvent event, CudaStream stream) override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kRecord); !answer.ok()) return answer;
    d_.events_[event] = false;
    d_.streams_[stream].push_back({.kind = Work::Kind::kRecord, .event = event});
    return {};
  }
  Result<void> Await(CudaStream stream, CudaEvent event) override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kAwait); !answer.ok()) return answer;
    d_.streams_[stream].push_back({.kind = Work::Kind::kAwait, .event = event});
    return {};
  }
  Result<bool> HasHappened(CudaEvent event) override {
    MutexLock lock(d_.mutex_);
    if (auto answer = d_.Answer(Call::kQuery); !answer.ok()) return answer.error();
    if (d_.queries_until_run_ >= 0 && d_.queries_until_run_-- == 0) d_.RunLocked(nullptr);
    return d_.events_.at(event);
  }
  Result<double> SecondsBetween(CudaEvent begin, CudaEvent end) override {
    MutexLock lock(d_.mutex_);
    if (!d_.events_.at(begin) || !d_.events_.at(end)) d_.faults_.emplace_back("timed too early");
    return 0.25;
  }
  Result<void> Copy(CudaStream stream, std::span<const BlockPage> pages,
                    Direction direction) override {
    MutexLock lock(d_.mutex_);
    auto answer = d_.Answer(Call::kCopy);
    if (!answer.ok()) pages = pages.first(std::min(d_.taken_of_failing_copy_, pages.size()));
    for (const BlockPage& page : pages) {
      d_.CheckRegistration(page);
      d_.streams_[stream].push_back(
          {.kind = Work::Kind::kCopy, .page = page, .direction = direction});
      ++d_.copies_;
    }
    return answer;
  }
  Result<void> Register(std::byte* base, std::size_t bytes) override {
    MutexLock lock(d_.mutex_);
    ++d_.registration_calls_;
    d_.registered_cond_.NotifyAll();
    if (d_.registered_.size() >= d_.registrations_max_) {
      return Error{ErrorCode::kResourceExhausted, "the fake page-locks no more"};
    }
    d_.registered_[base] = bytes;
    return {};
  }
  Result<void> Unregister(std::byte* base) override {
    MutexLock lock(d_.mutex_);
    for (const auto& [stream, work] : d_.streams_) {
      if (!work.empty()) d_.faults_.emplace_back("unregistered with work under way");
    }
    if (d_.registered_.erase(base) == 0) d_.faults_.emplace_back("unregistered what was not");
    return {};
  }

 private:
  FakeDevice& d_;
};

// Two tensors of pages of 64 and 32 bytes, the second one's 48 apart; chunks of two blocks.
class CudaCopierTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 8;
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kChunk = 2 * (64 + 32);

  CudaCopierTest() : wide_(kBlocks * 64), narrow_(kBlocks * 48), host_(kSlots * kChunk) {
    std::iota(wide_.begin(), wide_.end(), 1);
    for (std::size_t i = 0; i < narrow_.size(); ++i) narrow_[i] = static_cast<std::uint8_t>(i * 7);
  }
  ~CudaCopierTest() override {
    EXPECT_THAT(device_.faults(), ElementsAre());
    EXPECT_THAT(device_.registered(), ElementsAre());
    EXPECT_EQ(device_.streams_alive(), 0u);
  }

  static std::byte* Bytes(std::vector<std::uint8_t>& bytes) {
    return reinterpret_cast<std::byte*>(bytes.data());
  }

  Result<std::unique_ptr<BlockCopier>> Make() {
    BlockCopierOptions options{
        .tensors = {{Bytes(wide_), kBlocks, 64, 64}, {Bytes(narrow_), kBlocks, 48, 32}},
        .groups = {{{0, 64}, {1, 32}}, {{1, 20}}},
        .blocks_per_chunk = 2};
    auto layout = BlockLayout::Create({Bytes(host_), kChunk, kChunk, kSlots}, std::move(options));
    return MakeCudaCopier(std::move(layout).value(), std::make_unique<FakeDevice::Driver>(device_));
  }
  std::unique_ptr<BlockCopier> Copier() {
    auto made = Make();
    return std::move(made).value();
  }

  // Of one slot's two blocks.
  static BlockJob Job(std::uint64_t id, Direction direction, std::uint32_t slot,
                      std::vector<std::uint32_t> blocks) {
    BlockJob job;
    job.id = JobId(id);
    job.direction = direction;
    job.groups = {{std::move(blocks), 0, {SlotId(slot)}}};
    return job;
  }
  static void Submit(BlockCopier& copier, BlockJob job) {
    auto submitted = copier.Submit(std::move(job));
    EXPECT_TRUE(submitted.ok()) << submitted.error().message;
  }
  static bool Wait(BlockCopier& copier, std::uint64_t id, std::chrono::nanoseconds timeout) {
    const JobId job(id);
    return copier.WaitFor({&job, 1}, timeout);
  }
  static std::vector<std::uint64_t> Ids(const std::vector<BlockResult>& results) {
    std::vector<std::uint64_t> ids;
    for (const BlockResult& result : results) ids.push_back(result.id.value);
    return ids;
  }

  std::vector<std::uint8_t> Wide(std::size_t block) const {
    return {wide_.begin() + static_cast<std::ptrdiff_t>(block * 64),
            wide_.begin() + static_cast<std::ptrdiff_t>(block * 64 + 64)};
  }
  std::vector<std::uint8_t> Host(std::size_t at, std::size_t bytes) const {
    return {host_.begin() + static_cast<std::ptrdiff_t>(at),
            host_.begin() + static_cast<std::ptrdiff_t>(at + bytes)};
  }

  std::vector<std::uint8_t> wide_, narrow_, host_;
  FakeDevice device_;
};

TEST_F(CudaCopierTest, ReportsAJobWhenTheDeviceHasEndedItAndNotBefore) {
  const auto copier = Copier();
  const std::vector<std::uint8_t> untouched = host_;
  Submit(*copier, Job(1, Direction::kStore, 3, {5, 2}));
  EXPECT_TRUE(copier->TakeFinished().empty());
  EXPECT_FALSE(Wait(*copier, 1, seconds(0)));
  EXPECT_EQ(host_, untouched);

  device_.Run();
  EXPECT_TRUE(Wait(*copier, 1, seconds(0)));
  const auto results = copier->TakeFinished();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, CopyOutcome::kOk);
  EXPECT_EQ(results[0].bytes, kChunk);
  EXPECT_EQ(results[0].seconds, 0.25);
  EXPECT_EQ(Host(3 * kChunk, 64), Wide(5));
  EXPECT_EQ(Host(3 * kChunk + 64, 64), Wide(2));
  EXPECT_TRUE(copier->TakeFinished().empty());
}

TEST_F(CudaCopierTest, LoadsWhatItStored) {
  const auto copier = Copier();
  const std::vector<std::uint8_t> five = Wide(5), two = Wide(2);
  Submit(*copier, Job(1, Direction::kStore, 3, {5, 2}));
  device_.Run();
  Submit(*copier, Job(2, Direction::kLoad, 3, {0, 7}));
  EXPECT_NE(Wide(0), five);
  device_.Run();
  EXPECT_EQ(Wide(0), five);
  EXPECT_EQ(Wide(7), two);
  EXPECT_THAT(Ids(copier->TakeFinished()), testing::UnorderedElementsAre(1, 2));
}

TEST_F(CudaCopierTest, WaitForLooksAgainUntilTheJobHasEnded) {
  const auto copier = Copier();
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  device_.RunAtQuery(3);
  EXPECT_TRUE(Wait(*copier, 1, seconds(20)));
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(1));
}

TEST_F(CudaCopierTest, AJobComesAfterItsEventAndThoseBehindItInTurn) {
  const auto copier = Copier();
  const CudaEvent computed = device_.ComputeEvent();
  BlockJob first = Job(1, Direction::kStore, 0, {0, 1});
  first.after_event = static_cast<std::uintptr_t>(computed);
  Submit(*copier, std::move(first));
  Submit(*copier, Job(2, Direction::kStore, 1, {2, 3}));
  Submit(*copier, Job(3, Direction::kLoad, 2, {4, 5}));
  device_.Run();
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(3));  // A stream of its own.
  std::fill(wide_.begin(), wide_.begin() + 64, std::uint8_t{99});
  device_.Happen(computed);
  device_.Run();
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(1, 2));
  EXPECT_EQ(Host(0, 64), std::vector<std::uint8_t>(64, 99));
}

TEST_F(CudaCopierTest, AnUrgentLoadDoesNotWaitForWhatIsQueued) {
  const auto copier = Copier();
  const CudaEvent never = device_.ComputeEvent();
  BlockJob load = Job(1, Direction::kLoad, 0, {0, 1});
  load.after_event = static_cast<std::uintptr_t>(never);
  Submit(*copier, std::move(load));
  BlockJob urgent = Job(2, Direction::kLoad, 1, {2, 3});
  urgent.urgent = true;
  Submit(*copier, std::move(urgent));
  device_.Run();
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(2));
  device_.Happen(never);
}

TEST_F(CudaCopierTest, LoadsAndStoresGoToTheStreamsOfTheirPriority) {
  const auto copier = Copier();
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  Submit(*copier, Job(2, Direction::kLoad, 1, {2, 3}));
  device_.RunStream(CudaPriority::kUrgent);
  EXPECT_TRUE(copier->TakeFinished().empty());
  device_.RunStream(CudaPriority::kLoad);
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(2));
  device_.RunStream(CudaPriority::kStore);
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(1));
}

TEST_F(CudaCopierTest, BeginsInTheMiddleOfAChunk) {
  const auto copier = Copier();
  BlockJob job = Job(1, Direction::kStore, 0, {});
  // Group 1 alone: places 1 and 2 of its request, so the second half of slot 0 and the first of 1.
  job.groups = {{}, {{4, 6}, 1, {SlotId(0), SlotId(1)}}};
  Submit(*copier, std::move(job));
  device_.Run();
  EXPECT_EQ(copier->TakeFinished().at(0).bytes, 40u);
  std::vector<std::uint8_t> expected(host_.size());
  std::copy_n(narrow_.begin() + 4 * 48, 20, expected.begin() + 128 + 32);
  std::copy_n(narrow_.begin() + 6 * 48, 20, expected.begin() + kChunk + 128);
  EXPECT_EQ(host_, expected);
}

TEST_F(CudaCopierTest, NeighboursAreOneCopyButNotAcrossSlots) {
  const auto copier = Copier();
  BlockJob job = Job(1, Direction::kStore, 0, {});
  job.groups = {{{2, 3, 4, 5}, 0, {SlotId(0), SlotId(1)}}};
  Submit(*copier, std::move(job));
  // In each slot one of the wide tensor, and two of the narrow one: its pages lie apart.
  EXPECT_EQ(device_.copies(), 2u * 3);
  device_.Run();
  EXPECT_EQ(copier->TakeFinished().at(0).bytes, 2 * kChunk);
  EXPECT_EQ(Host(64, 64), Wide(3));
  EXPECT_EQ(Host(kChunk, 64), Wide(4));
}

TEST_F(CudaCopierTest, AJobThatFailsHalfWayEndsWhenTheDeviceHasEndedWhatItTook) {
  const auto copier = Copier();
  device_.TakeOfFailingCopy(1);
  device_.FailFrom(FakeDevice::Call::kCopy);
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 5}));
  device_.Heal();
  Submit(*copier, Job(2, Direction::kStore, 1, {2, 3}));
  EXPECT_TRUE(copier->TakeFinished().empty());
  device_.Run();
  const auto results = copier->TakeFinished();
  EXPECT_THAT(Ids(results), ElementsAre(1, 2));
  EXPECT_EQ(results[0].outcome, CopyOutcome::kFailed);
  EXPECT_EQ(results[0].bytes, 0u);
  EXPECT_THAT(results[0].error, HasSubstr("the fake fails call"));
  EXPECT_EQ(results[1].outcome, CopyOutcome::kOk);
  EXPECT_EQ(results[1].error, "");
}

TEST_F(CudaCopierTest, AJobThatDoesNotBeginCopiesNothing) {
  using Call = FakeDevice::Call;
  for (const Call call : {Call::kMakeEvent, Call::kAwait, Call::kRecord}) {
    const auto copier = Copier();
    BlockJob job = Job(1, Direction::kStore, 0, {0, 1});
    const CudaEvent computed = device_.ComputeEvent();
    job.after_event = static_cast<std::uintptr_t>(computed);
    device_.FailFrom(call);
    Submit(*copier, std::move(job));
    device_.Heal();
    EXPECT_EQ(device_.copies(), 0u);
    const auto results = copier->TakeFinished();
    ASSERT_EQ(results.size(), 1u) << int(call);
    EXPECT_EQ(results[0].outcome, CopyOutcome::kFailed);
    EXPECT_THAT(results[0].error, HasSubstr("the fake fails call"));
    device_.Happen(computed);
  }
}

TEST_F(CudaCopierTest, WithoutAnEventForTheEndItWaitsForTheStream) {
  const auto copier = Copier();
  device_.FailFrom(FakeDevice::Call::kRecord, 1);
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  device_.Heal();
  EXPECT_EQ(device_.queued(), 0u);
  const auto results = copier->TakeFinished();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, CopyOutcome::kFailed);
}

TEST_F(CudaCopierTest, ADeviceThatIsLostFailsItsJobs) {
  const auto copier = Copier();
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  Submit(*copier, Job(2, Direction::kLoad, 1, {2, 3}));
  device_.FailFrom(FakeDevice::Call::kQuery);
  EXPECT_TRUE(Wait(*copier, 1, seconds(0)));
  const auto results = copier->TakeFinished();
  ASSERT_EQ(results.size(), 2u);
  for (const BlockResult& result : results) {
    EXPECT_EQ(result.outcome, CopyOutcome::kFailed);
    EXPECT_THAT(result.error, HasSubstr("the fake fails call"));
  }
  device_.Heal();
}

TEST_F(CudaCopierTest, RefusesANumberThatIsUnderWayAndBlocksThatDoNotExist) {
  const auto copier = Copier();
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  auto again = copier->Submit(Job(1, Direction::kLoad, 1, {2, 3}));
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("copy job 1: a job of that number is under way"));
  auto beyond = copier->Submit(Job(2, Direction::kStore, 0, {8}));
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().message, HasSubstr("block 8, tensor 0 has 8"));
  device_.Run();
  EXPECT_THAT(Ids(copier->TakeFinished()), ElementsAre(1));
  Submit(*copier, Job(1, Direction::kLoad, 1, {2, 3}));
}

TEST_F(CudaCopierTest, AJobOfNothingEndsAtOnce) {
  const auto copier = Copier();
  BlockJob job = Job(3, Direction::kLoad, 0, {});
  job.groups.clear();
  Submit(*copier, std::move(job));
  const auto results = copier->TakeFinished();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, CopyOutcome::kOk);
}

TEST_F(CudaCopierTest, TheEndWaitsForWhatIsUnderWayAndGivesAllBack) {
  auto copier = Copier();
  ASSERT_TRUE(device_.AwaitRegistrations(1));
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  Submit(*copier, Job(2, Direction::kLoad, 1, {2, 3}));
  ASSERT_GT(device_.queued(), 0u);
  copier.reset();
  EXPECT_EQ(Host(0, 64), Wide(0));
  EXPECT_EQ(device_.queued(), 0u);
  EXPECT_EQ(device_.events_alive(), 0u);
}

TEST_F(CudaCopierTest, EventsAreUsedAgain) {
  const auto copier = Copier();
  for (std::uint64_t id = 0; id < 10; ++id) {
    Submit(*copier, Job(id, Direction::kStore, 0, {0, 1}));
    device_.Run();
    EXPECT_EQ(copier->TakeFinished().size(), 1u);
  }
  EXPECT_EQ(device_.events_alive(), 2u);
}

TEST_F(CudaCopierTest, CopiesAlsoWhereNothingCanBePageLocked) {
  device_.RefuseRegistrationFrom(0);
  const auto copier = Copier();
  ASSERT_TRUE(device_.AwaitRegistrations(1));
  Submit(*copier, Job(1, Direction::kStore, 0, {0, 1}));
  device_.Run();
  EXPECT_EQ(copier->TakeFinished().at(0).outcome, CopyOutcome::kOk);
  EXPECT_EQ(Host(0, 64), Wide(0));
}

TEST_F(CudaCopierTest, ADeviceWithoutStreamsIsAnError) {
  for (int n = 0; n < static_cast<int>(kCudaPriorityCount); ++n) {
    device_.FailFrom(FakeDevice::Call::kMakeStream, n);
    EXPECT_FALSE(Make().ok());
    EXPECT_EQ(device_.streams_alive(), 0u);
  }
  device_.Heal();
}

}  // namespace
}  // namespace terrace
