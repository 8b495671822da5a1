#include "tier/file/chunk_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "tier/file/identity_file.h"
#include "tier/file/names.h"
#include "wire/chunk_record.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockSize = static_cast<std::size_t>(IoGranularity::kBlock);
constexpr std::size_t kIdentityFileSizeMax = 64 * 1024;

using HeaderBuffer = std::array<std::byte, kChunkRecordHeaderSize>;

Result<void> MakeDir(FileOps& ops, const std::string& path) {
  const int made = ops.Mkdir(path, 0777);
  if (made == 0 || made == -EEXIST) return {};
  return ErrnoError("create directory " + path, -made);
}

// As `mkdir -p`.
Result<void> MakeDirs(FileOps& ops, const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (auto made = MakeDir(ops, path.substr(0, slash)); !made) return made;
  }
  return MakeDir(ops, path);
}

Result<void> RequireDir(FileOps& ops, const std::string& path) {
  const OpenFile dir(ops, path, O_RDONLY | O_DIRECTORY);
  if (dir.error() == 0) return {};
  return ErrnoError("open directory " + path, dir.error());
}

// The chunk and what follows it up to the next block.
std::span<std::byte> Padded(std::span<std::byte> chunk) {
  return {chunk.data(), (chunk.size() + kBlockSize - 1) / kBlockSize * kBlockSize};
}

bool IsFull(int errno_value) { return errno_value == ENOSPC || errno_value == EDQUOT; }

}  // namespace

ChunkDirectory::ChunkDirectory(const Options& options, const CacheIdentity& identity, FileOps& ops)
    : identity_(identity), ops_(ops), path_(options.root_dir + "/" + IdentityDirName(identity)) {}

Result<std::unique_ptr<ChunkDirectory>> ChunkDirectory::Open(const Options& options,
                                                             const CacheIdentity& identity,
                                                             FileOps& ops) {
  std::unique_ptr<ChunkDirectory> directory(new ChunkDirectory(options, identity, ops));
  if (auto ready = directory->Prepare(options); !ready) {
    return Error{ready.error().code, "open the file tier in root_dir " + options.root_dir + ": " +
                                         ready.error().message};
  }
  return directory;
}

Result<void> ChunkDirectory::Prepare(const Options& options) {
  if (auto made = MakeDirs(ops_, options.root_dir); !made) return made;
  if (auto dir = RequireDir(ops_, options.root_dir); !dir) return dir;
  if (auto made = MakeDir(ops_, path_); !made) return made;
  // Before anything is written: it may not be ours.
  auto identified = CheckIdentity(IdentityPath());
  if (!identified) return std::move(identified).error();
  for (const char* part : {"/chunks", "/tmp"}) {
    if (auto made = MakeDir(ops_, path_ + part); !made) return made;
  }
  auto temps = TempFolder::Create(ops_, path_ + "/tmp");
  if (!temps) return std::move(temps).error();
  temps_ = std::move(temps).value();
  if (auto writable = ProbeWriting(options.direct_io); !writable) return writable;
  if (!identified.value()) {
    if (auto written = WriteIdentity(); !written) return written;
  }
  stale_files_removed_ = temps_->RemoveStale();
  return {};
}

Result<bool> ChunkDirectory::CheckIdentity(const std::string& path) const {
  const OpenFile file(ops_, path, O_RDONLY);
  if (file.error() == ENOENT) return false;
  if (file.error() != 0) return ErrnoError("open " + path, file.error());
  std::vector<std::byte> text(kIdentityFileSizeMax);
  const std::int64_t size =
      ReadRecord(ops_, file.fd(), {text, {}}, text.size(), IoGranularity::kByte);
  if (size < 0) return ErrnoError("read " + path, static_cast<int>(-size));
  const std::string_view view(reinterpret_cast<const char*>(text.data()),
                              static_cast<std::size_t>(size));
  if (auto ours = CheckIdentityFile(view, identity_); !ours) {
    const bool damaged = ours.error().code == ErrorCode::kCorrupt;
    return Error{ours.error().code, "check " + path + ": " + ours.error().message +
                                        (damaged ? "; remove this file, and the chunks beside it, "
                                                   "each of which names itself, are used again"
                                                 : "")};
  }
  return true;
}

