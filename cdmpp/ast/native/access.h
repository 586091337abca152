// What one load or store does to memory.
#pragma once

#include "offsets.h"

namespace cdmpp {

// Loops of one store with what every access of that store shares; see access.Nest.
struct Nest {
  const Loops& loops;
  const Points& points;
  int64_t region;
  int64_t refill;
  int64_t vector;
  int64_t inner;
  bool gpu;
};

struct Access : Offsets {
  Access() = default;
  explicit Access(Offsets offsets) : Offsets(std::move(offsets)) {}

  Node buffer = nullptr;
  int scope = GLOBAL;
  double element_bytes = 0.0;
  double buffer_bytes = 0.0;
  bool indirect = false;
  double guarded_fraction = 1.0;
  double sectors = 0.0;
  double use_share = 0.0;
  double lanes_distinct = 0.0;
  double wavefronts = 0.0;
  double access_bytes = 0.0;
  double trips_ideal = 1.0;
  double trips_region = 1.0;
  double moved_ideal = 0.0;
  double moved_region = 0.0;
  double unique_bytes = 0.0;
  double block_unique_bytes = 0.0;
  double lines = 0.0;
  // Loops that the index mentions, by growing stride: reach() reads them many times.
  Vector<std::pair<double, int64_t>> terms;
};

inline double ceil_div(double x, double y) { return -std::floor(-x / y); }

inline Access read_access(Node buffer, const ffi::ArrayObj* indices, const Nest& nest, const Leaf& leaf) {
  const Loops& loops = nest.loops;
  Access access(offsets_of(buffer, indices, nest.points, leaf, nest.gpu));
  access.buffer = buffer;
  for (size_t k = 0; k < indices->size(); ++k) access.indirect = access.indirect || has_load(item(indices, k));
  access.scope = scope_of(buffer);
  access.element_bytes = element_bytes(buffer);
  access.buffer_bytes = static_cast<double>(access.elements) * access.element_bytes;
  for (int64_t i = 0; i < static_cast<int64_t>(loops.size()); ++i) {
    if (loops[i]->extent > 1 && access.depends[i]) {
      access.terms.emplace_back(static_cast<double>(access.strides[i]) * access.element_bytes, i);
    }
  }
  std::sort(access.terms.begin(), access.terms.end());
  return access;
}

// Memory that some loops touch, in units such as lines or pages; see access.Reach.
struct Reach {
  double units;
  double run_bytes;
  Vector<std::pair<double, int64_t>> jumps;
};

// A fused loop jumps (its end is not where its first step points): its steps never join into one run.
inline bool straight(const Access& access, const Loops& loops, int64_t i) {
  return access.spans[i] == access.strides[i] * (loops[i]->extent - 1);
}

// What the loops from index `first` inwards touch, each unit counted once.
inline Reach reach(const Access& access, const Loops& loops, int64_t first, double unit_bytes) {
  Reach found{1.0, access.element_bytes, {}};
  double count = 1.0, product = 1.0;
  for (const auto& [stride, i] : access.terms) {
    if (i < first) continue;
    double extent = static_cast<double>(loops[i]->extent);
    product *= extent;
    if (straight(access, loops, i) && stride <= std::max(found.run_bytes, unit_bytes)) {
      found.run_bytes += stride * (extent - 1);
    } else {
      count *= extent;
      found.jumps.emplace_back(stride, loops[i]->extent);
    }
  }
  double units = std::min(
      {count * ceil_div(found.run_bytes, unit_bytes), product, ceil_div(access.buffer_bytes, unit_bytes)});
  found.units = std::max(1.0, units);
  return found;
}

// Bytes that the loops touch, each once.
inline double footprint(const Access& access, const Loops& loops, int skip_tag, bool skip_parallel) {
  double run = access.element_bytes, count = 1.0, product = 1.0;
  for (const auto& [stride, i] : access.terms) {
    const Loop& loop = *loops[i];
    if ((skip_tag != NO_TAG && loop.tag == skip_tag) || (skip_parallel && loop.kind == PARALLEL)) continue;
    double extent = static_cast<double>(loop.extent);
    product *= extent;
    if (straight(access, loops, i) && stride <= run) {
      run += stride * (extent - 1);
    } else {
      count *= extent;
    }
  }
  return std::min({count * run, product * access.element_bytes, access.buffer_bytes});
}

// (instructions one vector iteration needs, bytes each moves).
inline std::pair<double, double> requests_of(const Access& access, const Nest& nest) {
  if (nest.vector < 0) return {1.0, access.element_bytes};
  int64_t lanes = nest.loops[nest.vector]->extent, stride = access.strides[nest.vector];
  if (!access.depends[nest.vector] || stride == 0) return {1.0, access.element_bytes};
  if (stride != 1) return {static_cast<double>(lanes), access.element_bytes};
  double total = static_cast<double>(lanes) * access.element_bytes;
  if (!nest.gpu) return {1.0, total};
  return {std::max(1.0, ceil_div(total, WIDEST_ACCESS_BYTES)), std::min(total, WIDEST_ACCESS_BYTES)};
}

inline int64_t count_distinct(Vector<int64_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return static_cast<int64_t>(numbers.size());
}

inline void warp(Access& access, const Points& points, const Vector<char>& active, double width) {
  Vector<int64_t> start;
  for (bool all : {false, true}) {
    if (!start.empty()) break;
    for (int64_t p = points.lane0; p < points.lane0 + points.n_lanes; ++p) {
      if (!all && !active[p]) continue;
      start.push_back(static_cast<int64_t>(std::floor(static_cast<double>(access.sampled[p]) * access.element_bytes)));
    }
  }
  int64_t last = static_cast<int64_t>(std::max(1.0, width)) - 1;
  Vector<int64_t> sectors, distinct = start;
  for (int64_t a : start) {
    for (int64_t s = floor_div(a, SECTOR_BYTES); s <= floor_div(a + last, SECTOR_BYTES); ++s) sectors.push_back(s);
  }
  access.lanes_distinct = static_cast<double>(count_distinct(distinct));
  access.sectors = static_cast<double>(count_distinct(sectors));
  access.use_share = std::min(1.0, access.lanes_distinct * std::max(1.0, width) / (access.sectors * SECTOR_BYTES));
  int64_t words = std::max<int64_t>(1, static_cast<int64_t>(width) / 4);
  size_t group = static_cast<size_t>(std::max<int64_t>(1, BANKS / words));
  int64_t total = 0;
  Vector<int64_t> used;
  for (size_t first = 0; first < start.size(); first += group) {
    used.clear();
    for (size_t k = first; k < std::min(first + group, start.size()); ++k) {
      for (int64_t word = 0; word < words; ++word) used.push_back(floor_div(start[k], 4) + word);
    }
    count_distinct(used);
    std::array<int, BANKS> banks{};
    for (int64_t word : used) ++banks[floor_mod(word, BANKS)];
    total += *std::max_element(banks.begin(), banks.end());
  }
  access.wavefronts = static_cast<double>(total);
}

// Fill the physical quantities. active[p]: the store's guards hold at point p.
inline void finish(Access& access, const Nest& nest, const Vector<char>& active) {
  const Loops& loops = nest.loops;
  auto [requests, width] = requests_of(access, nest);
  double ideal = requests, region = requests, warps_factor = 1.0, threads = 1.0;
  for (int64_t i = 0; i < static_cast<int64_t>(loops.size()); ++i) {
    const Loop& loop = *loops[i];
    double extent = static_cast<double>(loop.extent);
    if (i == nest.vector) continue;
    if (loop.tag == BLOCK_TAG || loop.tag == THREAD_TAG) {
      (loop.tag == BLOCK_TAG ? warps_factor : threads) *= extent;
      continue;
    }
    if (access.depends[i] || (i <= nest.refill && loop.tag != VTHREAD_TAG)) ideal *= extent;
    if (access.depends[i] || (i < nest.region && loop.tag != VTHREAD_TAG)) region *= extent;
  }
  access.trips_ideal = ideal;
  access.trips_region = region;
  access.access_bytes = width;
  if (nest.gpu) {
    warp(access, nest.points, active, width);
    double warps = warps_factor * ceil_div(threads, BANKS);
    double per_request = access.scope == GLOBAL   ? access.sectors * SECTOR_BYTES
                         : access.scope == SHARED ? access.wavefronts * BANKS * 4
                                                  : width * std::min<double>(threads, BANKS);
    access.moved_ideal = ideal * per_request * warps;
    access.moved_region = region * per_request * warps;
  } else {
    access.moved_ideal = ideal * width;
    access.moved_region = region * width;
  }
  access.unique_bytes = footprint(access, loops, NO_TAG, false);
  access.lines = reach(access, loops, 0, LINE_BYTES).units;
  access.block_unique_bytes = footprint(access, loops, BLOCK_TAG, !nest.gpu);
}

inline bool loop_is_serial(const Loop& loop) { return loop.tag == NO_TAG && loop.kind != VECTORIZED; }

}  // namespace cdmpp
