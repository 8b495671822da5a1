// The directory of one identity: what is in it, and how a chunk gets in and out.
//
// Everything here blocks on the disk. See docs/formats.md for the layout.
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
#include "tier/file/file_ops.h"
#include "tier/file/temp_folder.h"

namespace terrace {

struct ChunkFileRead {
  enum class Kind : std::uint8_t {
    kOk,         // Every byte was verified.
    kMissing,    // There is no such file.
    kBad,        // The file is there and does not hold the chunk; it never will.
    kNewer,      // A newer build wrote it and can read it.
    kTransient,  // Could not be read now. Says nothing about the file.
  };
  Kind kind = Kind::kOk;
  std::string why;  // Empty if kOk.
};

// Thread-safe, after Open().
class ChunkDirectory {
 public:
  static constexpr std::size_t kQuarantinedFilesMax = 16;

  struct Options {
    std::string root_dir;
    bool direct_io = true;
  };
  // Makes what is missing, refuses what belongs to another cache, removes what crashed processes
  // left. `ops` and `identity` outlive the directory.
  static Result<std::unique_ptr<ChunkDirectory>> Open(const Options& options,
                                                      const CacheIdentity& identity, FileOps& ops);

  struct Inventory {
    std::vector<ChunkKey> keys;
    std::uint64_t foreign_files = 0;  // Names that we would not give.
  };
  // Cost: one pass over the names below chunks/; no file is opened.
  Result<Inventory> List() const;

  // Writes the record of `chunk` and publishes it whole. After an error nothing is left behind.
  // Pre: `chunk` is aligned to 4096 bytes and padded to a multiple of that.
  Result<void> Write(const ChunkKey& key, std::span<std::byte> chunk);

  // Fills `chunk` with what Write() was given. Its bytes are undefined unless kOk. The same Pre.
  ChunkFileRead Read(const ChunkKey& key, std::span<std::byte> chunk) const;

  enum class Disposal : std::uint8_t { kQuarantined, kRemoved, kStuck };
  // Takes a bad file out of chunks/: to quarantine/, or away if that is full.
  Disposal Quarantine(const ChunkKey& key);

  // Removes the folder of temporaries. Pre: no other call is under way or comes later.
  void Close() { temps_->Remove(); }

  const std::string& path() const { return path_; }
  bool direct_io() const { return direct_io_; }
  std::uint64_t stale_files_removed() const { return stale_files_removed_; }

 private:
  ChunkDirectory(const Options& options, const CacheIdentity& identity, FileOps& ops);

  Result<void> Prepare(const Options& options);
  // That the file at `path` says what we would say; false if there is none.
  Result<bool> CheckIdentity(const std::string& path) const;
  Result<void> WriteIdentity();
  Result<void> ProbeWriting(bool direct_io);
  Result<void> WriteFile(const std::string& path, const RecordBuffers& buffers);
  Result<void> Publish(const std::string& temp, const ChunkKey& key);
  Error WriteError(std::string attempt, int errno_value) const;
  ChunkFileRead ReadOpen(const OpenFile& file, const ChunkKey& key,
                         std::span<std::byte> chunk) const;
  std::string ChunkPath(const ChunkKey& key) const;
  std::string IdentityPath() const;
  int OpenFlags(int flags) const;
  IoGranularity Granularity() const;

  const CacheIdentity& identity_;
  FileOps& ops_;
  const std::string path_;
  // Constant after Open().
  bool direct_io_ = false;
  std::uint64_t stale_files_removed_ = 0;
  std::unique_ptr<TempFolder> temps_;

  // Held across system calls by threads that dispose of bad files, and by nobody else: so that two
  // of them do not both take the last free place.
  Mutex quarantine_mutex_;
};

}  // namespace terrace