Result<void> ChunkDirectory::WriteIdentity() {
  const std::string temp = temps_->NewPath();
  const std::string path = IdentityPath();
  std::string text = EncodeIdentityFile(identity_);
  {
    OpenFile file(ops_, temp, O_WRONLY | O_CREAT | O_EXCL);
    if (file.error() != 0) return WriteError("create " + temp, file.error());
    const int written = WriteRecord(ops_, file.fd(), {std::as_writable_bytes(std::span(text)), {}},
                                    IoGranularity::kByte);
    // The one file that is synced: torn by a power cut, it would lock us out of the whole cache.
    const int synced = written == 0 ? ops_.Fsync(file.fd()) : written;
    if (synced != 0) return WriteError("write " + temp, -synced);
    if (const int closed = file.Close(); closed != 0) return WriteError("close " + temp, -closed);
  }
  // Read back before anybody can see it, for a bad one would stop every later start; and again
  // after, for another process may have published its own.
  if (auto whole = CheckIdentity(temp); !whole) return std::move(whole).error();
  if (const int renamed = ops_.Rename(temp, path); renamed != 0) {
    return WriteError("rename " + temp + " to " + path, -renamed);
  }
  if (auto ours = CheckIdentity(path); !ours) return std::move(ours).error();
  return {};
}

// Tries to write, so that a read-only root_dir is an error at start, and finds out whether the file
// system takes O_DIRECT. A full disk is no error: what is on it can still be read.
Result<void> ChunkDirectory::ProbeWriting(bool direct_io) {
  direct_io_ = direct_io;
  const std::string temp = temps_->NewPath();
  alignas(kBlockSize) HeaderBuffer block{};
  auto written = WriteFile(temp, {block, {}});
  ops_.Unlink(temp);
  if (!written && written.error().code == ErrorCode::kInvalidArgument && direct_io) {
    TERRACE_LOG_INFO("file tier: {} does not take O_DIRECT; using the page cache", path_);
    return ProbeWriting(false);
  }
  if (!written && written.error().code == ErrorCode::kResourceExhausted) {
    TERRACE_LOG_WARN("file tier: {}; continuing, to serve what is there", written.error().message);
    return {};
  }
  return written;
}

Result<ChunkDirectory::Inventory> ChunkDirectory::List() const {
  Inventory inventory;
  const std::string chunks = path_ + "/chunks";
  std::vector<std::string> folders;
  if (const int listed = ops_.ListDir(chunks, folders); listed != 0) {
    return ErrnoError("list " + chunks, -listed);
  }
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    const int listed = ops_.ListDir(chunks + "/" + folder, files);
    if (listed == -ENOTDIR) {
      ++inventory.foreign_files;
      continue;
    }
    if (listed != 0) return ErrnoError("list " + chunks + "/" + folder, -listed);
    for (const std::string& file : files) {
      if (const auto key = ParseChunkFileName(folder, file)) {
        inventory.keys.push_back(*key);
      } else {
        ++inventory.foreign_files;
      }
    }
  }
  return inventory;
}

Result<void> ChunkDirectory::Write(const ChunkKey& key, std::span<std::byte> chunk) {
  alignas(kBlockSize) HeaderBuffer header;
  EncodeChunkRecord(MakeChunkRecord(identity_.digest(), key, chunk), header);
  const std::string temp = temps_->NewPath();
  auto stored = WriteFile(temp, {header, Padded(chunk)});
  if (stored) stored = Publish(temp, key);
  if (!stored) ops_.Unlink(temp);
  return stored;
}

Result<void> ChunkDirectory::WriteFile(const std::string& path, const RecordBuffers& buffers) {
  OpenFile file(ops_, path, OpenFlags(O_WRONLY | O_CREAT | O_EXCL));
  if (file.error() != 0) return WriteError("create " + path, file.error());
  if (const int written = WriteRecord(ops_, file.fd(), buffers, Granularity()); written != 0) {
    return WriteError("write " + path, -written);
  }
  if (const int closed = file.Close(); closed != 0) return WriteError("close " + path, -closed);
  return {};
}

// Until the rename nobody can see the file; after it, only the whole file.
Result<void> ChunkDirectory::Publish(const std::string& temp, const ChunkKey& key) {
  const std::string path = ChunkPath(key);
  int renamed = ops_.Rename(temp, path);
  if (renamed == -ENOENT) {
    const std::string folder = path_ + "/chunks/" + ChunkFolderName(key);
    if (const int made = ops_.Mkdir(folder, 0777); made != 0 && made != -EEXIST) {
      return WriteError("create directory " + folder, -made);
    }
    renamed = ops_.Rename(temp, path);
  }
  if (renamed != 0) return WriteError("rename " + temp + " to " + path, -renamed);
  return {};
}

