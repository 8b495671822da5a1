#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

TEST(KeepAwayFromStdio, MovesOnlyStandardDescriptors) {
  const int fd = ::open("/dev/null", O_RDONLY);
  ASSERT_GT(fd, 2);
  EXPECT_EQ(KeepAwayFromStdio(fd), fd);
  EXPECT_EQ(KeepAwayFromStdio(-1), -1);
  // In a child, where standard input may be taken away.
  EXPECT_EXIT(
      {
        ::close(0);
        const int low = ::open("/dev/null", O_RDONLY);
        const int moved = KeepAwayFromStdio(low);
        const bool closed = ::fcntl(0, F_GETFD) < 0 && errno == EBADF;
        _exit(low == 0 && moved > 2 && closed ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  ::close(fd);
}

TEST(ErrnoError, SaysWhatWasTriedAndWhatCameBack) {
  const Error error = ErrnoError("open /x", EACCES);
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(error.message, "open /x: Permission denied");
}

}  // namespace
}  // namespace terrace
