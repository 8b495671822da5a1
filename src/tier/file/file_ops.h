// Every system call of the file tier that can fail, so that a test can let it fail.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace {

struct FileInfo {
  std::uint64_t size_bytes = 0;
  std::uint64_t link_count = 0;
};

// Each method is the system call of its name and returns what that returns, or -errno. Nothing is
// retried here: short transfers and EINTR are the caller's to handle. Thread-safe.
class FileOps {
 public:
  virtual ~FileOps() = default;

  virtual int Open(const std::string& path, int flags, mode_t mode) = 0;
  // The descriptor is gone whatever it returns.
  virtual int Close(int fd) = 0;
  virtual ssize_t Preadv(int fd, std::span<const iovec> pieces, std::uint64_t offset) = 0;
  virtual ssize_t Pwritev(int fd, std::span<const iovec> pieces, std::uint64_t offset) = 0;
  virtual int Fstat(int fd, FileInfo& info) = 0;
  virtual int Stat(const std::string& path, FileInfo& info) = 0;
  virtual int Fsync(int fd) = 0;
  virtual int Flock(int fd, int operation) = 0;
  virtual int Rename(const std::string& from, const std::string& to) = 0;
  virtual int Unlink(const std::string& path) = 0;
  virtual int Mkdir(const std::string& path, mode_t mode) = 0;
  virtual int Rmdir(const std::string& path) = 0;
  // Fills `names` with the entries of a directory, without "." and "..", in no order.
  virtual int ListDir(const std::string& path, std::vector<std::string>& names) = 0;
};

// The operating system's. Lives as long as the process.
FileOps& PosixFileOps();

// A descriptor with an owner, closed through the FileOps that opened it. Thread-compatible.
class OpenFile {
 public:
  // Opens `path`, trying again after EINTR; error() is an errno, or 0.
  OpenFile(FileOps& ops, const std::string& path, int flags);
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  int error() const { return error_; }
  int fd() const { return fd_; }
  // For writers, who must know. 0 or -errno.
  int Close();

 private:
  FileOps* ops_;
  int fd_;
  int error_;
};

// Two buffers that lie one after the other in a file.
struct RecordBuffers {
  std::span<std::byte> header;
  std::span<std::byte> payload;
};

// Steps in which a file may be read and written: 1, or a block where O_DIRECT wants it.
enum class IoGranularity : std::uint32_t { kByte = 1, kBlock = 4096 };

// Reads both buffers from the front of a file until `enough` bytes or its end: bytes read, or
// -errno.
std::int64_t ReadRecord(FileOps& ops, int fd, const RecordBuffers& buffers, std::uint64_t enough,
                        IoGranularity granularity);
// Writes all of both buffers: 0 or -errno.
int WriteRecord(FileOps& ops, int fd, const RecordBuffers& buffers, IoGranularity granularity);

}  // namespace terrace
