#include "tier/common/async_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <semaphore>
#include <set>
#include <stdexcept>
#include <string>

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::SizeIs;

constexpr auto kBound = std::chrono::minutes(1);  // Of waits that end sooner unless there is a bug.
const Request kR1{RequestId(1)};
const Request kR2{RequestId(2)};

ChunkKey Key(std::uint8_t number) { return ChunkKey(std::array<std::uint8_t, 1>{number}, 0); }

// A signal that is waited for with a bound.
class Signal {
 public:
  void Give() { semaphore_.release(); }
  void Await() { ASSERT_TRUE(semaphore_.try_acquire_for(kBound)); }
  bool given() { return semaphore_.try_acquire(); }

 private:
  std::counting_semaphore<> semaphore_{0};
};

// What is behind the look-ups. Shared with their thread.
class Place {
 public:
  AsyncLookup::Check Check() {
    return [this](std::span<const ChunkKey> keys) {
      std::function<std::vector<bool>(std::span<const ChunkKey>)> answer;
      {
        const std::lock_guard lock(mutex_);
        asked_.emplace_back(keys.begin(), keys.end());
        answer = std::exchange(next_answer_, nullptr);
      }
      return answer ? answer(keys) : Truth(keys);
    };
  }

  void Put(const ChunkKey& key) {
    const std::lock_guard lock(mutex_);
    present_.insert(key);
  }
  void Remove(const ChunkKey& key) {
    const std::lock_guard lock(mutex_);
    present_.erase(key);
  }
  std::vector<bool> Truth(std::span<const ChunkKey> keys) {
    const std::lock_guard lock(mutex_);
    std::vector<bool> answers;
    for (const ChunkKey& key : keys) answers.push_back(present_.contains(key));
    return answers;
  }
  void AnswerNextWith(std::function<std::vector<bool>(std::span<const ChunkKey>)> answer) {
    const std::lock_guard lock(mutex_);
    next_answer_ = std::move(answer);
  }
  // The next check gives `entered`, awaits `leave` and answers with `answers`.
  void HangNext(std::vector<bool> answers) {
    AnswerNextWith([this, answers = std::move(answers)](auto) {
      entered.Give();
      leave.Await();
      return answers;
    });
  }
  std::vector<std::vector<ChunkKey>> asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  Signal entered;
  Signal leave;

 private:
  std::mutex mutex_;
  std::set<ChunkKey> present_;
  std::function<std::vector<bool>(std::span<const ChunkKey>)> next_answer_;
  std::vector<std::vector<ChunkKey>> asked_;
};

class AsyncLookupTest : public testing::Test {
 protected:
  AsyncLookup::Options Options() {
    AsyncLookup::Options options;
    options.on_answers = [this] { answered_.Give(); };
    options.now = [this] { return now_; };
    return options;
  }
  void Use(AsyncLookup::Options options) {
    lookups_ = AsyncLookup::Create(place_.Check(), std::move(options)).value();
  }
  void SetUp() override { Use(Options()); }

