// Tasks as the engine reads them, by slot.

#pragma once

#include <cstdint>

#include "pages.h"

struct Task {
  double duration_s, gap_s, priority, bytes;  // not a number: the duration is asked for
  int64_t count;                              // equal flows
  int32_t resources, way;                     // numbers of a set and of a way; of a way negative: it sends nothing
};

// A column that somebody else keeps. It has one element for all where it is the same for all.
template <class One>
struct Column {
  const One* first = nullptr;
  int64_t stride = 0;
  One operator[](int64_t at) const { return first[at * stride]; }
};

struct Columns {
  Column<double> duration_s, gap_s, priority;
  Column<int32_t> resources, way;
  Column<double> bytes;
  Column<int64_t> count;
};

// The first tasks stay in their columns, since copies of many would take longer than to run them; others are added.
class Tasks {
 public:
  int32_t size() const { return first_ + static_cast<int32_t>(added_.size()); }
  Task operator[](int32_t slot) const {
    if (slot >= first_) return added_[slot - first_];
    return {columns_.duration_s[slot], columns_.gap_s[slot], columns_.priority[slot], columns_.bytes[slot],
            columns_.count[slot], columns_.resources[slot], columns_.way[slot]};
  }
  void begin(int32_t count, const Columns& columns) { first_ = count, columns_ = columns; }
  void add(const Task& task) { added_.push_back(task); }
  void set(int32_t slot, const Task& task) { added_[slot - first_] = task; }

 private:
  int32_t first_ = 0;
  Columns columns_;
  Array<Task> added_;
};
