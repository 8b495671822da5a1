// Every system call of host memory that can fail, so that a test can let it fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace terrace {

// Each method is the system call of its name and returns what that returns, or -errno. Thread-safe.
class MemoryOps {
 public:
  virtual ~MemoryOps() = default;

  virtual int MemfdCreate(const char* name, unsigned flags) = 0;
  virtual int Ftruncate(int fd, std::uint64_t size_bytes) = 0;
  // Shared, readable and writable, from the file's start; nullptr and `error` if it fails.
  virtual void* Mmap(int fd, std::size_t size_bytes, int& error) = 0;
  virtual int Madvise(void* begin, std::size_t size_bytes, int advice) = 0;
  // Locks pages as they are touched, and so returns at once (MLOCK_ONFAULT).
  virtual int MlockOnFault(void* begin, std::size_t size_bytes) = 0;

  // Before each path of memory_limits.h.
  virtual const std::string& limits_root() const = 0;
};

// The operating system's. Lives as long as the process.
MemoryOps& PosixMemoryOps();

}  // namespace terrace
