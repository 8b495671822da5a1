// A large array of zeroes whose memory is on huge pages where the system has them: a table of
// hundreds of megabytes is then read at random without missing the TLB each time.
//
// Untouched parts take no memory, so a large table costs nothing to make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace terrace {

// Zeroed, aligned to a cache line at least. Aborts if there is none.
// Pre: bytes > 0.
void* MapZeroes(std::size_t bytes);
void UnmapZeroes(void* memory, std::size_t bytes);
// All zero again, the memory given back.
void ZeroAgain(void* memory, std::size_t bytes);

// Thread-compatible. T is one for which all zeroes is a value.
template <typename T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit HugeArray(std::size_t size)
      : data_(size == 0 ? nullptr : static_cast<T*>(MapZeroes(size * sizeof(T)))), size_(size) {}
  ~HugeArray() {
    if (data_ != nullptr) UnmapZeroes(data_, memory_bytes());
  }
  HugeArray(HugeArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  HugeArray& operator=(HugeArray&&) = delete;

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

  // Cost: O(touched pages).
  void Clear() {
    if (data_ != nullptr) ZeroAgain(data_, memory_bytes());
  }

 private:
  T* data_;
  std::size_t size_;
};

}  // namespace terrace
