#include "tier/file/file_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/fd.h"

namespace terrace {
namespace {

template <typename T>
T OrErrno(T returned) {
  return returned < 0 ? static_cast<T>(-errno) : returned;
}

FileInfo InfoOf(const struct stat& found) {
  return {static_cast<std::uint64_t>(found.st_size), static_cast<std::uint64_t>(found.st_nlink)};
}

class Posix final : public FileOps {
 public:
  int Open(const std::string& path, int flags, mode_t mode) override {
    // Not blocking, for a FIFO in place of a file would never open; it makes no difference to
    // files.
    return OrErrno(
        KeepAwayFromStdio(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode)));
  }
  int Close(int fd) override { return OrErrno(::close(fd)); }
  ssize_t Preadv(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    return OrErrno(
        ::preadv(fd, pieces.data(), static_cast<int>(pieces.size()), static_cast<off_t>(offset)));
  }
  ssize_t Pwritev(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    return OrErrno(
        ::pwritev(fd, pieces.data(), static_cast<int>(pieces.size()), static_cast<off_t>(offset)));
  }
  int Fstat(int fd, FileInfo& info) override {
    struct stat found {};
    if (::fstat(fd, &found) != 0) return -errno;
    info = InfoOf(found);
    return 0;
  }
  int Stat(const std::string& path, FileInfo& info) override {
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0) return -errno;
    info = InfoOf(found);
    return 0;
  }
  int Fsync(int fd) override { return OrErrno(::fsync(fd)); }
  int Flock(int fd, int operation) override { return OrErrno(::flock(fd, operation)); }
  int Rename(const std::string& from, const std::string& to) override {
    return OrErrno(::rename(from.c_str(), to.c_str()));
  }
  int Unlink(const std::string& path) override { return OrErrno(::unlink(path.c_str())); }
  int Mkdir(const std::string& path, mode_t mode) override {
    return OrErrno(::mkdir(path.c_str(), mode));
  }
  int Rmdir(const std::string& path) override { return OrErrno(::rmdir(path.c_str())); }

  int ListDir(const std::string& path, std::vector<std::string>& names) override {
    names.clear();
    DIR* const dir = ::opendir(path.c_str());
    if (dir == nullptr) return -errno;
    errno = 0;
    for (const dirent* entry = ::readdir(dir); entry != nullptr; entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(dir);
    return -error;
  }
};

// What of the two buffers lies behind the first `done` bytes.
std::array<iovec, 2> Rest(const RecordBuffers& buffers, std::uint64_t done) {
  const std::uint64_t header_done = std::min<std::uint64_t>(done, buffers.header.size());
  const auto header = buffers.header.subspan(header_done);
  const auto payload = buffers.payload.subspan(done - header_done);
  return {iovec{header.data(), header.size()}, iovec{payload.data(), payload.size()}};
}

// Calls `move` until `enough` bytes went over or one call brought nothing new. A short transfer may
// end inside a block; O_DIRECT then has to do that block again.
template <typename Move>
std::int64_t MoveAll(const RecordBuffers& buffers, std::uint64_t enough, IoGranularity granularity,
                     Move move) {
  std::uint64_t done = 0;
  while (done < enough) {
    const std::uint64_t from = done - done % static_cast<std::uint32_t>(granularity);
    const ssize_t moved = move(Rest(buffers, from), from);
    if (moved == -EINTR) continue;
    if (moved < 0) return moved;
    if (from + static_cast<std::uint64_t>(moved) <= done) break;
    done = from + static_cast<std::uint64_t>(moved);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

FileOps& PosixFileOps() {
  static Posix ops;
  return ops;
}

OpenFile::OpenFile(FileOps& ops, const std::string& path, int flags) : ops_(&ops) {
  constexpr mode_t kMode = 0666;  // The umask takes away what the operator does not want.
  do {
    fd_ = ops.Open(path, flags, kMode);
  } while (fd_ == -EINTR);
  error_ = fd_ < 0 ? -fd_ : 0;
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : ops_(other.ops_), fd_(std::exchange(other.fd_, -1)), error_(other.error_) {}

OpenFile::~OpenFile() {
  if (fd_ >= 0) ops_->Close(fd_);
}

int OpenFile::Close() { return ops_->Close(std::exchange(fd_, -1)); }

std::int64_t ReadRecord(FileOps& ops, int fd, const RecordBuffers& buffers, std::uint64_t enough,
                        IoGranularity granularity) {
  return MoveAll(buffers, enough, granularity,
                 [&](const std::array<iovec, 2>& rest, std::uint64_t from) {
                   return ops.Preadv(fd, rest, from);
                 });
}

int WriteRecord(FileOps& ops, int fd, const RecordBuffers& buffers, IoGranularity granularity) {
  const std::uint64_t all = buffers.header.size() + buffers.payload.size();
  const std::int64_t written =
      MoveAll(buffers, all, granularity, [&](const std::array<iovec, 2>& rest, std::uint64_t from) {
        return ops.Pwritev(fd, rest, from);
      });
  if (written < 0) return static_cast<int>(written);
  return static_cast<std::uint64_t>(written) == all ? 0 : -EIO;
}

}  // namespace terrace
