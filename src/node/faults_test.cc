#include "node/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace terrace {
namespace {

TEST(Faults, KeepsTheOrderOneLineEach) {
  Faults faults;
  EXPECT_TRUE(faults.empty());
  faults.Add("b", "is wrong");
  faults.Add("a", "is too");
  EXPECT_FALSE(faults.empty());
  EXPECT_EQ(faults.ToString(), "b: is wrong\na: is too");
}

TEST(Faults, CountsWhatItDoesNotKeep) {
  Faults faults;
  for (std::size_t i = 0; i < Faults::kMaxKept + 5; ++i) faults.Add("a", "b");
  const std::string text = faults.ToString();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), Faults::kMaxKept);
  EXPECT_TRUE(text.ends_with("\nand 5 more faults"));
}

TEST(Quote, IsSafeToPrint) {
  EXPECT_EQ(Quote("a\"b"), R"("a\"b")");
  EXPECT_EQ(Quote("\x1b[2J\n\x7f"), R"("\u001b[2J\n\u007f")");
  EXPECT_EQ(Quote("\xc3\xa9"), R"("\u00e9")");
  EXPECT_EQ(Quote("\xff"), R"("\ufffd")") << "not UTF-8";
  EXPECT_EQ(Quote(std::string(64, 'x')), '"' + std::string(64, 'x') + '"');
  EXPECT_EQ(Quote(std::string(65, 'x')), '"' + std::string(64, 'x') + "...\"");
  EXPECT_EQ(Quote(std::string(63, 'x') + "\xc3\xa9"), '"' + std::string(63, 'x') + "\\ufffd...\"")
      << "cut inside a character";
}

TEST(Paths, QuoteOddKeys) {
  EXPECT_EQ(ChildPath("", "a"), "a");
  EXPECT_EQ(ChildPath(ItemPath("a", 3), "b_9-C"), "a[3].b_9-C");
  EXPECT_EQ(ChildPath("a", ""), R"(a[""])");
  EXPECT_EQ(ChildPath("a", "b.c"), R"(a["b.c"])");
  EXPECT_EQ(ChildPath("", "b\nc"), R"(["b\nc"])");
}

TEST(Nearest, FindsSlipsAndNothingElse) {
  constexpr std::array<std::string_view, 3> kWords = {"root_dir", "n_read_threads", "type"};
  EXPECT_EQ(Nearest("rootdir", kWords), "root_dir");
  EXPECT_EQ(Nearest("ROOT_DIR", kWords), "root_dir");
  EXPECT_EQ(Nearest("n_reads_thread", kWords), "n_read_threads");
  EXPECT_EQ(Nearest("typ", kWords), "type");
  EXPECT_EQ(Nearest("tp", kWords), std::nullopt);
  EXPECT_EQ(Nearest("cheese", kWords), std::nullopt);
  EXPECT_EQ(Nearest(std::string(1 << 20, 'r'), kWords), std::nullopt);
}

TEST(Nearest, PrefersTheNearer) {
  constexpr std::array<std::string_view, 2> kWords = {"n_write_threads", "n_read_threads"};
  EXPECT_EQ(Nearest("n_read_thread", kWords), "n_read_threads");
  EXPECT_EQ(Nearest("n_writ_threads", kWords), "n_write_threads");
}

}  // namespace
}  // namespace terrace
