#include "host/event_log.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/keys.h"

namespace terrace {
namespace {

using Kind = CacheEvent::Kind;
using testing_support::Key;

TEST(EventLog, WhatCameAndWentIsNoEventAndWhatWentAndCameBackNeither) {
  EventLog log(8);
  log.Add(Kind::kStored, Key(1));
  log.Add(Kind::kRemoved, Key(2));
  log.Add(Kind::kRemoved, Key(1));
  log.Add(Kind::kStored, Key(2));
  EXPECT_TRUE(log.Take().empty());
}

TEST(EventLog, TheLastChangeOfAKeyIsTheOneInItsPlace) {
  EventLog log(8);
  log.Add(Kind::kStored, Key(1));
  log.Add(Kind::kStored, Key(2));
  log.Add(Kind::kRemoved, Key(1));
  log.Add(Kind::kStored, Key(1));
  const auto events = log.Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].key, Key(2));
  EXPECT_EQ(events[1].key, Key(1));
  EXPECT_EQ(events[1].kind, Kind::kStored);
}

TEST(EventLog, AFailureIsSaidUnlessTheChunkCameLater) {
  EventLog log(8);
  log.Add(Kind::kFailed, Key(1));
  log.Add(Kind::kRemoved, Key(2));
  log.Add(Kind::kFailed, Key(2));
  log.Add(Kind::kFailed, Key(3));
  log.Add(Kind::kStored, Key(3));
  log.Add(Kind::kFailed, Key(1));
  const auto events = log.Take();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, Kind::kRemoved);
  EXPECT_EQ(events[0].key, Key(2));
  EXPECT_EQ(events[1].kind, Kind::kFailed);
  EXPECT_EQ(events[1].key, Key(2));
  EXPECT_EQ(events[2].kind, Kind::kStored);
  EXPECT_EQ(events[2].key, Key(3));
  EXPECT_EQ(events[3].kind, Kind::kFailed);
  EXPECT_EQ(events[3].key, Key(1));
}

TEST(EventLog, ChurnOfAFewKeysIsNeverLost) {
  EventLog log(2);
  for (int i = 0; i < 1000; ++i) {
    log.Add(Kind::kStored, Key(1));
    log.Add(Kind::kRemoved, Key(1));
    log.Add(Kind::kFailed, Key(2));
  }
  EXPECT_EQ(log.Take().size(), 1u);
}

TEST(EventLog, MoreChangesThanFitAreSaidToBeLostOnceAndThenItGoesOn) {
  EventLog log(2);
  for (std::uint64_t i = 0; i < 10; ++i) log.Add(Kind::kStored, Key(i));
  const auto events = log.Take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kLost);
  log.Add(Kind::kRemoved, Key(3));
  ASSERT_EQ(log.Take().size(), 1u);
}

// A reader that applies what it takes knows what is there, whenever it takes.
TEST(EventLog, AReadersModelIsTheTruth) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    EventLog log(16);
    std::set<ChunkKey> truth, model;
    for (int step = 0; step < 2000; ++step) {
      const ChunkKey key = Key(random() % 24);
      if (truth.erase(key) == 1) {
        log.Add(Kind::kRemoved, key);
      } else if (random() % 4 == 0) {
        log.Add(Kind::kFailed, key);
      } else {
        truth.insert(key);
        log.Add(Kind::kStored, key);
      }
      if (random() % 20 != 0) continue;
      for (const CacheEvent& event : log.Take()) {
        if (event.kind == Kind::kLost) {
          model = truth;
        } else if (event.kind == Kind::kStored) {
          ASSERT_TRUE(model.insert(event.key).second) << "seed " << seed << " step " << step;
        } else if (event.kind == Kind::kFailed) {
          ASSERT_FALSE(truth.contains(event.key)) << "seed " << seed << " step " << step;
        } else {
          ASSERT_EQ(model.erase(event.key), 1u) << "seed " << seed << " step " << step;
        }
      }
      ASSERT_EQ(model, truth) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace terrace