  TierLookup Lookup(const ChunkKey& key, const Request& request = kR1) {
    return lookups_->Lookup(key, request);
  }
  // Asks until the answer is there.
  TierLookup Known(const ChunkKey& key, const Request& request = kR1) {
    for (;;) {
      const TierLookup found = Lookup(key, request);
      if (found != TierLookup::kRetry) return found;
      lookups_->Flush();
      answered_.Await();
      if (testing::Test::HasFatalFailure()) return TierLookup::kRetry;
    }
  }
  // Hands `key` over and returns while its check hangs.
  void HangOn(const ChunkKey& key, std::vector<bool> answers) {
    place_.HangNext(std::move(answers));
    ASSERT_EQ(Lookup(key), TierLookup::kRetry);
    lookups_->Flush();
    place_.entered.Await();
  }
  // The check that hangs returns, and its answer is seen.
  void EndHang() {
    place_.leave.Give();
    answered_.Await();
    lookups_->Drain();
  }
  std::uint64_t Counter(const std::string& name) {
    for (const CounterValue& counter : lookups_->Counters()) {
      if (counter.name == "terrace_lookup_" + name + "_total") return counter.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  std::chrono::steady_clock::time_point now_{seconds(1000)};
  Signal answered_;
  Place place_;
  std::unique_ptr<AsyncLookup> lookups_;  // Its thread uses the rest.
};

TEST_F(AsyncLookupTest, SaysRetryUntilTheAnswerIsThere) {
  place_.Put(Key(1));
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kRetry);
  lookups_->Flush();
  answered_.Await();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  EXPECT_EQ(Counter("checks"), 1u);
  EXPECT_EQ(Counter("keys_checked"), 2u);
}

TEST_F(AsyncLookupTest, AsksNothingBeforeTheStepEnds) {
  Lookup(Key(1));
  lookups_->Drain();
  Lookup(Key(2));
  lookups_->Flush();
  answered_.Await();
  EXPECT_THAT(place_.asked(), ElementsAre(ElementsAre(Key(1), Key(2))));
}

TEST_F(AsyncLookupTest, FlushAloneMakesAnswersSeen) {
  place_.Put(Key(1));
  Lookup(Key(1));
  lookups_->Flush();
  answered_.Await();
  lookups_->Flush();
  EXPECT_EQ(Counter("checks"), 1u);
}

TEST_F(AsyncLookupTest, LookupsOfOneStepAgreeUnlessDrained) {
  HangOn(Key(1), {true});
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  place_.leave.Give();
  answered_.Await();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  lookups_->Drain();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, RequestsShareOneCheck) {
  place_.Put(Key(1));
  Lookup(Key(1), kR1);
  Lookup(Key(1), kR2);
  EXPECT_EQ(Known(Key(1), kR1), TierLookup::kHit);
  EXPECT_EQ(Known(Key(1), kR2), TierLookup::kHit);
  EXPECT_THAT(place_.asked(), ElementsAre(ElementsAre(Key(1))));
}

TEST_F(AsyncLookupTest, ABatchIsCutIntoChecksOfBoundedSize) {
  AsyncLookup::Options options = Options();
  options.keys_per_check_max = 2;
  Use(std::move(options));
  place_.Put(Key(5));
  for (std::uint8_t i = 1; i <= 5; ++i) Lookup(Key(i));
  EXPECT_EQ(Known(Key(5)), TierLookup::kHit);
  EXPECT_THAT(place_.asked(), ElementsAre(SizeIs(2), SizeIs(2), SizeIs(1)));
}

TEST_F(AsyncLookupTest, TellsOfAnswersOnceUntilTheyAreSeen) {
  HangOn(Key(1), {true});
  for (const std::uint8_t next : {2, 3}) {
    Lookup(Key(next));
    lookups_->Flush();
  }
  for (int answers = 1; answers <= 2; ++answers) {
    place_.HangNext({true});
    place_.leave.Give();
    place_.entered.Await();  // So the answer before was given.
  }
  EXPECT_TRUE(answered_.given());
  EXPECT_FALSE(answered_.given());
  lookups_->Drain();
  EndHang();
  EXPECT_EQ(Lookup(Key(3)), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, MissingAnswersAreMisses) {
  place_.AnswerNextWith([](auto) { return std::vector<bool>{true}; });
  for (std::uint8_t i = 1; i <= 3; ++i) Lookup(Key(i));
  EXPECT_EQ(Known(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(3)), TierLookup::kMiss);
  EXPECT_EQ(Counter("answers_missing"), 2u);
}

TEST_F(AsyncLookupTest, SurplusAnswersAreIgnored) {
  place_.AnswerNextWith([](auto) { return std::vector<bool>{false, true, true}; });
  EXPECT_EQ(Known(Key(1)), TierLookup::kMiss);
  EXPECT_EQ(Counter("answers_surplus"), 2u);
  EXPECT_EQ(Counter("answers_missing"), 0u);
}

TEST_F(AsyncLookupTest, ACheckThatThrowsIsAMissAndTheThreadGoesOn) {
  place_.Put(Key(1));
  place_.Put(Key(2));
  place_.AnswerNextWith([](auto) -> std::vector<bool> { throw std::runtime_error("no"); });
  EXPECT_EQ(Known(Key(1)), TierLookup::kMiss);
  EXPECT_EQ(Counter("checks_failed"), 1u);
  EXPECT_EQ(Counter("answers_missing"), 0u);
  EXPECT_EQ(Known(Key(2)), TierLookup::kHit);
  place_.AnswerNextWith([](auto) -> std::vector<bool> { throw 1; });
  EXPECT_EQ(Known(Key(3)), TierLookup::kMiss);
  EXPECT_EQ(Counter("checks_failed"), 2u);
}

TEST_F(AsyncLookupTest, AHangingCheckCostsItsDeadlineAndNoMore) {
  HangOn(Key(1), {true});
  now_ += milliseconds(4999);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  now_ += milliseconds(1);
  lookups_->Drain();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);
  EXPECT_EQ(Counter("keys_overdue"), 1u);
  // Who comes now does not wait another five seconds.
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  EXPECT_EQ(Counter("keys_refused"), 1u);
  EndHang();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);  // Too late to count.
  EXPECT_EQ(Counter("answers_late"), 1u);
  place_.Put(Key(2));
  EXPECT_EQ(Known(Key(2)), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, WhatWaitsBehindAHangingCheckIsTakenBackAtItsDeadline) {
  HangOn(Key(1), {true});
  Lookup(Key(2));
  lookups_->Flush();
  now_ += seconds(3);
  Lookup(Key(3));
  lookups_->Flush();
  now_ += seconds(2);
  lookups_->Drain();
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(3)), TierLookup::kRetry);  // It may still be answered in time.
  EXPECT_EQ(Counter("keys_overdue"), 2u);
  place_.Put(Key(3));
  EndHang();
  EXPECT_EQ(Known(Key(3)), TierLookup::kHit);
  EXPECT_THAT(place_.asked(), ElementsAre(ElementsAre(Key(1)), ElementsAre(Key(3))));
}

