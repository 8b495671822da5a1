#include "tier/file/temp_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "tier/file/names.h"
#include "tier/file/random_id.h"

namespace terrace {
namespace {

constexpr const char* kLockName = "lock";

int TryLock(FileOps& ops, const OpenFile& file) {
  int locked = 0;
  do {
    locked = ops.Flock(file.fd(), LOCK_EX | LOCK_NB);
  } while (locked == -EINTR);
  return locked;
}

// Removes the files that are ours, then the folder, which fails if a stranger's file is in it.
// Pre: its lock is held, so that the lock file can go last.
std::uint64_t RemoveFolder(FileOps& ops, const std::string& folder) {
  std::uint64_t removed = 0;
  std::vector<std::string> names;
  if (ops.ListDir(folder, names) != 0) return 0;
  for (const std::string& name : names) {
    if (IsTempFileName(name) && ops.Unlink(folder + "/" + name) == 0) ++removed;
  }
  ops.Unlink(folder + "/" + kLockName);
  ops.Rmdir(folder);
  return removed;
}

}  // namespace

Result<std::unique_ptr<TempFolder>> TempFolder::Create(FileOps& ops, const std::string& tmp_dir) {
  // Between mkdir and flock another process may take the folder for a stale one and remove it. Then
  // the next id has better luck.
  constexpr int kTriesMax = 8;
  for (int i = 0; i < kTriesMax; ++i) {
    const std::string name = InstanceFolderName(RandomId());
    const std::string folder = tmp_dir + "/" + name;
    if (const int made = ops.Mkdir(folder, 0777); made != 0) {
      return ErrnoError("create directory " + folder, -made);
    }
    OpenFile lock(ops, folder + "/" + kLockName, O_RDWR | O_CREAT | O_EXCL);
    if (lock.error() == ENOENT) continue;
    if (lock.error() != 0) {
      ops.Rmdir(folder);
      return ErrnoError("create " + folder + "/" + kLockName, lock.error());
    }
    const int locked = TryLock(ops, lock);
    if (locked == -EWOULDBLOCK) continue;
    FileInfo info;
    const int looked = locked == 0 ? ops.Fstat(lock.fd(), info) : locked;
    if (looked != 0) {
      RemoveFolder(ops, folder);
      return ErrnoError("lock " + folder + "/" + kLockName, -looked);
    }
    if (info.link_count == 0) continue;
    return std::unique_ptr<TempFolder>(new TempFolder(ops, tmp_dir, name, std::move(lock)));
  }
  return Error{ErrorCode::kUnavailable,
               "create a folder in " + tmp_dir + ": other processes removed it each time"};
}

TempFolder::TempFolder(FileOps& ops, std::string tmp_dir, std::string name, OpenFile lock)
    : ops_(ops), tmp_dir_(std::move(tmp_dir)), name_(std::move(name)), lock_(std::move(lock)) {}

TempFolder::~TempFolder() { Remove(); }

std::uint64_t TempFolder::RemoveStale() {
  std::uint64_t removed = 0;
  std::vector<std::string> names;
  if (ops_.ListDir(tmp_dir_, names) != 0) return 0;
  for (const std::string& name : names) {
    if (!IsInstanceFolderName(name) || name == name_) continue;
    const std::string folder = tmp_dir_ + "/" + name;
    const OpenFile lock(ops_, folder + "/" + kLockName, O_RDWR);
    if (lock.error() == ENOENT) {
      ops_.Rmdir(folder);  // Died, or is about to look for its lock and then takes another id.
    } else if (lock.error() == 0 && TryLock(ops_, lock) == 0) {
      removed += RemoveFolder(ops_, folder);
    }
  }
  return removed;
}

std::string TempFolder::NewPath() {
  const std::uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
  return tmp_dir_ + "/" + name_ + "/" + TempFileName(number);
}

void TempFolder::Remove() {
  if (lock_.fd() < 0) return;
  RemoveFolder(ops_, tmp_dir_ + "/" + name_);
  lock_.Close();
}

}  // namespace terrace
