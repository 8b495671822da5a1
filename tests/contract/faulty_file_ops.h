// The operating system with one fault in it: the n-th call that the fault applies to goes wrong.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/contract/hang.h"
#include "tier/file/file_ops.h"

namespace terrace::testing {

enum class FaultShape {
  kError,     // Any call: fails with `error` and does nothing (a close closes all the same).
  kShort,     // Reads and writes: do half, say so.
  kTorn,      // Reads and writes: do half, then fail with `error`.
  kNothing,   // Reads and writes: do nothing, say 0.
  kFlipByte,  // Reads and writes: one wrong byte in the middle, and no word of it.
};

struct Fault {
  FaultShape shape = FaultShape::kError;
  int error = EIO;
  std::uint64_t nth = std::numeric_limits<std::uint64_t>::max();  // Counted from 0; never.
  bool for_ever = false;                                          // All later calls go wrong too.
  std::string only{};  // If given: only calls of this name count.
};

// Thread-safe, except Arm(), which is called while nobody else calls.
class FaultyFileOps : public FileOps {
 public:
  void Arm(Fault fault) {
    fault_ = std::move(fault);
    calls_ = 0;
    fired_ = false;
  }
  void Disarm() { Arm({}); }
  bool fired() const { return fired_; }
  // Between its Begin() and End() every call hangs, and then does what it should.
  Hang& hang() { return hang_; }

  int Open(const std::string& path, int flags, mode_t mode) override {
    return Fails("open") ? -fault_.error : posix_.Open(path, flags, mode);
  }
  int Close(int fd) override {
    const bool fails = Fails("close");
    const int closed = posix_.Close(fd);
    return fails ? -fault_.error : closed;
  }
  ssize_t Preadv(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    if (Fails("read")) return -fault_.error;
    if (!Mangles("read")) return posix_.Preadv(fd, pieces, offset);
    if (fault_.shape == FaultShape::kNothing) return 0;
    if (fault_.shape != FaultShape::kFlipByte) {
      const ssize_t half = posix_.Preadv(fd, Half(pieces), offset);
      return fault_.shape == FaultShape::kTorn ? -fault_.error : half;
    }
    const ssize_t size = posix_.Preadv(fd, pieces, offset);
    if (size > 0) Flip(pieces, static_cast<std::size_t>(size) / 2);
    return size;
  }
  ssize_t Pwritev(int fd, std::span<const iovec> pieces, std::uint64_t offset) override {
    if (Fails("write")) return -fault_.error;
    if (!Mangles("write")) return posix_.Pwritev(fd, pieces, offset);
    if (fault_.shape == FaultShape::kNothing) return 0;
    if (fault_.shape != FaultShape::kFlipByte) {
      const ssize_t half = posix_.Pwritev(fd, Half(pieces), offset);
      return fault_.shape == FaultShape::kTorn ? -fault_.error : half;
    }
    Flip(pieces, Size(pieces) / 2);  // In the caller's memory, but put right again below.
    const ssize_t size = posix_.Pwritev(fd, pieces, offset);
    Flip(pieces, Size(pieces) / 2);
    return size;
  }
  int Fstat(int fd, FileInfo& info) override {
    return Fails("fstat") ? -fault_.error : posix_.Fstat(fd, info);
  }
  int Stat(const std::string& path, FileInfo& info) override {
    return Fails("stat") ? -fault_.error : posix_.Stat(path, info);
  }
  // No test lives through a power cut, and thousands of real syncs take a minute.
  int Fsync(int) override { return Fails("fsync") ? -fault_.error : 0; }
  int Flock(int fd, int operation) override {
    return Fails("flock") ? -fault_.error : posix_.Flock(fd, operation);
  }
  int Rename(const std::string& from, const std::string& to) override {
    return Fails("rename") ? -fault_.error : posix_.Rename(from, to);
  }
  int Unlink(const std::string& path) override {
    return Fails("unlink") ? -fault_.error : posix_.Unlink(path);
  }
  int Mkdir(const std::string& path, mode_t mode) override {
    return Fails("mkdir") ? -fault_.error : posix_.Mkdir(path, mode);
  }
  int Rmdir(const std::string& path) override {
    return Fails("rmdir") ? -fault_.error : posix_.Rmdir(path);
  }
  int ListDir(const std::string& path, std::vector<std::string>& names) override {
    return Fails("list") ? -fault_.error : posix_.ListDir(path, names);
  }

 private:
  bool Fails(const char* call) {
    hang_.Pass();
    return fault_.shape == FaultShape::kError && Hits(call);
  }
  bool Mangles(const char* call) { return fault_.shape != FaultShape::kError && Hits(call); }
  bool Hits(const char* call) {
    if (!fault_.only.empty() && fault_.only != call) return false;
    const std::uint64_t n = calls_++;
    const bool hit = fault_.for_ever ? n >= fault_.nth : n == fault_.nth;
    if (hit) fired_ = true;
    return hit;
  }

  static std::size_t Size(std::span<const iovec> pieces) {
    std::size_t size = 0;
    for (const iovec& piece : pieces) size += piece.iov_len;
    return size;
  }
  // The first half; of large ones in sectors, as O_DIRECT wants it.
  static std::vector<iovec> Half(std::span<const iovec> pieces) {
    constexpr std::size_t kSector = 512;
    std::size_t left = Size(pieces) / 2;
    if (left > kSector) left = left / kSector * kSector;
    std::vector<iovec> half(pieces.begin(), pieces.end());
    for (iovec& piece : half) {
      piece.iov_len = std::min(piece.iov_len, left);
      left -= piece.iov_len;
    }
    return half;
  }
  static void Flip(std::span<const iovec> pieces, std::size_t at) {
    for (const iovec& piece : pieces) {
      if (at < piece.iov_len) {
        static_cast<unsigned char*>(piece.iov_base)[at] ^= 0x10;
        return;
      }
      at -= piece.iov_len;
    }
  }

  FileOps& posix_ = PosixFileOps();
  Hang hang_;
  Fault fault_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<bool> fired_{false};
};

}  // namespace terrace::testing
