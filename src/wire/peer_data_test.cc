#include "wire/peer_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace terrace {
namespace {

std::vector<std::byte> Encode(const DataFrame& frame) {
  std::vector<std::byte> bytes;
  AppendDataFrame(frame, bytes);
  return bytes;
}

std::vector<DataFrame> OneOfEachKind() {
  DataOpen open{.version = 1, .plane = 2, .token = {}};
  for (std::size_t i = 0; i < open.token.size(); ++i) open.token[i] = static_cast<std::uint8_t>(i);
  DataOpened opened{.version = 1,
                    .plane = 2,
                    .chunk_bytes = 5000,
                    .stride_bytes = 8192,
                    .region_bytes = 0x1122334455667788,
                    .detail = std::vector<std::byte>(100, std::byte{7})};
  DataChunk chunk{.tag = 8, .status = DataStatus::kHere, .where = 8192, .record = {}};
  chunk.record.fill(std::byte{0x5a});
  return {open,
          opened,
          DataOpened{},
          DataRead{.tag = 0x0102030405060708, .lease = 9, .index = 0xfffffffe},
          DataBytes{.tag = 3, .size = 1 << 20},
          chunk,
          DataChunk{.tag = 1, .status = DataStatus::kGone, .where = 0, .record = {}},
          DataDone{.tag = 4}};
}

bool IsCorrupt(std::span<const std::byte> bytes) {
  const auto decoded = DecodeDataFrame(bytes);
  return !decoded.ok() && decoded.error().code == ErrorCode::kCorrupt;
}

TEST(PeerData, EveryFrameComesBackAsItWas) {
  for (const DataFrame& frame : OneOfEachKind()) {
    const auto bytes = Encode(frame);
    const auto decoded = DecodeDataFrame(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    ASSERT_TRUE(decoded.value().has_value());
    EXPECT_EQ(decoded.value()->frame, frame);
    EXPECT_EQ(decoded.value()->size, bytes.size());
    EXPECT_LE(bytes.size(), kDataFrameSizeMax);
  }
}

TEST(PeerData, WhatIsBehindAFrameIsLeftAlone) {
  auto bytes = Encode(DataDone{.tag = 4});
  const std::size_t size = bytes.size();
  bytes.resize(size + 3, std::byte{0xff});
  EXPECT_EQ(DecodeDataFrame(bytes).value()->size, size);
}

TEST(PeerData, APartOfAFrameAsksForMore) {
  for (const DataFrame& frame : OneOfEachKind()) {
    const auto bytes = Encode(frame);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = DecodeDataFrame(std::span(bytes).first(size));
      ASSERT_TRUE(decoded.ok()) << decoded.error().message;
      EXPECT_FALSE(decoded.value().has_value());
    }
  }
}

TEST(PeerData, JunkIsToldAtItsFirstByte) {
  for (const std::string_view junk : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "\n", "TX"}) {
    EXPECT_TRUE(IsCorrupt(std::as_bytes(std::span(junk)))) << junk;
  }
}

TEST(PeerData, TheHeadIsChecked) {
  for (const DataFrame& frame : OneOfEachKind()) {
    const auto good = Encode(frame);
    for (std::size_t i = 0; i < 8; ++i) {
      auto bytes = good;
      bytes[i] ^= std::byte{0x80};
      if (i == 6 && std::holds_alternative<DataOpened>(frame)) continue;  // Another size in bounds.
      EXPECT_TRUE(IsCorrupt(bytes)) << "byte " << i << " of kind " << frame.index();
    }
  }
  // The largest OPENED, and one byte more.
  auto bytes = Encode(DataOpened{.detail = std::vector<std::byte>(kDataDetailSizeMax)});
  EXPECT_TRUE(DecodeDataFrame(bytes).value().has_value());
  bytes[6] = std::byte((kDataFrameSizeMax + 1) & 0xff);
  EXPECT_TRUE(IsCorrupt(bytes));
}

TEST(PeerData, ValuesThatMeanNothingAreRefused) {
  auto bytes = Encode(DataBytes{.tag = 1, .size = 1});
  bytes[16] = std::byte{0};
  EXPECT_TRUE(IsCorrupt(bytes)) << "no bytes";
  bytes = Encode(DataChunk{});
  for (const int status : {0, 3, 255}) {
    bytes[16] = std::byte(status);
    EXPECT_TRUE(IsCorrupt(bytes)) << "status " << status;
  }
  bytes = Encode(DataRead{});
  bytes.back() = std::byte{1};
  EXPECT_TRUE(IsCorrupt(bytes)) << "zeros that are none";
}

}  // namespace
}  // namespace terrace
