// Heap: entries in a total order, the least first.

#pragma once

#include <algorithm>
#include <vector>

template <class Entry>
class Heap {
 public:
  bool empty() const { return entries_.empty(); }
  const Entry& top() const { return entries_.front(); }
  void clear() { entries_.clear(); }
  void push(const Entry& entry) {
    entries_.push_back(entry);
    std::push_heap(entries_.begin(), entries_.end(), is_later);
  }
  Entry pop() {
    std::pop_heap(entries_.begin(), entries_.end(), is_later);
    const Entry least = entries_.back();
    entries_.pop_back();
    return least;
  }

 private:
  static bool is_later(const Entry& a, const Entry& b) { return b < a; }
  std::vector<Entry> entries_;
};
