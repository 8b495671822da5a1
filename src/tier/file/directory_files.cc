#include "tier/file/directory_files.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/fd.h"
#include "base/log.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockSize = static_cast<std::size_t>(IoGranularity::kBlock);

}  // namespace

Result<void> DirectoryFiles::MakeDir(const std::string& path) const {
  const int made = ops_.Mkdir(path, 0777);
  if (made == 0 || made == -EEXIST) return {};
  return WriteError("create directory " + path, -made);
}

Result<void> DirectoryFiles::MakeDirs(const std::string& path) const {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (auto made = MakeDir(path.substr(0, slash)); !made) return made;
  }
  if (auto made = MakeDir(path); !made) return made;
  const OpenFile dir(ops_, path, O_RDONLY | O_DIRECTORY);
  if (dir.error() == 0) return {};
  return ErrnoError("open directory " + path, dir.error());
}

Result<void> DirectoryFiles::Probe(bool direct_io, const std::function<std::string()>& new_path) {
  direct_io_ = direct_io;
  const std::string path = new_path();
  alignas(kBlockSize) std::array<std::byte, kBlockSize> block{};
  auto written = WriteNew(path, {block, {}});
  ops_.Unlink(path);
  if (!written && written.error().code == ErrorCode::kInvalidArgument && direct_io) {
    TERRACE_LOG_INFO("file tier: {} does not take O_DIRECT; using the page cache", path_);
    return Probe(false, new_path);
  }
  if (!written && written.error().code == ErrorCode::kResourceExhausted) {
    TERRACE_LOG_WARN("file tier: {}; continuing, to serve what is there", written.error().message);
    return {};
  }
  return written;
}

Result<void> DirectoryFiles::WriteNew(const std::string& path, const RecordBuffers& buffers) const {
  OpenFile file(ops_, path, OpenFlags(O_WRONLY | O_CREAT | O_EXCL));
  if (file.error() != 0) return WriteError("create " + path, file.error());
  if (const int written = WriteRecord(ops_, file.fd(), buffers, Granularity()); written != 0) {
    return WriteError("write " + path, -written);
  }
  if (const int closed = file.Close(); closed != 0) return WriteError("close " + path, -closed);
  return {};
}

Error DirectoryFiles::WriteError(std::string attempt, int errno_value) const {
  Error error = ErrnoError(std::move(attempt), errno_value);
  if (errno_value == ENOSPC || errno_value == EDQUOT) {
    error.message +=
        "; the file system of " + path_ + " is full: free space on it, or use another root_dir";
  }
  return error;
}

ChunkFileRead DirectoryFiles::Unopened(const std::string& path, int errno_value) {
  return {errno_value == ENOENT ? ChunkFileRead::Kind::kMissing : ChunkFileRead::Kind::kTransient,
          ErrnoError("open " + path, errno_value).message};
}

int DirectoryFiles::OpenFlags(int flags) const { return direct_io_ ? flags | O_DIRECT : flags; }

IoGranularity DirectoryFiles::Granularity() const {
  return direct_io_ ? IoGranularity::kBlock : IoGranularity::kByte;
}

}  // namespace terrace
