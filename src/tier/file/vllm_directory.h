// The layout `vllm`: a directory as vLLM's own `fs` tier keeps it, which its processes and ours may
// share. A file holds the bytes of one host slot, padding and all, and nothing else.
//
// So nothing but its length tells a chunk from other bytes: whoever may write to the directory is
// trusted, and it must be of this model, layout and chunk size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "terrace/result.h"
#include "tier/file/chunk_directory.h"
#include "tier/file/directory_files.h"
#include "tier/file/file_ops.h"

namespace terrace {

// Thread-safe, after Open().
class VllmDirectory final : public ChunkDirectory {
 public:
  struct Options {
    std::string root_dir;
    bool direct_io = true;
    std::size_t row_size_bytes = 0;  // Of a slot with its padding; a multiple of 4096.
  };
  // Makes root_dir if it is missing. Nothing in it is looked at. `ops` outlives the directory.
  static Result<std::unique_ptr<VllmDirectory>> Open(const Options& options, FileOps& ops);

  // Whether there is a file of the chunk with the right length.
  // Cost: one stat(2).
  Result<bool> Has(const ChunkKey& key) const;

  // Leaves a file of the right length as it is, replaces one that is too short, and refuses
  // (kIncompatible) to replace one that is too long: that is of another cache.
  Result<Stored> Write(const ChunkKey& key, std::span<std::byte> chunk) override;
  // A file that is too short is kBad, one that is too long kForeign.
  ChunkFileRead Read(const ChunkKey& key, std::span<std::byte> chunk) const override;
  Disposal Dispose(const ChunkKey& key) override;
  void Close() override {}  // Each Write() removes what it leaves.

  const std::string& path() const override { return files_.path(); }
  bool direct_io() const override { return files_.direct_io(); }

 private:
  VllmDirectory(const Options& options, FileOps& ops);

  std::string PathOf(const ChunkKey& key) const;
  // nullopt: there is no such file.
  Result<std::optional<std::uint64_t>> SizeOf(const std::string& path) const;
  Result<void> WriteTemp(const std::string& temp, std::span<std::byte> row) const;
  std::span<std::byte> Row(std::span<std::byte> chunk) const { return {chunk.data(), row_size_}; }

  const std::size_t row_size_;
  DirectoryFiles files_;  // Constant after Open().
};

}  // namespace terrace
