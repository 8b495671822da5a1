#include "terrace/version.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(Version, IsThatOfTheHeader) { EXPECT_EQ(Version(), "0.1.0"); }

}  // namespace
}  // namespace terrace