TEST_F(AsyncLookupTest, KeysNotedBeforeAHangIsKnownAreNotHandedOver) {
  HangOn(Key(1), {true});
  Lookup(Key(2));
  now_ += seconds(5);
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  EXPECT_EQ(Counter("keys_refused"), 1u);
  EndHang();
  EXPECT_THAT(place_.asked(), SizeIs(1));
}

TEST_F(AsyncLookupTest, WhatWaitsIsBounded) {
  AsyncLookup::Options options = Options();
  options.keys_waiting_max = 3;
  Use(std::move(options));
  HangOn(Key(1), {true});
  Lookup(Key(2));
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(3)), TierLookup::kRetry);
  EXPECT_EQ(Lookup(Key(4)), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(3), kR2), TierLookup::kRetry);  // It is noted already.
  lookups_->OnRequestFinished(kR1);
  lookups_->OnRequestFinished(kR2);
  EXPECT_EQ(Lookup(Key(4)), TierLookup::kRetry);  // In the room of key 3, which nobody wants.
  EXPECT_EQ(Lookup(Key(5)), TierLookup::kMiss);
  const std::array stored{Key(4)};
  lookups_->MarkStored(stored);
  EXPECT_EQ(Lookup(Key(5)), TierLookup::kRetry);
  EndHang();
  EXPECT_EQ(Known(Key(5)), TierLookup::kMiss);
  for (std::uint8_t i = 6; i <= 8; ++i) EXPECT_EQ(Lookup(Key(i)), TierLookup::kRetry);
  EXPECT_EQ(Lookup(Key(9)), TierLookup::kMiss);
}

TEST_F(AsyncLookupTest, OverdueKeysMakeRoom) {
  AsyncLookup::Options options = Options();
  options.keys_waiting_max = 1;
  Use(std::move(options));
  HangOn(Key(1), {true});
  now_ += seconds(5);
  lookups_->Drain();
  EndHang();
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kRetry);
}

TEST_F(AsyncLookupTest, AVerdictIsForgottenWithTheLastRequestThatAsked) {
  place_.Put(Key(1));
  Lookup(Key(1), kR1);
  EXPECT_EQ(Known(Key(1), kR2), TierLookup::kHit);
  lookups_->OnRequestFinished(kR1);
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kHit);
  lookups_->OnRequestFinished(kR2);
  place_.Remove(Key(1));
  EXPECT_EQ(Lookup(Key(1), kR1), TierLookup::kRetry);
  EXPECT_EQ(Known(Key(1), kR1), TierLookup::kMiss);
}

