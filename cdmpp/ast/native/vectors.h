// The numbers of one store, in the order of LEAF_NAMES.
#pragma once

#include <cstring>

#include "leaf.h"

namespace cdmpp {

using Numbers = Vector<double>;

// A struct of features as the numbers that are stored; see features.stored.
template <typename Features>
void append(Numbers& out, const Features& features) {
  constexpr size_t n = std::size(Features::plain);
  static_assert(sizeof(Features) == n * sizeof(double));
  double values[n];
  std::memcpy(values, &features, sizeof values);
  for (size_t i = 0; i < n; ++i) out.push_back(Features::plain[i] ? values[i] : slog(values[i]));
}

inline void access_numbers(Numbers& out, const Access& a, const Nest& nest, bool read_too, double iterations) {
  int64_t vector = nest.vector, inner = nest.inner;
  double vector_stride = vector >= 0 ? static_cast<double>(a.strides[vector]) * a.element_bytes : 0.0;
  double inner_stride = inner >= 0 ? static_cast<double>(a.strides[inner]) * a.element_bytes : 0.0;
  double requested = iterations * a.element_bytes;
  append(out, AccessFeatures{
             .present_flag = 1.0,
             .global_flag = double(a.scope == GLOBAL),
             .shared_flag = double(a.scope == SHARED),
             .local_flag = double(a.scope == LOCAL),
             .written_before_flag = double(read_too),
             .element_bytes = a.element_bytes,
             .buffer_bytes = a.buffer_bytes,
             .unique_bytes = a.unique_bytes,
             .requested_bytes = requested,
             .reuse = requested / a.unique_bytes,
             .trips_ideal = a.trips_ideal,
             .trips_region = a.trips_region,
             .sectors_per_warp = a.sectors,
             .sector_use_share = a.use_share,
             .lanes_distinct = a.lanes_distinct,
             .bank_wavefronts = a.wavefronts,
             .access_bytes = a.access_bytes,
             .moved_bytes_ideal = a.moved_ideal,
             .moved_bytes_region = a.moved_region,
             .vector_stride_bytes = vector_stride,
             .vector_contiguous_flag = double(vector >= 0 && a.strides[vector] == 1),
             .inner_stride_bytes = inner_stride,
             .inner_dependent_flag = double(inner >= 0 && a.depends[inner]),
             .lines = a.lines,
             .line_use_share = std::min(1.0, a.unique_bytes / (a.lines * LINE_BYTES)),
             .block_unique_bytes = a.block_unique_bytes,
             .guarded_fraction = a.guarded_fraction,
         });
}

inline void loop_numbers(Numbers& out, const LeafFacts& f) {
  Vector<size_t> shown;
  const Loops& loops = f.leaf.loops;
  for (size_t i = loops.size(); i-- > 0;) {
    if (loops[i]->tag == NO_TAG && loops[i]->extent > 1) shown.push_back(i);
  }
  auto stride_bytes = [](const Access& a, size_t i) { return static_cast<double>(a.strides[i]) * a.element_bytes; };
  for (size_t k = 0; k < N_LOOPS; ++k) {
    if (k >= shown.size()) {
      out.insert(out.end(), std::size(LoopFeatures::plain), 0.0);
      continue;
    }
    size_t i = shown[k];
    const Loop& loop = *loops[i];
    append(out, LoopFeatures{
               .extent = static_cast<double>(loop.extent),
               .reduction_flag = double(!f.store.depends[i]),
               .unrolled_flag = double(loop.unrolled),
               .vector_flag = double(loop.kind == VECTORIZED),
               .store_stride_bytes = stride_bytes(f.store, i),
               .load0_stride_bytes = !f.loads.empty() ? stride_bytes(f.loads[0], i) : 0.0,
               .load1_stride_bytes = f.loads.size() > 1 ? stride_bytes(f.loads[1], i) : 0.0,
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
  append(out, ContextFeatures{
             .iterations = f.iterations,
             .blocks = f.blocks,
             .threads = f.threads,
             .vthreads = f.vthreads,
             .serial_trips = f.serial_trips,
             .parallel_extent = f.parallel_extent,
             .vector_lanes = f.lanes,
             .unrolled_trips = f.unrolled_trips,
             .region_trips = f.region_trips,
             .reduction_trips = f.reduction_trips,
             .inner_reduction_trips = f.inner_reduction_trips,
             .accumulator_tile = f.accumulator_tile,
             .depth = static_cast<double>(leaf.loops.size()),
             .loops = static_cast<double>(long_loops),
             .unroll_limit = static_cast<double>(leaf.unroll_limit),
             .explicit_unroll_flag = double(leaf.explicit_unroll),
             .pipeline_stages = static_cast<double>(stages),
             .guards = static_cast<double>(leaf.guards.size()),
             .active_fraction = f.active,
             .constant_store_flag = double(f.constant),
             .update_flag = double(f.update),
             .copy_flag = double(f.copy),
             .indirect_flag = double(f.indirect),
             .fold_fraction = f.fold,
             .refill_trips = f.refill_trips,
             .flops_per_iteration = f.flops_per_iteration(),
             .int_ops_per_iteration = int_ops,
             .loads_per_iteration = static_cast<double>(f.loads.size()),
             .vector_iterations = f.iterations / std::max(f.lanes, f.auto_lanes),
             .scalar_flag = double(f.scalar),
             .chain_trips = f.chain_trips,
             .sync_flag = double(f.store.scope == SHARED),
             .redundant_trips = f.redundant_trips,
             .auto_lanes = f.auto_lanes,
             .odd_lanes_flag = double(f.odd_lanes()),
         });
  access_numbers(out, f.store, f.nest, f.update, f.iterations);
  for (size_t i = 0; i < N_LOADS; ++i) {
    if (i < f.loads.size()) {
      access_numbers(out, f.loads[i], f.nest, false, f.iterations);
    } else {
      out.insert(out.end(), std::size(AccessFeatures::plain), 0.0);
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
