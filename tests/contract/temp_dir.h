// A directory that goes away with the test: on a real disk, or in memory where O_DIRECT and its
// rules do not matter and thousands of files do.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace terrace::testing {

enum class Medium { kDisk, kMemory };

class TempDir {
 public:
  explicit TempDir(Medium medium = Medium::kDisk) {
    const std::filesystem::path memory = "/dev/shm";
    const bool in_memory = medium == Medium::kMemory && std::filesystem::is_directory(memory);
    const auto parent = in_memory ? memory : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "terrace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Sorted names in a directory; none if it does not exist.
inline std::vector<std::string> NamesIn(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.flush();
  ASSERT_TRUE(out.good()) << path;
}

// Changes one byte of a file.
inline void FlipByte(const std::string& path, std::size_t at) {
  std::string text = ReadText(path);
  ASSERT_LT(at, text.size()) << path;
  text[at] = static_cast<char>(text[at] ^ 1);
  WriteText(path, text);
}

}  // namespace terrace::testing
