// What any layout of the file tier does: make directories, write new files, and find out
// whether the file system takes O_DIRECT.
#pragma once

#include <functional>
#include <string>

#include "terrace/result.h"
#include "tier/file/chunk_directory.h"
#include "tier/file/file_ops.h"

namespace terrace {

// Thread-safe, after Probe().
class DirectoryFiles {
 public:
  // `path`: the directory that all the files are below. `ops` outlives this.
  DirectoryFiles(FileOps& ops, std::string path) : ops_(ops), path_(std::move(path)) {}

  FileOps& ops() const { return ops_; }
  const std::string& path() const { return path_; }
  bool direct_io() const { return direct_io_; }

  // One directory, which may be there.
  Result<void> MakeDir(const std::string& path) const;
  // The same with its parents; an error if something else has the name.
  Result<void> MakeDirs(const std::string& path) const;

  // Tries to write, so that a read-only directory is an error at start, and whether with O_DIRECT,
  // if `direct_io` says so. A full disk is no error: what is on it can still be read.
  Result<void> Probe(bool direct_io, const std::function<std::string()>& new_path);

  // Makes the file, which must not be there. After an error a part of it may be.
  Result<void> WriteNew(const std::string& path, const RecordBuffers& buffers) const;

  // ErrnoError(), with advice if the file system is full.
  Error WriteError(std::string attempt, int errno_value) const;
  // What Read() says of a file that could not be opened.
  static ChunkFileRead Unopened(const std::string& path, int errno_value);

  int OpenFlags(int flags) const;
  IoGranularity Granularity() const;

 private:
  FileOps& ops_;
  const std::string path_;
  bool direct_io_ = false;  // Constant after Probe().
};

}  // namespace terrace
