// Where one process writes files that are not yet whole, and how the next one knows that it died.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "terrace/result.h"
#include "tier/file/file_ops.h"

namespace terrace {

// tmp/<random id>/ with a file `lock`, on which flock(2) is held while this object lives. The
// kernel gives the lock up when the process dies, however it dies. Thread-safe.
class TempFolder {
 public:
  // Pre: `tmp_dir` exists. `ops` outlives the folder.
  static Result<std::unique_ptr<TempFolder>> Create(FileOps& ops, const std::string& tmp_dir);
  ~TempFolder();

  // Removes the folders of processes that died; returns how many unfinished files were in them.
  // What cannot be removed stays for a later start.
  std::uint64_t RemoveStale();

  // A path that no file has.
  std::string NewPath();

  // Removes the folder and what is left in it, and gives up the lock.
  // Idempotent. Pre: nobody uses the folder any more.
  void Remove();

 private:
  TempFolder(FileOps& ops, std::string tmp_dir, std::string name, OpenFile lock);

  FileOps& ops_;
  const std::string tmp_dir_;
  const std::string name_;
  OpenFile lock_;
  std::atomic<std::uint64_t> next_number_{0};  // Relaxed: only has to be unique.
};

}  // namespace terrace