ChunkFileRead ChunkDirectory::Read(const ChunkKey& key, std::span<std::byte> chunk) const {
  const std::string path = ChunkPath(key);
  const OpenFile file(ops_, path, OpenFlags(O_RDONLY));
  if (file.error() != 0) {
    return {
        file.error() == ENOENT ? ChunkFileRead::Kind::kMissing : ChunkFileRead::Kind::kTransient,
        ErrnoError("open " + path, file.error()).message};
  }
  ChunkFileRead read = ReadOpen(file, key, chunk);
  if (read.kind != ChunkFileRead::Kind::kOk) read.why = "read " + path + ": " + read.why;
  return read;
}

ChunkFileRead ChunkDirectory::ReadOpen(const OpenFile& file, const ChunkKey& key,
                                       std::span<std::byte> chunk) const {
  using Kind = ChunkFileRead::Kind;
  alignas(kBlockSize) HeaderBuffer header;
  const std::uint64_t enough = header.size() + chunk.size();
  const std::int64_t got =
      ReadRecord(ops_, file.fd(), {header, Padded(chunk)}, enough, Granularity());
  if (got < 0) {
    return {Kind::kTransient, std::generic_category().message(static_cast<int>(-got))};
  }
  const auto size = static_cast<std::uint64_t>(got);
  // First of all, for a newer format may have other sizes.
  const auto record =
      DecodeChunkRecord(std::span(header).first(std::min<std::uint64_t>(size, header.size())));
  if (!record && record.error().code == ErrorCode::kIncompatible) {
    return {Kind::kNewer, record.error().message};
  }
  if (size < enough) {
    // Only the file's own size proves that it, and not the read, came short.
    FileInfo info;
    const bool proven = ops_.Fstat(file.fd(), info) == 0 && info.size_bytes < enough;
    return {proven ? Kind::kBad : Kind::kTransient,
            std::to_string(size) + " of " + std::to_string(enough) + " bytes"};
  }
  if (!record) return {Kind::kBad, record.error().message};
  const auto match = MatchChunkRecord(record.value(), {identity_.digest(), key, chunk.size()});
  if (!match) return {Kind::kBad, match.error().message};
  const auto intact = VerifyChunkPayload(record.value(), chunk);
  if (!intact) return {Kind::kBad, intact.error().message};
  return {};
}

ChunkDirectory::Disposal ChunkDirectory::Quarantine(const ChunkKey& key) {
  const std::string path = ChunkPath(key);
  const std::string quarantine = path_ + "/quarantine";
  MutexLock lock(quarantine_mutex_);
  std::vector<std::string> names;
  int listed = ops_.ListDir(quarantine, names);
  if (listed == -ENOENT) listed = ops_.Mkdir(quarantine, 0777);
  if (listed == 0 && names.size() < kQuarantinedFilesMax &&
      ops_.Rename(path, quarantine + "/" + ChunkFileName(key)) == 0) {
    return Disposal::kQuarantined;
  }
  const int removed = ops_.Unlink(path);
  return removed == 0 || removed == -ENOENT ? Disposal::kRemoved : Disposal::kStuck;
}

Error ChunkDirectory::WriteError(std::string attempt, int errno_value) const {
  Error error = ErrnoError(std::move(attempt), errno_value);
  if (IsFull(errno_value)) {
    error.message +=
        "; the file system of " + path_ + " is full: free space on it, or use another root_dir";
  }
  return error;
}

std::string ChunkDirectory::ChunkPath(const ChunkKey& key) const {
  return path_ + "/chunks/" + ChunkFolderName(key) + "/" + ChunkFileName(key);
}

std::string ChunkDirectory::IdentityPath() const { return path_ + "/identity.json"; }

int ChunkDirectory::OpenFlags(int flags) const { return direct_io_ ? flags | O_DIRECT : flags; }

IoGranularity ChunkDirectory::Granularity() const {
  return direct_io_ ? IoGranularity::kBlock : IoGranularity::kByte;
}

}  // namespace terrace
