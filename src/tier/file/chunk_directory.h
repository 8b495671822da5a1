// A directory with one file per chunk: how a chunk gets in and out.
//
// One implementation for each layout of FileTierConfig: RecordDirectory and VllmDirectory; see
// docs/formats.md for both. Everything here blocks on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "terrace/chunk_key.h"
#include "terrace/result.h"

namespace terrace {

struct ChunkFileRead {
  enum class Kind : std::uint8_t {
    kOk,         // All that the layout lets us verify was.
    kMissing,    // There is no such file.
    kBad,        // The file is there and does not hold the chunk; it never will.
    kNewer,      // A newer build wrote it and can read it.
    kForeign,    // It is no file of this cache.
    kTransient,  // Could not be read now. Says nothing about the file.
  };
  Kind kind = Kind::kOk;
  std::string why;  // Empty if kOk.
};

// Thread-safe, except Close().
class ChunkDirectory {
 public:
  virtual ~ChunkDirectory() = default;

  enum class Stored : std::uint8_t { kWritten, kWasThere };
  // Writes the file of `chunk` and publishes it whole. After an error nothing is left behind.
  // Pre: `chunk` is a host slot's: aligned to 4096 bytes and padded to a multiple of that.
  virtual Result<Stored> Write(const ChunkKey& key, std::span<std::byte> chunk) = 0;

  // Fills `chunk` with what Write() was given. Its bytes are undefined unless kOk. The same Pre.
  virtual ChunkFileRead Read(const ChunkKey& key, std::span<std::byte> chunk) const = 0;

  enum class Disposal : std::uint8_t { kQuarantined, kRemoved, kStuck };
  // Takes a bad file out of the way.
  virtual Disposal Dispose(const ChunkKey& key) = 0;

  // Removes what is temporary. Pre: no other call is under way or comes later.
  virtual void Close() = 0;

  virtual const std::string& path() const = 0;
  virtual bool direct_io() const = 0;
};

}  // namespace terrace
