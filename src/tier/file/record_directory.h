// The layout `records`: a directory of one identity, and in it a record for each chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "terrace/cache_identity.h"
#include "terrace/result.h"
#include "tier/file/chunk_directory.h"
#include "tier/file/directory_files.h"
#include "tier/file/file_ops.h"
#include "tier/file/temp_folder.h"

namespace terrace {

// Thread-safe, after Open().
class RecordDirectory final : public ChunkDirectory {
 public:
  static constexpr std::size_t kQuarantinedFilesMax = 16;

  struct Options {
    std::string root_dir;
    bool direct_io = true;
  };
  // Makes what is missing, refuses what belongs to another cache, removes what crashed processes
  // left. `ops` and `identity` outlive the directory.
  static Result<std::unique_ptr<RecordDirectory>> Open(const Options& options,
                                                       const CacheIdentity& identity, FileOps& ops);

  struct Inventory {
    std::vector<ChunkKey> keys;
    std::uint64_t foreign_files = 0;  // Names that we would not give.
  };
  // Cost: one pass over the names below chunks/; no file is opened.
  Result<Inventory> List() const;

  // Replaces what is there.
  Result<Stored> Write(const ChunkKey& key, std::span<std::byte> chunk) override;
  ChunkFileRead Read(const ChunkKey& key, std::span<std::byte> chunk) const override;
  // To quarantine/, or away if that is full.
  Disposal Dispose(const ChunkKey& key) override;
  void Close() override { temps_->Remove(); }

  // The directory of the identity, below root_dir.
  const std::string& path() const override { return files_.path(); }
  bool direct_io() const override { return files_.direct_io(); }
  std::uint64_t stale_files_removed() const { return stale_files_removed_; }

 private:
  RecordDirectory(const Options& options, const CacheIdentity& identity, FileOps& ops);

  Result<void> Prepare(const Options& options);
  // That the file at `path` says what we would say; false if there is none.
  Result<bool> CheckIdentity(const std::string& path) const;
  Result<void> WriteIdentity();
  Result<void> Publish(const std::string& temp, const ChunkKey& key);
  ChunkFileRead ReadOpen(const OpenFile& file, const ChunkKey& key,
                         std::span<std::byte> chunk) const;
  std::string ChunkPath(const ChunkKey& key) const;
  std::string IdentityPath() const;

  const CacheIdentity& identity_;
  FileOps& ops_;
  // Constant after Open().
  DirectoryFiles files_;
  std::uint64_t stale_files_removed_ = 0;
  std::unique_ptr<TempFolder> temps_;

  // Held across system calls by threads that dispose of bad files, and by nobody else: so that two
  // of them do not both take the last free place.
  Mutex quarantine_mutex_;
};

}  // namespace terrace
