// Counts the allocations of this program. Include it in one source file of a test: it replaces
// operator new.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace terrace::testing_support {

inline std::atomic<std::uint64_t> allocation_count{0};

}  // namespace terrace::testing_support

// Not inlined, or g++ sees free() of what came from new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  terrace::testing_support::allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
