#include "tier/file/vllm_directory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fd.h"
#include "tier/file/names.h"
#include "tier/file/random_id.h"

namespace terrace {

VllmDirectory::VllmDirectory(const Options& options, FileOps& ops)
    : row_size_(options.row_size_bytes), files_(ops, options.root_dir) {}

Result<std::unique_ptr<VllmDirectory>> VllmDirectory::Open(const Options& options, FileOps& ops) {
  std::unique_ptr<VllmDirectory> directory(new VllmDirectory(options, ops));
  DirectoryFiles& files = directory->files_;
  auto ready = files.MakeDirs(options.root_dir);
  if (ready) {
    ready = files.Probe(options.direct_io,
                        [&] { return VllmTempPath(files.path() + "/.probe", RandomId()); });
  }
  if (ready) return directory;
  return Error{ready.error().code,
               "open the file tier in root_dir " + options.root_dir + ": " + ready.error().message};
}

Result<bool> VllmDirectory::Has(const ChunkKey& key) const {
  const auto size = SizeOf(PathOf(key));
  if (!size) return size.error();
  return size.value() == row_size_;
}

Result<ChunkDirectory::Stored> VllmDirectory::Write(const ChunkKey& key,
                                                    std::span<std::byte> chunk) {
  const std::string path = PathOf(key);
  const auto size = SizeOf(path);
  if (!size) return size.error();
  if (size.value() == row_size_) return Stored::kWasThere;
  if (size.value() > row_size_) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("write {}: it is there with {} bytes, and a chunk has {}: of another "
                             "model or layout; use another root_dir",
                             path, *size.value(), row_size_)};
  }
  const std::string temp = VllmTempPath(path, RandomId());
  auto written = WriteTemp(temp, Row(chunk));
  int renamed = 0;
  if (written) renamed = files_.ops().Rename(temp, path);
  if (written && renamed == 0) return Stored::kWritten;
  files_.ops().Unlink(temp);
  if (!written) return std::move(written).error();
  // Some shared file systems do not replace. Then somebody else was first.
  if (renamed == -EEXIST) {
    if (const auto there = Has(key); there && there.value()) return Stored::kWasThere;
  }
  return files_.WriteError("rename " + temp + " to " + path, -renamed);
}

ChunkFileRead VllmDirectory::Read(const ChunkKey& key, std::span<std::byte> chunk) const {
  using Kind = ChunkFileRead::Kind;
  const std::string path = PathOf(key);
  const auto because = [&path](Kind kind, const std::string& why) {
    return ChunkFileRead{kind, "read " + path + ": " + why};
  };
  const OpenFile file(files_.ops(), path, files_.OpenFlags(O_RDONLY));
  if (file.error() != 0) return DirectoryFiles::Unopened(path, file.error());
  FileInfo info;
  if (const int looked = files_.ops().Fstat(file.fd(), info); looked != 0) {
    return because(Kind::kTransient, std::generic_category().message(-looked));
  }
  // Only the file's own size proves that it, and not a read, came short.
  if (info.size_bytes != row_size_) {
    return because(info.size_bytes < row_size_ ? Kind::kBad : Kind::kForeign,
                   fmt::format("{} bytes, and a chunk has {}", info.size_bytes, row_size_));
  }
  const std::int64_t got =
      ReadRecord(files_.ops(), file.fd(), {Row(chunk), {}}, row_size_, files_.Granularity());
  if (got < 0) {
    return because(Kind::kTransient, std::generic_category().message(static_cast<int>(-got)));
  }
  if (static_cast<std::uint64_t>(got) < row_size_) {
    return because(Kind::kTransient, fmt::format("{} of {} bytes", got, row_size_));
  }
  return {};
}

// There is no quarantine: the directory is not ours alone.
ChunkDirectory::Disposal VllmDirectory::Dispose(const ChunkKey& key) {
  const int removed = files_.ops().Unlink(PathOf(key));
  return removed == 0 || removed == -ENOENT ? Disposal::kRemoved : Disposal::kStuck;
}

std::string VllmDirectory::PathOf(const ChunkKey& key) const {
  return path() + "/" + VllmChunkPath(key);
}

Result<std::optional<std::uint64_t>> VllmDirectory::SizeOf(const std::string& path) const {
  FileInfo info;
  const int looked = files_.ops().Stat(path, info);
  if (looked == -ENOENT) return std::optional<std::uint64_t>();
  if (looked != 0) return ErrnoError("look at " + path, -looked);
  return std::optional(info.size_bytes);
}

// The folders of most chunks are there already.
Result<void> VllmDirectory::WriteTemp(const std::string& temp, std::span<std::byte> row) const {
  auto written = files_.WriteNew(temp, {row, {}});
  if (written || written.error().code != ErrorCode::kNotFound) return written;
  const std::string folder = temp.substr(0, temp.rfind('/'));
  for (const std::string& dir : {folder.substr(0, folder.rfind('/')), folder}) {
    if (auto made = files_.MakeDir(dir); !made) return made;
  }
  return files_.WriteNew(temp, {row, {}});
}

}  // namespace terrace