TEST_F(AsyncLookupTest, WhatNobodyWantsIsNotAskedForAndNotKept) {
  Lookup(Key(1), kR1);
  lookups_->OnRequestFinished(kR1);
  Lookup(Key(2), kR2);
  lookups_->Flush();
  answered_.Await();
  EXPECT_THAT(place_.asked(), ElementsAre(ElementsAre(Key(2))));
  place_.HangNext({true});  // Finished while in flight:
  Lookup(Key(3), kR1);
  lookups_->Flush();
  place_.entered.Await();
  lookups_->OnRequestFinished(kR1);
  EXPECT_EQ(Lookup(Key(3), kR2), TierLookup::kRetry);  // ... who asks next shares the check,
  lookups_->Flush();
  lookups_->OnRequestFinished(kR2);
  EndHang();
  EXPECT_THAT(place_.asked(), SizeIs(2));
  EXPECT_EQ(Lookup(Key(3), kR2), TierLookup::kRetry);  // ... but an unwanted answer is forgotten.
}

TEST_F(AsyncLookupTest, AnOldHitIsCheckedAgain) {
  place_.Put(Key(1));
  ASSERT_EQ(Known(Key(1)), TierLookup::kHit);
  now_ += milliseconds(9999);
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  place_.Remove(Key(1));
  now_ += milliseconds(1);
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  EXPECT_EQ(Known(Key(1)), TierLookup::kMiss);
}

TEST_F(AsyncLookupTest, AnOldMissIsCheckedAgainOnlyForWhoWasNotToldYet) {
  ASSERT_EQ(Known(Key(1)), TierLookup::kMiss);
  place_.Put(Key(1));
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kMiss);
  lookups_->OnRequestFinished(kR2);
  now_ += seconds(10);
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(1), kR1), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kRetry);
  EXPECT_EQ(Known(Key(1), kR2), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, AnOldHitThatCannotBeCheckedIsAMiss) {
  place_.Put(Key(1));
  ASSERT_EQ(Known(Key(1)), TierLookup::kHit);
  HangOn(Key(2), {true});
  now_ += seconds(10);
  lookups_->Flush();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);
  EndHang();
  EXPECT_EQ(Known(Key(1)), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, AFailedLoadTurnsAHitIntoAMiss) {
  place_.Put(Key(1));
  ASSERT_EQ(Known(Key(1)), TierLookup::kHit);
  const std::array keys{Key(1), Key(2)};  // Of key 2 nobody has heard.
  lookups_->MarkMiss(keys);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kRetry);
}

TEST_F(AsyncLookupTest, ACheckUnderWayIsNewerThanAFailedLoad) {
  HangOn(Key(1), {true});
  Lookup(Key(2));
  place_.Put(Key(2));
  const std::array keys{Key(1), Key(2)};
  lookups_->MarkMiss(keys);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kRetry);
  EndHang();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Known(Key(2)), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, AChunkStoredMeanwhileIsNotHiddenBehindAMiss) {
  ASSERT_EQ(Known(Key(1)), TierLookup::kMiss);
  const std::array keys{Key(1), Key(9)};
  lookups_->MarkStored(keys);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, AChunkStoredDuringItsCheckIsAHitWhateverTheCheckSays) {
  HangOn(Key(1), {false});
  Lookup(Key(2));
  const std::array keys{Key(1), Key(2)};
  lookups_->MarkStored(keys);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kHit);
  lookups_->Flush();
  EndHang();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kHit);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kHit);
  EXPECT_THAT(place_.asked(), SizeIs(1));
}

TEST_F(AsyncLookupTest, AnAnswerToAnEarlierCheckOfTheKeyDoesNotCount) {
  HangOn(Key(1), {false});
  const std::array keys{Key(1)};
  lookups_->MarkStored(keys);
  lookups_->OnRequestFinished(kR1);
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kRetry);
  lookups_->Flush();
  place_.HangNext({true});
  EndHang();
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kRetry);
  place_.entered.Await();
  EndHang();
  EXPECT_EQ(Lookup(Key(1), kR2), TierLookup::kHit);
}

