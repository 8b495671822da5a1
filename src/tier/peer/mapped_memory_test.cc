#include "tier/peer/mapped_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace terrace {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 1024;
constexpr std::size_t kSize = kPages * kPage;

// A file with pages at its front, a hole, and pages at its end.
UniqueFd MakeFile() {
  UniqueFd file(::memfd_create("mapped-memory-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), kSize), 0);
  const std::vector<char> bytes(kSize / 4, 'x');
  EXPECT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  EXPECT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), kSize / 4 * 3), std::ssize(bytes));
  return file;
}

std::size_t PagesOf(int file) {
  struct stat info {};
  EXPECT_EQ(::fstat(file, &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512 / kPage;
}

// Without a sanitizer's own memory for what is read, which has faults, too.
__attribute__((no_sanitize("address"))) __attribute__((no_sanitize("thread"))) long FaultsOfReading(
    const std::byte* from, std::size_t size) {
  rusage before{}, after{};
  ::getrusage(RUSAGE_THREAD, &before);
  const volatile std::byte* const bytes = from;
  for (std::size_t at = 0; at < size; at += kPage) (void)bytes[at];
  ::getrusage(RUSAGE_THREAD, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(MappedMemory, MapsThePagesThatThereAreAndMakesNone) {
  const UniqueFd file = MakeFile();
  const std::size_t pages = PagesOf(file.get());
  ASSERT_EQ(pages, kPages / 2);
  void* const mapped = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto* const base = static_cast<const std::byte*>(mapped);
  if (::madvise(mapped, kPage, 22 /* MADV_POPULATE_READ */) != 0) {
    GTEST_SKIP() << "this kernel cannot map pages ahead";
  }
  MappedMemory::MapPages(file.get(), base, kSize, std::atomic<bool>(false));
  EXPECT_EQ(PagesOf(file.get()), pages) << "a peer's untouched memory stays untouched";
  EXPECT_EQ(FaultsOfReading(base, kSize / 4), 0);
  EXPECT_EQ(FaultsOfReading(base + kSize / 4 * 3, kSize / 4), 0);
  ::munmap(mapped, kSize);
}

TEST(MappedMemory, StopsWhenItIsTold) {
  const UniqueFd file = MakeFile();
  void* const mapped = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  MappedMemory::MapPages(file.get(), static_cast<const std::byte*>(mapped), kSize,
                         std::atomic<bool>(true));
  EXPECT_GT(FaultsOfReading(static_cast<const std::byte*>(mapped), kSize / 4), 0);
  ::munmap(mapped, kSize);
}

TEST(MappedMemory, HoldsWhatThePeerWrites) {
  UniqueFd file = MakeFile();
  const UniqueFd peer(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  auto memory = MappedMemory::Map(std::move(file), kSize);
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(memory.value()->bytes().size(), kSize);
  EXPECT_EQ(memory.value()->bytes()[0], std::byte{'x'});
  const char written = 'y';
  ASSERT_EQ(::pwrite(peer.get(), &written, 1, kSize / 2), 1);
  EXPECT_EQ(memory.value()->bytes()[kSize / 2], std::byte{'y'}) << "in what was a hole";
}

TEST(MappedMemory, SaysWhyItCannot) {
  const auto none = MappedMemory::Map(UniqueFd(), kPage);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("map the peer's memory"), std::string::npos);
}

}  // namespace
}  // namespace terrace
