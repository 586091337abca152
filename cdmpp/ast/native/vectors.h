// Twin of leaf_vector.py: the numbers of one store in the order of layout.LEAF_NAMES.
#pragma once

#include "leaf.h"

namespace cdmpp {

using Numbers = std::vector<double>;

inline void access_numbers(Numbers& out, const Access& a, const Nest& nest, bool read_too, double iterations) {
  int64_t vector = nest.vector, inner = nest.inner;
  double vector_stride = vector >= 0 ? static_cast<double>(a.strides[vector]) * a.element_bytes : 0.0;
  double inner_stride = inner >= 0 ? static_cast<double>(a.strides[inner]) * a.element_bytes : 0.0;
  double requested = iterations * a.element_bytes;
  out.insert(out.end(), {
                            1.0,
                            double(a.scope == GLOBAL),
                            double(a.scope == SHARED),
                            double(a.scope == LOCAL),
                            double(read_too),
                            slog(a.element_bytes),
                            slog(a.buffer_bytes),
                            slog(a.unique_bytes),
                            slog(requested),
                            slog(requested / a.unique_bytes),
                            slog(a.trips_ideal),
                            slog(a.trips_region),
                            slog(a.sectors),
                            a.use_share,
                            slog(a.lanes_distinct),
                            slog(a.wavefronts),
                            slog(a.access_bytes),
                            slog(a.moved_ideal),
                            slog(a.moved_region),
                            slog(vector_stride),
                            double(vector >= 0 && a.strides[vector] == 1),
                            slog(inner_stride),
                            double(inner >= 0 && a.depends[inner]),
                            slog(a.lines),
                            std::min(1.0, a.unique_bytes / (a.lines * LINE_BYTES)),
                            slog(a.block_unique_bytes),
                            a.guarded_fraction,
                        });
}

inline void loop_numbers(Numbers& out, const LeafFacts& f) {
  std::vector<size_t> shown;
  const Loops& loops = f.leaf.loops;
  for (size_t i = loops.size(); i-- > 0;) {
    if (loops[i]->tag == NO_TAG && loops[i]->extent > 1) shown.push_back(i);
  }
  auto stride_bytes = [](const Access& a, size_t i) { return slog(static_cast<double>(a.strides[i]) * a.element_bytes); };
  for (size_t k = 0; k < N_LOOPS; ++k) {
    if (k >= shown.size()) {
      out.insert(out.end(), 7, 0.0);
      continue;
    }
    size_t i = shown[k];
    const Loop& loop = *loops[i];
    out.insert(out.end(), {
                              slog(static_cast<double>(loop.extent)),
                              double(!f.store.depends[i]),
                              double(loop.unrolled),
                              double(loop.kind == VECTORIZED),
                              stride_bytes(f.store, i),
                              !f.loads.empty() ? stride_bytes(f.loads[0], i) : 0.0,
                              f.loads.size() > 1 ? stride_bytes(f.loads[1], i) : 0.0,
                          });
  }
}

inline Numbers leaf_vector(const LeafFacts& f) {
  Numbers out;
  out.reserve(512);
  const auto& counts = f.arithmetic.counts;
  const Leaf& leaf = f.leaf;
  double work = f.work();
  for (double amount : counts) out.push_back(slog(amount * work));
  double int_ops = counts[OP_int] + 4 * counts[OP_intdiv] + counts[OP_compare] + counts[OP_bool];
  int64_t stages = 1, long_loops = 0;
  for (const auto& loop : leaf.loops) {
    stages = std::max(stages, loop->stages);
    long_loops += loop->extent > 1;
  }
  out.insert(out.end(), {
                            slog(f.iterations),
                            slog(f.blocks),
                            slog(f.threads),
                            slog(f.vthreads),
                            slog(f.serial_trips),
                            slog(f.parallel_extent),
                            slog(f.lanes),
                            slog(f.unrolled_trips),
                            slog(f.region_trips),
                            slog(f.reduction_trips),
                            slog(f.inner_reduction_trips),
                            slog(f.accumulator_tile),
                            slog(static_cast<double>(leaf.loops.size())),
                            slog(static_cast<double>(long_loops)),
                            slog(static_cast<double>(leaf.unroll_limit)),
                            double(leaf.explicit_unroll),
                            slog(static_cast<double>(stages)),
                            slog(static_cast<double>(leaf.guards.size())),
                            f.active,
                            double(f.constant),
                            double(f.update),
                            double(f.copy),
                            double(f.indirect),
                            f.fold,
                            slog(f.refill_trips),
                            slog(f.flops_per_iteration()),
                            slog(int_ops),
                            slog(static_cast<double>(f.loads.size())),
                            slog(f.iterations / std::max(f.lanes, f.auto_lanes)),
                            double(f.scalar),
                            slog(f.chain_trips),
                            double(f.store.scope == SHARED),
                            slog(f.redundant_trips),
                            slog(f.auto_lanes),
                            double(f.odd_lanes()),
                        });
  size_t before = out.size();
  access_numbers(out, f.store, f.nest, f.update, f.iterations);
  size_t width = out.size() - before;
  for (size_t i = 0; i < N_LOADS; ++i) {
    if (i < f.loads.size()) {
      access_numbers(out, f.loads[i], f.nest, false, f.iterations);
    } else {
      out.insert(out.end(), width, 0.0);
    }
  }
  loop_numbers(out, f);
  for (double bytes : f.misses.bytes) out.push_back(slog(bytes));
  out.push_back(slog(f.misses.footprint_bytes));
  for (double bytes : f.misses.crowded_bytes) out.push_back(slog(bytes));
  for (double pages : f.misses.pages) out.push_back(slog(pages));
  return out;
}

}  // namespace cdmpp
