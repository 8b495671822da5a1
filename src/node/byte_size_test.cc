#include "node/byte_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(ParseByteSize, TakesEveryUnit) {
  EXPECT_EQ(ParseByteSize("3KiB").value(), 3072u);
  EXPECT_EQ(ParseByteSize("512MiB").value(), 536'870'912u);
  EXPECT_EQ(ParseByteSize("2GiB").value(), 2'147'483'648u);
  EXPECT_EQ(ParseByteSize("1TiB").value(), 1'099'511'627'776u);
  EXPECT_EQ(ParseByteSize("3KB").value(), 3'000u);
  EXPECT_EQ(ParseByteSize("3MB").value(), 3'000'000u);
  EXPECT_EQ(ParseByteSize("4GB").value(), 4'000'000'000u);
  EXPECT_EQ(ParseByteSize("4TB").value(), 4'000'000'000'000u);
}

TEST(ParseByteSize, TakesFractionsAndOneSpace) {
  EXPECT_EQ(ParseByteSize("1.5GiB").value(), 1'610'612'736u);
  EXPECT_EQ(ParseByteSize("1.5 GiB").value(), 1'610'612'736u);
  EXPECT_EQ(ParseByteSize("0.25KiB").value(), 256u);
  EXPECT_EQ(ParseByteSize("0.999999TiB").value(), 1'099'510'528'264u);
  EXPECT_EQ(ParseByteSize("0.0001KB").value(), 0u) << "rounded down";
  EXPECT_EQ(ParseByteSize("007KB").value(), 7'000u);
}

TEST(ParseByteSize, RefusesWhatIsNotASize) {
  for (const char* text : {"",       " ",       "GiB",          "1",      "1.5",    "1.GiB",
                           ".5GiB",  "1..5GiB", "1.2345678GiB", "1  GiB", "1\tGiB", " 1GiB",
                           "1GiB ",  "1gib",    "1G",           "1GiBs",  "-1GiB",  "+1GiB",
                           "1e3KiB", "0x1KiB",  "1,5GiB",       "1PiB",   "infGiB", "nanGiB"}) {
    const auto size = ParseByteSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(size.error().message, testing::HasSubstr("is not a size; write a number")) << text;
  }
  EXPECT_FALSE(ParseByteSize(std::string_view("1GiB\0", 5)).ok());
}

TEST(ParseByteSize, TakesAllOf64BitsAndNoMore) {
  EXPECT_EQ(ParseByteSize("16777215TiB").value(), 16'777'215ull << 40);
  EXPECT_EQ(ParseByteSize("18446744073709551.615KB").value(), ~0ull);
  // In turn: by a digit's place (2^64 + 4, which would wrap to 4), by a digit, by the unit, and by
  // the fraction.
  for (const char* text : {"18446744073709551620KB", "18446744073709551616KB", "16777216TiB",
                           "18446744073709551.616KB"}) {
    const auto size = ParseByteSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_THAT(size.error().message, testing::HasSubstr("is more than 64 bits hold"));
  }
}

}  // namespace
}  // namespace terrace