TEST_F(AsyncLookupTest, WhatNobodyWantsAndIsStoredDuringItsCheckIsNotKept) {
  HangOn(Key(1), {false});
  lookups_->OnRequestFinished(kR1);
  const std::array keys{Key(1)};
  lookups_->MarkStored(keys);
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kRetry);
  place_.leave.Give();
}

TEST_F(AsyncLookupTest, AfterShutdownEverythingIsAMiss) {
  place_.Put(Key(1));
  ASSERT_EQ(Known(Key(1)), TierLookup::kHit);
  Lookup(Key(2));
  EXPECT_TRUE(lookups_->Shutdown(kBound));
  EXPECT_TRUE(lookups_->Shutdown(kBound));
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);
  EXPECT_EQ(Lookup(Key(2)), TierLookup::kMiss);
  const std::array keys{Key(1), Key(2)};
  lookups_->MarkMiss(keys);
  lookups_->MarkStored(keys);
  lookups_->OnRequestFinished(kR1);
  lookups_->Flush();
  lookups_->Drain();
  EXPECT_EQ(Lookup(Key(1)), TierLookup::kMiss);
}

TEST_F(AsyncLookupTest, ShutdownWaitsForTheCheckThatRuns) {
  HangOn(Key(1), {true});
  auto joined = std::async(std::launch::async, [&] { return lookups_->Shutdown(kBound); });
  place_.leave.Give();
  EXPECT_TRUE(joined.get());
}

// Gives a signal when the last of those who share it lets go.
struct Farewell {
  explicit Farewell(Signal& s) : signal(s) {}
  ~Farewell() { signal.Give(); }
  Signal& signal;
};

TEST_F(AsyncLookupTest, AThreadThatHangsOutlivesTheLookupsAndThenDoesNothingMore) {
  Signal gone;
  lookups_ = AsyncLookup::Create([check = place_.Check(), life = std::make_shared<Farewell>(gone)](
                                     auto keys) { return check(keys); },
                                 Options())
                 .value();
  HangOn(Key(1), {true});
  Lookup(Key(2));
  lookups_->Flush();
  EXPECT_FALSE(lookups_->Shutdown(milliseconds(0)));
  EXPECT_FALSE(lookups_->Shutdown(kBound));  // Not tried again.
  lookups_.reset();
  EXPECT_FALSE(gone.given());
  place_.leave.Give();
  gone.Await();
  EXPECT_FALSE(answered_.given());
  EXPECT_THAT(place_.asked(), SizeIs(1));
}

TEST_F(AsyncLookupTest, ShutdownReturnsWhenNobodyIsBeingToldAnyMore) {
  Signal telling;
  std::atomic<bool> told{false};
  std::atomic<bool> shutting_down{false};
  AsyncLookup::Options options = Options();
  options.on_answers = [&] {
    telling.Give();
    while (!shutting_down) std::this_thread::yield();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();  // Time to be caught in the act.
    told = true;
  };
  Use(std::move(options));
  Lookup(Key(1));
  lookups_->Flush();
  telling.Await();
  shutting_down = true;
  lookups_->Shutdown(milliseconds(0));
  EXPECT_TRUE(told);
}

TEST_F(AsyncLookupTest, ManyStepsWithAnswersInBetween) {
  for (std::uint8_t i = 0; i < 200; i += 2) place_.Put(Key(i));
  AsyncLookup::Options options = Options();
  options.keys_per_check_max = 3;
  Use(std::move(options));
  for (std::uint64_t round = 0; round < 20; ++round) {
    const Request request{RequestId(100 + round)};
    for (std::uint8_t i = 0; i < 200; ++i) {
      lookups_->Lookup(Key(i), request);
      if (i % 10 == 0) lookups_->Flush();
      if (i % 7 == 0) lookups_->Drain();
    }
    for (std::uint8_t i = 0; i < 200; ++i) {
      ASSERT_EQ(Known(Key(i), request), i % 2 == 0 ? TierLookup::kHit : TierLookup::kMiss);
    }
    lookups_->OnRequestFinished(request);
  }
  EXPECT_EQ(Counter("keys_checked"), 4000u);
}

}  // namespace
}  // namespace terrace
