// Memory of large arrays: in huge pages where the system has them, since touching small ones takes longer than the work.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

template <class One>
struct Pages {
  using value_type = One;
  Pages() = default;
  template <class Other>
  Pages(const Pages<Other>&) {}
  One* allocate(size_t count) {
    constexpr size_t HUGE_BYTES = size_t{1} << 21;
    const size_t bytes = count * sizeof(One);
    void* found = nullptr;
    if (bytes < 2 * HUGE_BYTES) {
      found = std::malloc(bytes);
    } else {
      found = std::aligned_alloc(HUGE_BYTES, (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
#ifdef __linux__
      if (found) madvise(found, bytes, MADV_HUGEPAGE);
#endif
    }
    if (!found) throw std::bad_alloc();
    return static_cast<One*>(found);
  }
  void deallocate(One* memory, size_t) { std::free(memory); }
  template <class Other>
  bool operator==(const Pages<Other>&) const {
    return true;
  }
};

template <class One>
using Array = std::vector<One, Pages<One>>;
