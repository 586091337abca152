// One store -> its computation vector.
#pragma once

#include <numeric>

#include "access.h"
#include "arithmetic.h"
#include "misses.h"

namespace cdmpp {

inline double slog(double x) { return std::copysign(std::log2(1.0 + std::abs(x)), x); }

struct LeafFacts {
  const Leaf& leaf;
  std::unique_ptr<Points> points;
  Nest nest;
  Arithmetic arithmetic = {};
  Access store = {};
  Vector<Access> loads = {};
  bool update = false, constant = false, copy = false, indirect = false;
  double active = 1.0, fold = 1.0;
  double iterations = 1.0, blocks = 1.0, threads = 1.0, vthreads = 1.0, serial_trips = 1.0, parallel_extent = 1.0;
  double lanes = 1.0, unrolled_trips = 1.0, region_trips = 1.0, reduction_trips = 1.0, inner_reduction_trips = 1.0;
  double accumulator_tile = 1.0, refill_trips = 1.0, chain_trips = 0.0, redundant_trips = 1.0, auto_lanes = 1.0;
  bool scalar = false;
  Misses misses = {};

  // Iterations that really compute.
  double work() const { return iterations * active * fold; }
  // A vector length that is no power of two: LLVM takes such vectors apart.
  bool odd_lanes() const { return (static_cast<int64_t>(lanes) & (static_cast<int64_t>(lanes) - 1)) != 0; }
  double flops_per_iteration() const {
    const auto& c = arithmetic.counts;
    return 2 * c[OP_fma] + c[OP_fadd] + c[OP_fmul] + c[OP_fdiv] + c[OP_fcompare] + c[OP_special];
  }
  // The store first, then the loads.
  template <typename Visit>
  void each_access(const Visit& visit) const {
    visit(store);
    for (const Access& load : loads) visit(load);
  }
};

inline Nest nest_of(const Leaf& leaf, const Points& points, bool gpu) {
  const Loops& loops = leaf.loops;
  int64_t n = static_cast<int64_t>(loops.size());
  Nest nest{loops, points, n, -1, -1, -1, gpu};
  double trips = 1;
  for (int64_t i = n - 1; i >= 0; --i) {
    const Loop& loop = *loops[i];
    if (loop.tag != NO_TAG) break;
    trips *= static_cast<double>(loop.extent);
    if (!(loop.unrolled || loop.extent == 1 || (trips <= SHORT_REGION_TRIPS && loop.kind != PARALLEL))) break;
    if (loop.branches && !loop.unrolled) break;
    nest.region = i;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Loop& loop = *loops[i];
    if (loop.branches && loop.tag == NO_TAG && !loop.unrolled) nest.refill = i;
    if (loop.kind == VECTORIZED && loop.extent > 1) nest.vector = i;
    bool stays = loop_is_serial(loop) && loop.extent > 1 && !loop.unrolled;
    if (stays && (i < nest.region || nest.inner < 0 || nest.inner >= nest.region)) nest.inner = i;
  }
  return nest;
}

inline Vector<char> active_points(const Leaf& leaf, const Points& points) {
  Vector<char> active(points.count, 1);
  for (const auto& [condition, positive] : leaf.guards) {
    if (!has_load(condition)) restrict_to(active, condition, positive, points.env());
  }
  return active;
}

inline void read_loads(LeafFacts& f, const Vector<char>& active) {
  const Points& points = *f.points;
  for (const Load& found : f.arithmetic.loads) {
    Access load = read_access(found.buffer, found.indices, f.nest, f.leaf);
    f.indirect = f.indirect || load.indirect;
    if (load.buffer == f.store.buffer && same_place(load, f.store, points, f.nest.loops)) {
      f.update = true;
      continue;
    }
    bool seen = std::any_of(f.loads.begin(), f.loads.end(), [&](const Access& other) {
      return load.buffer == other.buffer && same_place(load, other, points, f.nest.loops);
    });
    if (seen) continue;
    finish(load, f.nest, active);
    if (!found.guards.empty()) {
      Vector<char> holds(points.count, 1);
      for (const auto& [condition, positive] : found.guards) restrict_to(holds, condition, positive, points.env());
      load.guarded_fraction = points.share(holds);
    }
    f.loads.push_back(std::move(load));
  }
  std::stable_sort(f.loads.begin(), f.loads.end(), [](const Access& x, const Access& y) {
    return std::make_pair(-x.moved_region, -x.unique_bytes) < std::make_pair(-y.moved_region, -y.unique_bytes);
  });
}

inline bool is_copy(Node value, const Arithmetic& arithmetic, const Sums* sums) {
  if (sums != nullptr) value = decided_arm(value, *sums);
  while (kind_of(value) == Kind::Cast) value = child(value, Field::value);
  if (kind_of(value) == Kind::TensorLoad) return true;
  const auto& c = arithmetic.counts;
  return kind_of(value) == Kind::Call && c[OP_select] == 1 && arithmetic.loads.size() == 1 &&
         c[OP_fma] + c[OP_fadd] + c[OP_fmul] + c[OP_fdiv] + c[OP_fcompare] + c[OP_special] == 0;
}

inline bool among(const Vector<Node>& all, Node one) { return std::find(all.begin(), all.end(), one) != all.end(); }

// True where every trip of a loop that no access mentions computes the same again: the compiler does it once.
inline bool repeats(const Loop& loop, const LeafFacts& f) {
  if (f.loads.empty()) return false;
  for (const Access& load : f.loads) {
    if (among(loop.written, load.buffer)) return false;
  }
  return f.update ? among(loop.started, f.store.buffer) : true;
}

// Lanes that the compiler's own vectorisers find: in the innermost loop that stays a loop, or among the copies of an
// unrolled body, one loop walks memory in order.
inline double auto_lanes_of(const LeafFacts& f) {
  const Nest& nest = f.nest;
  if (nest.gpu) return 1.0;
  auto lanes = [&](int64_t i) {
    if (i < 0 || nest.loops[i]->extent <= 1 || !f.store.depends[i] || f.store.strides[i] != 1) return 1.0;
    for (const Access& load : f.loads) {
      if (load.strides[i] != 1 && load.depends[i]) return 1.0;
    }
    return static_cast<double>(std::min<int64_t>(nest.loops[i]->extent, AUTO_LANES));
  };
  for (int64_t i = static_cast<int64_t>(nest.loops.size()) - 1; i >= nest.region; --i) {
    if (double found = lanes(i); found > 1.0) return found;
  }
  return lanes(nest.inner);
}

inline void count_trips(LeafFacts& f) {
  const Nest& nest = f.nest;
  const auto& depends = f.store.depends;
  Vector<Node> guarding;
  for (const auto& guard : f.leaf.guards) {
    auto add = [&](Node variable) { guarding.push_back(variable); };
    f.leaf.sums == nullptr ? free_variables(guard.first, add) : f.leaf.sums->variables(guard.first, add);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(nest.loops.size()); ++i) {
    const Loop& loop = *nest.loops[i];
    double e = static_cast<double>(loop.extent);
    bool touched = false;
    f.each_access([&](const Access& a) { touched = touched || a.depends[i]; });
    if (loop.tag == VTHREAD_TAG && !touched) continue;  // TVM does not replicate what a virtual thread does not touch.
    if (loop.tag == NO_TAG && !touched && !among(guarding, loop.handle) && !f.constant && repeats(loop, f)) {
      f.redundant_trips *= e;
      continue;
    }
    f.iterations *= e;
    if (loop.tag == BLOCK_TAG) {
      f.blocks *= e;
    } else if (loop.tag == THREAD_TAG) {
      f.threads *= e;
    } else {
      f.serial_trips *= e;
      if (loop.tag == VTHREAD_TAG) f.vthreads *= e;
      if (loop.kind == PARALLEL) f.parallel_extent *= e;
      if (loop.unrolled && loop.kind != VECTORIZED) f.unrolled_trips *= e;
      if (i >= nest.region) {
        f.region_trips *= e;
        if (depends[i]) f.accumulator_tile *= e;
      }
      if (!depends[i]) f.reduction_trips *= e;
      if (i <= nest.refill && loop.tag == NO_TAG) f.refill_trips *= e;
    }
  }
  f.lanes = static_cast<double>(nest.vector >= 0 ? nest.loops[nest.vector]->extent : f.leaf.lanes);
  f.iterations *= static_cast<double>(f.leaf.lanes);
  for (int64_t i = static_cast<int64_t>(nest.loops.size()) - 1; i >= 0; --i) {
    const Loop& loop = *nest.loops[i];
    if (loop.kind == VECTORIZED || loop.extent == 1) continue;
    if (!loop_is_serial(loop) || depends[i]) break;
    f.inner_reduction_trips *= static_cast<double>(loop.extent);
  }
  if (f.lanes <= 1) f.auto_lanes = auto_lanes_of(f);
  f.scalar = f.lanes <= 1 && f.auto_lanes <= 1;
  bool spatial = nest.inner >= 0 && depends[nest.inner];
  f.chain_trips = f.update && !spatial ? f.serial_trips / std::max(1.0, f.accumulator_tile) : 0.0;
}

inline LeafFacts leaf_facts(const Leaf& leaf, Arithmetic arithmetic, bool gpu) {
  auto points = std::make_unique<Points>(leaf);
  Nest nest = nest_of(leaf, *points, gpu);
  LeafFacts f{leaf, std::move(points), nest};
  Vector<char> active = active_points(leaf, *f.points);
  f.arithmetic = std::move(arithmetic);
  f.store = read_access(child(leaf.store, Field::buffer), list(leaf.store, Field::indices), f.nest, leaf);
  finish(f.store, f.nest, active);
  f.indirect = f.store.indirect;
  read_loads(f, active);
  Node value = child(leaf.store, Field::value);
  f.constant = is_constant(value);
  f.copy = is_copy(value, f.arithmetic, leaf.simplified ? nullptr : leaf.sums.get());
  f.active = f.points->share(active);
  f.fold = nonzero_fraction(f.arithmetic.factors, leaf, *f.points);
  count_trips(f);
  Vector<const Access*> accesses;
  f.each_access([&](const Access& a) { accesses.push_back(&a); });
  f.misses = misses_of(f.nest, accesses);
  return f;
}

}  // namespace cdmpp
