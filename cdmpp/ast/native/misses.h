// Misses of caches, of their sets, of the page buffer.
#pragma once

#include "access.h"

namespace cdmpp {

struct Misses {
  Vector<double> bytes = Vector<double>(std::size(CACHE_KIB), 0.0);
  Vector<double> crowded_bytes = Vector<double>(std::size(CROWDED_KIB), 0.0);
  Vector<double> pages = Vector<double>(std::size(PAGE_ENTRIES), 0.0);
  double footprint_bytes = 0.0;
};

inline uint64_t rotated(uint64_t sets, int64_t by) { return by == 0 ? sets : (sets << by) | (sets >> (SETS - by)); }

// How many of the 64 sets the lines of an access lie in, its buffer starting at the first.
inline int64_t sets_used(const Reach& lines) {
  int64_t width = static_cast<int64_t>(std::min<double>(SETS, ceil_div(lines.run_bytes, LINE_BYTES)));
  uint64_t used = width == SETS ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  for (const auto& [stride, extent] : lines.jumps) {
    uint64_t piece = used;
    // Steps of whole lines repeat their sets after 64, others after 4096 bytes at the latest.
    double period = std::fmod(stride, LINE_BYTES) == 0.0 ? SETS : SETS * LINE_BYTES;
    int64_t steps = std::min<int64_t>(extent, static_cast<int64_t>(period));
    for (int64_t step = 1; step < steps; ++step) {
      if (used == ~uint64_t{0}) return SETS;
      used |= rotated(piece, static_cast<int64_t>(std::floor(static_cast<double>(step) * stride / LINE_BYTES)) % SETS);
    }
  }
  int64_t count = 0;
  for (; used != 0; used &= used - 1) ++count;
  return count;
}

inline bool among(const Vector<std::pair<double, int64_t>>& terms, int64_t loop) {
  return std::any_of(terms.begin(), terms.end(), [&](const auto& term) { return term.second == loop; });
}

// A number for each level of loops and access, and the sum of each level.
struct Levels {
  size_t width;
  Vector<double> each;  // level by level
  Vector<double> sums;

  Levels(size_t levels, size_t accesses) : width(accesses), sums(levels, 0.0) { each.reserve(levels * accesses); }
  void add(int64_t level, double amount) {
    each.push_back(amount);
    sums[level] += amount;
  }
  double of(int64_t level, size_t access) const { return each[static_cast<size_t>(level) * width + access]; }
};

inline Misses misses_of(const Nest& nest, const Vector<const Access*>& accesses) {
  const Loops& loops = nest.loops;
  int64_t n = static_cast<int64_t>(loops.size());
  int64_t levels = nest.gpu ? 1 : n + 1;
  size_t width = accesses.size();
  Levels sizes(levels, width), crowded(levels, width), pages(levels, width);
  for (int64_t first = 0; first < levels; ++first) {
    for (size_t k = 0; k < width; ++k) {
      const Access* access = accesses[k];
      if (first > 0 && !among(access->terms, first - 1)) {  // the loop left out moves it nowhere
        for (Levels* all : {&sizes, &crowded, &pages}) all->add(first, all->of(first - 1, k));
        continue;
      }
      Reach lines = reach(*access, loops, first, LINE_BYTES);
      sizes.add(first, lines.units * LINE_BYTES);
      if (nest.gpu) continue;
      crowded.add(first, lines.units * LINE_BYTES * SETS / static_cast<double>(sets_used(lines)));
      pages.add(first, reach(*access, loops, first, PAGE_BYTES).units);
    }
  }
  Misses misses;
  misses.footprint_bytes = sizes.sums[0];
  if (nest.gpu) return misses;
  // What is moved in all where the loops from the first level on whose needs fit find their data kept.
  auto beyond = [&](const Levels& needed, const Levels& moved, double capacity) {
    int64_t fit = 0;
    while (fit < n && !(needed.sums[fit] <= capacity)) ++fit;
    double total = 0.0;
    for (size_t k = 0; k < accesses.size(); ++k) {
      int64_t outer = fit;
      while (outer > 0 && !accesses[k]->depends[outer - 1]) --outer;
      double repeats = 1.0;
      for (int64_t i = 0; i < outer; ++i) repeats *= static_cast<double>(loops[i]->extent);
      total += moved.of(fit, k) * repeats;
    }
    return total;
  };
  for (size_t c = 0; c < misses.bytes.size(); ++c) misses.bytes[c] = beyond(sizes, sizes, CACHE_KIB[c] * 1024.0);
  for (size_t c = 0; c < misses.crowded_bytes.size(); ++c) {
    misses.crowded_bytes[c] = beyond(crowded, sizes, CROWDED_KIB[c] * 1024.0);
  }
  for (size_t c = 0; c < misses.pages.size(); ++c) misses.pages[c] = beyond(pages, pages, PAGE_ENTRIES[c]);
  return misses;
}

}  // namespace cdmpp
