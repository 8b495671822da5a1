#include "host/memory_ops.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

class Posix final : public MemoryOps {
 public:
  int MemfdCreate(const char* name, unsigned flags) override {
    return Answer(::memfd_create(name, flags));
  }
  int Ftruncate(int fd, std::uint64_t size_bytes) override {
    return Answer(::ftruncate(fd, static_cast<off_t>(size_bytes)));
  }
  void* Mmap(int fd, std::size_t size_bytes, int& error) override {
    void* begin = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    error = begin == MAP_FAILED ? errno : 0;
    return begin == MAP_FAILED ? nullptr : begin;
  }
  int Madvise(void* begin, std::size_t size_bytes, int advice) override {
    return Answer(::madvise(begin, size_bytes, advice));
  }
  int MlockOnFault(void* begin, std::size_t size_bytes) override {
    return Answer(::mlock2(begin, size_bytes, MLOCK_ONFAULT));
  }
  const std::string& limits_root() const override { return root_; }

 private:
  static int Answer(int result) { return result < 0 ? -errno : result; }

  const std::string root_;
};

}  // namespace

MemoryOps& PosixMemoryOps() {
  static Posix* const ops = new Posix;  // Never destroyed: threads may outlive main().
  return *ops;
}

}  // namespace terrace
