#include "tier/file/record_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fd.h"
#include "tier/file/identity_file.h"
#include "tier/file/names.h"
#include "wire/chunk_record.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockSize = static_cast<std::size_t>(IoGranularity::kBlock);
constexpr std::size_t kIdentityFileSizeMax = 64 * 1024;

using HeaderBuffer = std::array<std::byte, kChunkRecordHeaderSize>;

// The chunk and what follows it up to the next block.
std::span<std::byte> Padded(std::span<std::byte> chunk) {
  return {chunk.data(), (chunk.size() + kBlockSize - 1) / kBlockSize * kBlockSize};
}

}  // namespace

RecordDirectory::RecordDirectory(const Options& options, const CacheIdentity& identity,
                                 FileOps& ops)
    : identity_(identity),
      ops_(ops),
      files_(ops, options.root_dir + "/" + IdentityDirName(identity)) {}

Result<std::unique_ptr<RecordDirectory>> RecordDirectory::Open(const Options& options,
                                                               const CacheIdentity& identity,
                                                               FileOps& ops) {
  std::unique_ptr<RecordDirectory> directory(new RecordDirectory(options, identity, ops));
  if (auto ready = directory->Prepare(options); !ready) {
    return Error{ready.error().code, "open the file tier in root_dir " + options.root_dir + ": " +
                                         ready.error().message};
  }
  return directory;
}

Result<void> RecordDirectory::Prepare(const Options& options) {
  if (auto made = files_.MakeDirs(options.root_dir); !made) return made;
  if (auto made = files_.MakeDir(path()); !made) return made;
  // Before anything is written: it may not be ours.
  auto identified = CheckIdentity(IdentityPath());
  if (!identified) return std::move(identified).error();
  for (const char* part : {"/chunks", "/tmp"}) {
    if (auto made = files_.MakeDir(path() + part); !made) return made;
  }
  auto temps = TempFolder::Create(ops_, path() + "/tmp");
  if (!temps) return std::move(temps).error();
  temps_ = std::move(temps).value();
  auto new_path = [this] { return temps_->NewPath(); };
  if (auto writable = files_.Probe(options.direct_io, new_path); !writable) return writable;
  if (!identified.value()) {
    if (auto written = WriteIdentity(); !written) return written;
  }
  stale_files_removed_ = temps_->RemoveStale();
  return {};
}

Result<bool> RecordDirectory::CheckIdentity(const std::string& path) const {
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

Result<void> RecordDirectory::WriteIdentity() {
  const std::string temp = temps_->NewPath();
  const std::string path = IdentityPath();
  std::string text = EncodeIdentityFile(identity_);
  {
    OpenFile file(ops_, temp, O_WRONLY | O_CREAT | O_EXCL);
    if (file.error() != 0) return files_.WriteError("create " + temp, file.error());
    const int written = WriteRecord(ops_, file.fd(), {std::as_writable_bytes(std::span(text)), {}},
                                    IoGranularity::kByte);
    // The one file that is synced: torn by a power cut, it would lock us out of the whole cache.
    const int synced = written == 0 ? ops_.Fsync(file.fd()) : written;
    if (synced != 0) return files_.WriteError("write " + temp, -synced);
    if (const int closed = file.Close(); closed != 0)
      return files_.WriteError("close " + temp, -closed);
  }
  // Read back before anybody can see it, for a bad one would stop every later start; and again
  // after, for another process may have published its own.
  if (auto whole = CheckIdentity(temp); !whole) return std::move(whole).error();
  if (const int renamed = ops_.Rename(temp, path); renamed != 0) {
    return files_.WriteError("rename " + temp + " to " + path, -renamed);
  }
  if (auto ours = CheckIdentity(path); !ours) return std::move(ours).error();
  return {};
}

Result<RecordDirectory::Inventory> RecordDirectory::List() const {
  Inventory inventory;
  const std::string chunks = path() + "/chunks";
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

Result<ChunkDirectory::Stored> RecordDirectory::Write(const ChunkKey& key,
                                                      std::span<std::byte> chunk) {
  alignas(kBlockSize) HeaderBuffer header;
  EncodeChunkRecord(MakeChunkRecord(identity_.digest(), key, chunk), header);
  const std::string temp = temps_->NewPath();
  auto stored = files_.WriteNew(temp, {header, Padded(chunk)});
  if (stored) stored = Publish(temp, key);
  if (stored) return Stored::kWritten;
  ops_.Unlink(temp);
  return std::move(stored).error();
}

// Until the rename nobody can see the file; after it, only the whole file.
Result<void> RecordDirectory::Publish(const std::string& temp, const ChunkKey& key) {
  const std::string path = ChunkPath(key);
  int renamed = ops_.Rename(temp, path);
  if (renamed == -ENOENT) {
    const std::string folder = files_.path() + "/chunks/" + ChunkFolderName(key);
    if (auto made = files_.MakeDir(folder); !made) return made;
    renamed = ops_.Rename(temp, path);
  }
  if (renamed != 0) return files_.WriteError("rename " + temp + " to " + path, -renamed);
  return {};
}

ChunkFileRead RecordDirectory::Read(const ChunkKey& key, std::span<std::byte> chunk) const {
  const std::string path = ChunkPath(key);
  const OpenFile file(ops_, path, files_.OpenFlags(O_RDONLY));
  if (file.error() != 0) return DirectoryFiles::Unopened(path, file.error());
  ChunkFileRead read = ReadOpen(file, key, chunk);
  if (read.kind != ChunkFileRead::Kind::kOk) read.why = "read " + path + ": " + read.why;
  return read;
}

ChunkFileRead RecordDirectory::ReadOpen(const OpenFile& file, const ChunkKey& key,
                                        std::span<std::byte> chunk) const {
  using Kind = ChunkFileRead::Kind;
  alignas(kBlockSize) HeaderBuffer header;
  const std::uint64_t enough = header.size() + chunk.size();
  const std::int64_t got =
      ReadRecord(ops_, file.fd(), {header, Padded(chunk)}, enough, files_.Granularity());
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

RecordDirectory::Disposal RecordDirectory::Dispose(const ChunkKey& key) {
  const std::string path = ChunkPath(key);
  const std::string quarantine = files_.path() + "/quarantine";
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

std::string RecordDirectory::ChunkPath(const ChunkKey& key) const {
  return path() + "/chunks/" + ChunkFolderName(key) + "/" + ChunkFileName(key);
}

std::string RecordDirectory::IdentityPath() const { return path() + "/identity.json"; }

}  // namespace terrace
