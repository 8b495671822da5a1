// A holder that knows the token and lies, over TCP: the asker takes no wrong byte for a right one,
// and no lie costs more than the link.
#include <gtest/gtest.h>

#include <functional>

#include "tests/contract/data_plane_kits.h"

namespace terrace::testing {
namespace {

using testing_support::Key;
using testing_support::Keys;

constexpr DataLinkId kLink(1);
constexpr std::uint64_t kChunk = 5000;

class DataPlaneLiarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto [listener, offer] = ListenTcpSilently();
    asker_.plane->Open(kLink, "127.0.0.1", offer, TokenOf(1), Soon());
    fd_ = UniqueFd(::accept(listener.get(), nullptr, nullptr));
    EXPECT_TRUE(std::holds_alternative<DataOpen>(Next()));
  }
  void SayOpened(std::uint8_t plane = static_cast<std::uint8_t>(PlaneKind::kTcp)) {
    SendFrame(fd_, DataOpened{.plane = plane,
                              .chunk_bytes = kChunk,
                              .stride_bytes = 8192,
                              .region_bytes = 8192,
                              .detail = {}});
  }
  // The link is open and chunk 0 is asked for, with tag 0.
  void BeAsked() {
    SayOpened();
    ASSERT_TRUE(asker_.AwaitOpened(kLink)) << asker_.lost[kLink];
    const auto keys = Keys(0, 1);
    asker_.plane->Read(kLink, ReadsOf(LeaseId(1), keys));
    EXPECT_EQ(Next(), DataFrame(DataRead{.tag = 0, .lease = 1, .index = 0}));
  }
  // What the asker says next.
  DataFrame Next() {
    std::vector<std::byte> bytes;
    while (true) {
      const auto decoded = DecodeDataFrame(bytes);
      if (decoded.value()) return decoded.value()->frame;
      bytes.emplace_back();
      if (::recv(fd_.get(), &bytes.back(), 1, 0) != 1) std::abort();
    }
  }
  DataChunk Here(std::span<const std::byte> payload, const ChunkKey& key = Key(0)) {
    DataChunk chunk{.tag = 0, .status = DataStatus::kHere};
    EncodeChunkRecord(MakeChunkRecord(asker_.host.identity().digest(), key, payload), chunk.record);
    return chunk;
  }
  void SendPayload(std::span<const std::byte> payload) {
    SendFrame(fd_, DataBytes{.tag = 0, .size = static_cast<std::uint32_t>(payload.size())});
    SendAll(fd_, payload);
  }
  ReadEnd AwaitEnd() {
    EXPECT_TRUE(asker_.AwaitEnds(1));
    return asker_.EndOf(kLink, 0).value_or(ReadEnd::kOk);
  }

  PlaneNode asker_{CreateTcpPlane, 16, kChunk};
  UniqueFd fd_;
  const std::vector<std::byte> good_ = PlaneNode::BytesOf(Key(0), kChunk);
};

TEST_F(DataPlaneLiarTest, TheTruthIsTaken) {
  BeAsked();
  SendPayload(std::span(good_).first(17));
  SendPayload(std::span(good_).subspan(17));
  SendFrame(fd_, Here(good_));
  EXPECT_EQ(AwaitEnd(), ReadEnd::kOk);
  EXPECT_TRUE(asker_.Holds(SlotId(0), Key(0)));
}

TEST_F(DataPlaneLiarTest, OneWrongBitIsCorrupt) {
  BeAsked();
  auto bad = good_;
  bad[1234] ^= std::byte{1};
  SendPayload(bad);
  SendFrame(fd_, Here(good_));
  EXPECT_EQ(AwaitEnd(), ReadEnd::kCorrupt);
  EXPECT_TRUE(asker_.lost.empty());
}

TEST_F(DataPlaneLiarTest, ADamagedRecordIsCorrupt) {
  BeAsked();
  SendPayload(good_);
  DataChunk chunk = Here(good_);
  chunk.record[60] ^= std::byte{1};
  SendFrame(fd_, chunk);
  EXPECT_EQ(AwaitEnd(), ReadEnd::kCorrupt);
}

TEST_F(DataPlaneLiarTest, GoneInTheMiddleIsGone) {
  BeAsked();
  SendPayload(std::span(good_).first(1000));
  SendFrame(fd_, DataChunk{.tag = 0});
  EXPECT_EQ(AwaitEnd(), ReadEnd::kGone);
  EXPECT_TRUE(asker_.lost.empty());
}

TEST_F(DataPlaneLiarTest, NonsenseCostsTheLink) {
  const auto half = std::span(good_).first(kChunk / 2);
  const std::vector<std::function<void()>> lies{
      [&] { SendFrame(fd_, Here(good_)); },                            // No bytes.
      [&] { SendPayload(half), SendFrame(fd_, Here(good_)); },         // Half of them.
      [&] { SendPayload(good_), SendPayload(half); },                  // More.
      [&] { SendFrame(fd_, DataBytes{.tag = 0, .size = 1U << 31}); },  // Much more.
      [&] { SendFrame(fd_, DataBytes{.tag = 7, .size = 1}); },         // Of nothing.
      [&] { SendFrame(fd_, DataChunk{.tag = 7}); },                    // The same.
      [&] { SayOpened(); },                                            // Again.
      [&] { SendFrame(fd_, DataRead{}); },                             // An asker's.
      [&] { SendText(fd_, "HTTP/1.1 400 Bad Request\r\n"); },
      [&] { SendPayload(half), fd_.Reset(); },  // Goodbye.
  };
  for (std::size_t lie = 0; lie < lies.size(); ++lie) {
    SCOPED_TRACE(lie);
    if (lie > 0) {
      auto [listener, offer] = ListenTcpSilently();
      asker_.ends.clear();
      asker_.opened.clear();
      asker_.lost.clear();
      asker_.plane->Open(kLink, "127.0.0.1", offer, TokenOf(1), Soon());
      fd_ = UniqueFd(::accept(listener.get(), nullptr, nullptr));
      EXPECT_TRUE(std::holds_alternative<DataOpen>(Next()));
    }
    BeAsked();
    lies[lie]();
    ASSERT_TRUE(asker_.AwaitLost(kLink));
    EXPECT_EQ(asker_.EndOf(kLink, 0), ReadEnd::kLost);
    EXPECT_EQ(asker_.ends.size(), 1U);
  }
}

TEST_F(DataPlaneLiarTest, SilenceEndsWithClose) {
  BeAsked();
  SendPayload(std::span(good_).first(100));
  asker_.plane->Close(kLink);
  ASSERT_TRUE(asker_.AwaitLost(kLink));
  EXPECT_EQ(asker_.EndOf(kLink, 0), ReadEnd::kLost);
}

TEST_F(DataPlaneLiarTest, AnotherPlaneThanAskedForIsRefused) {
  SayOpened(static_cast<std::uint8_t>(PlaneKind::kUcx));
  EXPECT_TRUE(asker_.AwaitLost(kLink));
}

TEST_F(DataPlaneLiarTest, AnAnswerBeforeOpenedIsRefused) {
  SendFrame(fd_, DataChunk{});
  EXPECT_TRUE(asker_.AwaitLost(kLink));
  EXPECT_TRUE(asker_.opened.empty());
}

}  // namespace
}  // namespace terrace::testing
