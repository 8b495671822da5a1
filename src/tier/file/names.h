// What the file tier calls its files. Pure functions; docs/formats.md has the layout.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "terrace/cache_identity.h"
#include "terrace/chunk_key.h"

namespace terrace {

// The directory of an identity below root_dir: a readable name and 16 digits of the digest.
std::string IdentityDirName(const CacheIdentity& identity);

// "9f3a..c1_g0.chunk": the whole hash, so that two chunks never share a file.
std::string ChunkFileName(const ChunkKey& key);
// The folder below chunks/ that holds the file.
std::string ChunkFolderName(const ChunkKey& key);
// The key of a file, if ChunkFileName() of that key is exactly `file` and it lies in the right
// folder.
std::optional<ChunkKey> ParseChunkFileName(std::string_view folder, std::string_view file);

// The folder of one running process below tmp/, from a random number.
std::string InstanceFolderName(std::uint64_t id);
bool IsInstanceFolderName(std::string_view name);

// A file in such a folder that is not yet whole.
std::string TempFileName(std::uint64_t number);
bool IsTempFileName(std::string_view name);

// Where vLLM keeps the chunk below its directory: "9f3/a1_g0/9f3a1..c1.bin".
std::string VllmChunkPath(const ChunkKey& key);
// Such a file that is not yet whole, beside it.
std::string VllmTempPath(const std::string& chunk_path, std::uint64_t id);

}  // namespace terrace
