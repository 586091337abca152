// Memory for what is made and dropped while a thread reads programs. The process's own allocator takes twice as long as
// all of the reading in a search, which keeps thousands of programs alive.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cdmpp {

// While one lives, `Pooled` of its thread takes from it; what it gave has to be gone before it is.
class Pool {
 public:
  Pool() : before_(current) { current = this; }
  Pool(const Pool&) = delete;
  ~Pool() { current = before_; }

  void* take(size_t bytes) {
    size_t size = (bytes + STEP - 1) / STEP;
    if (size >= SIZES) return ::operator new(bytes);
    if (Free* found = free_[size]) {
      free_[size] = found->next;
      return found;
    }
    size *= STEP;
    if (size > left_) {
      chunks_.push_back(std::make_unique_for_overwrite<Chunk>());
      next_ = chunks_.back()->bytes;
      left_ = sizeof(Chunk);
    }
    left_ -= size;
    return std::exchange(next_, next_ + size);
  }

  void give(void* place, size_t bytes) {
    size_t size = (bytes + STEP - 1) / STEP;
    if (size >= SIZES) return ::operator delete(place);
    free_[size] = new (place) Free{free_[size]};
  }

  inline static thread_local constinit Pool* current = nullptr;

 private:
  struct Free {
    Free* next;
  };
  static constexpr size_t STEP = alignof(std::max_align_t), SIZES = 513;  // what is larger, few things are
  struct Chunk {
    alignas(STEP) std::byte bytes[1 << 17];
  };

  Pool* before_;
  std::array<Free*, SIZES> free_{};  // by size, in steps
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

// Allocator of containers.
template <typename T>
struct Pooled {
  using value_type = T;
  Pooled() = default;
  template <typename Other>
  Pooled(const Pooled<Other>&) {}
  T* allocate(size_t n) {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return static_cast<T*>(Pool::current->take(n * sizeof(T)));
  }
  void deallocate(T* place, size_t n) { Pool::current->give(place, n * sizeof(T)); }
  bool operator==(const Pooled&) const { return true; }
};

template <typename T>
using Vector = std::vector<T, Pooled<T>>;
template <typename T>
using Deque = std::deque<T, Pooled<T>>;
template <typename Key, typename T>
using Map = std::unordered_map<Key, T, std::hash<Key>, std::equal_to<Key>, Pooled<std::pair<const Key, T>>>;

template <typename T, typename... Given>
std::shared_ptr<T> make_pooled(Given&&... given) {
  return std::allocate_shared<std::remove_const_t<T>>(Pooled<std::remove_const_t<T>>(), std::forward<Given>(given)...);
}

}  // namespace cdmpp
