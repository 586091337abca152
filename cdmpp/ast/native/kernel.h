// All stores of one kernel -> its summary vector.
#pragma once

#include <map>

#include "vectors.h"

namespace cdmpp {

using Facts = Vector<const LeafFacts*>;
using Pairs = Vector<std::pair<const LeafFacts*, const Access*>>;

template <typename Items, typename Amount>
double sum(const Items& items, const Amount& amount) {
  double total = 0.0;
  for (const auto& element : items) total += amount(element);
  return total;
}

template <typename Items, typename Amount>
double largest(const Items& items, const Amount& amount) {
  double best = 0.0;
  bool first = true;
  for (const auto& element : items) {
    double x = amount(element);
    if (first || x > best) best = x;
    first = false;
  }
  return best;
}

inline double block_threads(const Facts& facts) {
  int64_t extents[3] = {1, 1, 1};
  for (const LeafFacts* f : facts) {
    for (const auto& loop : f->leaf.loops) {
      if (loop->tag == THREAD_TAG) extents[loop->axis] = std::max(extents[loop->axis], loop->extent);
    }
  }
  return static_cast<double>(extents[0] * extents[1] * extents[2]);
}

// Share of threads and trips in which a guarded store runs.
inline double reach(const LeafFacts& f) { return f.active; }

inline Pairs of(const Pairs& pairs, int scope) {
  Pairs out;
  for (const auto& pair : pairs) {
    if (pair.second->scope == scope) out.push_back(pair);
  }
  return out;
}

// Mean share of each fetched sector that is used, weighted by bytes moved.
inline double use(const Pairs& pairs) {
  double moved = sum(pairs, [](auto& p) { return p.second->moved_ideal; });
  return moved != 0.0 ? sum(pairs, [](auto& p) { return p.second->moved_ideal * p.second->use_share; }) / moved : 0.0;
}

inline double unique(const Pairs& pairs) {
  Vector<std::pair<Node, double>> per_buffer;
  for (const auto& [f, a] : pairs) {
    auto it = std::find_if(per_buffer.begin(), per_buffer.end(), [b = a->buffer](auto& p) { return p.first == b; });
    if (it == per_buffer.end()) it = per_buffer.insert(it, {a->buffer, 0.0});
    it->second = std::max(it->second, a->unique_bytes);
  }
  return sum(per_buffer, [](auto& p) { return p.second; });
}

// Accesses per iteration that a vector loop must split into scalars.
inline double gathers(const LeafFacts& f) {
  int64_t vector = f.nest.vector;
  double split = 0.0;
  if (vector >= 0) f.each_access([&](const Access& a) { split += a.depends[vector] && a.strides[vector] > 1; });
  return split;
}

inline double total(const Pairs& pairs, bool region, double Access::*weight = nullptr) {
  return sum(pairs, [&](auto& p) {
    double trips = region ? p.second->trips_region : p.second->trips_ideal;
    return trips * (weight != nullptr ? p.second->*weight : 1.0) * reach(*p.first);
  });
}

// Thread-local buffers indexed by a loop that stays a loop: the compiler keeps these in memory, not registers.
inline Vector<Node> indexed_dynamically(const Facts& facts) {
  Vector<Node> found;
  for (const LeafFacts* f : facts) {
    f->each_access([&](const Access& a) {
      if (a.scope != LOCAL) return;
      for (int64_t i = 0; i < f->nest.region; ++i) {
        const Loop& loop = *f->leaf.loops[i];
        if (a.depends[i] && loop.extent > 1 && loop.tag == NO_TAG) return found.push_back(a.buffer);
      }
    });
  }
  return found;
}

inline double local_memory_trips(const Facts& facts) {
  Vector<Node> in_memory = indexed_dynamically(facts);
  double dynamic = 0.0;
  for (const LeafFacts* f : facts) {
    f->each_access([&](const Access& a) {
      if (std::find(in_memory.begin(), in_memory.end(), a.buffer) == in_memory.end()) return;
      dynamic += a.trips_region * (f->update && &a == &f->store ? 2.0 : 1.0);
    });
  }
  return dynamic;
}

inline double allocated(const Vector<Allocation>& allocations, int scope, int64_t Allocation::*amount) {
  int64_t total = 0;
  for (const auto& a : allocations) total += a.scope == scope ? a.*amount : 0;
  return static_cast<double>(total);
}

inline double instructions(const Pairs& pairs) {
  return sum(pairs, [](auto& p) { return p.second->trips_region * ceil_div(p.second->access_bytes, LINE_BYTES); });
}

inline double vector_iterations(const LeafFacts* f) {
  return f->scalar ? 0.0 : f->iterations / std::max(f->lanes, f->auto_lanes);
}

inline double heaviness(const LeafFacts& f) { return f.work() * std::max(1.0, f.flops_per_iteration()); }

inline Numbers kernel_vector(const Kernel& kernel, const Facts& facts, const Vector<Allocation>& outside, bool gpu) {
  double blocks = largest(facts, [](auto* f) { return f->blocks; });
  double threads = block_threads(facts);
  double all_threads = gpu ? blocks * threads : 1.0;
  double shared = allocated(kernel.allocations, SHARED, &Allocation::bytes);
  double local = allocated(kernel.allocations, LOCAL, &Allocation::bytes);
  double registers = allocated(kernel.allocations, LOCAL, &Allocation::elements);
  double in_memory =
      allocated(kernel.allocations, GLOBAL, &Allocation::bytes) + allocated(outside, GLOBAL, &Allocation::bytes);

  auto ops = [&](Op op) { return sum(facts, [&](auto* f) { return f->arithmetic.counts[op] * f->work(); }); };
  auto per_thread = [&](Op op) { return ops(op) / all_threads; };
  double fma = per_thread(OP_fma), fp = 0.0;
  for (Op op : {OP_fma, OP_fadd, OP_fmul, OP_fdiv, OP_fcompare}) fp += per_thread(op);
  const LeafFacts* heaviest = facts.front();
  for (const LeafFacts* f : facts) {
    if (heaviness(*f) > heaviness(*heaviest)) heaviest = f;
  }
  double work = sum(facts, [](auto* f) { return heaviness(*f); });
  double conditions = sum(facts, [](auto* f) { return static_cast<double>(f->leaf.guards.size()) * f->iterations; });
  Pairs loads, stores;
  for (const LeafFacts* f : facts) {
    for (const Access& a : f->loads) loads.emplace_back(f, &a);
    stores.emplace_back(f, &f->store);
  }
  // An accumulator in shared or global memory is read as often as it is written.
  for (const LeafFacts* f : facts) {
    if (f->update && f->store.scope != LOCAL) loads.emplace_back(f, &f->store);
  }
  Pairs s_loads = of(loads, SHARED), g_loads = of(loads, GLOBAL);
  Pairs s_stores = of(stores, SHARED), g_stores = of(stores, GLOBAL);
  double dynamic = local_memory_trips(facts);
  double heavy_shared = sum(heaviest->loads, [](auto& a) { return a.scope == SHARED ? a.trips_ideal : 0.0; });
  double heavy_fma = heaviest->arithmetic.counts[OP_fma] * heaviest->serial_trips;
  double inner_body = 1.0;
  for (int64_t i = 0; i < static_cast<int64_t>(heaviest->leaf.loops.size()); ++i) {
    const Loop& loop = *heaviest->leaf.loops[i];
    if (i > heaviest->nest.refill && loop.tag == NO_TAG) inner_body *= static_cast<double>(loop.extent);
  }
  auto wavefronts = &Access::wavefronts, sectors = &Access::sectors;
  Numbers out;
  append(out, KernelFeatures{
             .gpu_flag = double(gpu),
             .blocks = blocks,
             .block_threads = threads,
             .warps_per_block = ceil_div(threads, WARP),
             .vthreads = largest(facts, [](auto* f) { return f->vthreads; }),
             .shared_bytes = shared,
             .local_bytes_per_thread = local,
             .pipeline_stages = static_cast<double>(kernel.stages),
             .unroll_limit = static_cast<double>(kernel.unroll_limit),
             .leaves = static_cast<double>(facts.size()),
             .flops = sum(facts, [](auto* f) { return f->work() * f->flops_per_iteration(); }),
             .fma_per_thread = fma,
             .fp_per_thread = fp,
             .special_per_thread = per_thread(OP_special),
             .int_per_thread = per_thread(OP_int) + 4 * per_thread(OP_intdiv),
             .select_per_thread = per_thread(OP_select),
             .branch_per_thread = conditions / all_threads,
             .shared_loads_per_thread = total(s_loads, false),
             .shared_loads_region_per_thread = total(s_loads, true),
             .shared_load_wavefronts_per_warp = total(s_loads, false, wavefronts),
             .shared_load_wavefronts_region_per_warp = total(s_loads, true, wavefronts),
             .shared_stores_per_thread = total(s_stores, false),
             .shared_store_wavefronts_per_warp = total(s_stores, false, wavefronts),
             .global_loads_per_thread = total(g_loads, false),
             .global_loads_region_per_thread = total(g_loads, true),
             .global_load_sectors_per_warp = total(g_loads, false, sectors),
             .global_load_sectors_region_per_warp = total(g_loads, true, sectors),
             .global_load_use_share = use(g_loads),
             .global_stores_per_thread = total(g_stores, false),
             .global_store_sectors_per_warp = total(g_stores, false, sectors),
             .global_store_use_share = use(g_stores),
             .global_read_bytes = unique(g_loads),
             .global_write_bytes = unique(g_stores),
             .block_read_bytes = sum(g_loads, [](auto& p) { return p.second->block_unique_bytes; }),
             .refill_rounds = largest(s_stores, [](auto& p) { return p.first->refill_trips; }),
             .cross_thread_reductions = kernel.cross_thread_reductions,
             .code_steps = kernel.code_steps,
             .max_region_trips = largest(facts, [](auto* f) { return f->region_trips; }),
             .register_elements = registers,
             .local_memory_trips = dynamic,
             .min_active_fraction = -largest(facts, [](auto* f) { return -f->active; }),
             .fma_per_shared_load = heavy_shared != 0.0 ? heavy_fma / heavy_shared : 0.0,
             .inner_body_trips = inner_body,
             .parallel_extent = largest(facts, [](auto* f) { return f->parallel_extent; }),
             .iterations = sum(facts, [](auto* f) { return f->iterations; }),
             .vector_iterations = sum(facts, vector_iterations),
             .scalar_iterations = sum(facts, [](auto* f) { return f->scalar ? f->iterations : 0.0; }),
             .gather_iterations = sum(facts, [](auto* f) { return f->iterations * gathers(*f); }),
             .odd_vector_iterations = sum(facts, [](auto* f) { return f->odd_lanes() ? f->iterations : 0.0; }),
             .chain_iterations = sum(facts, [](auto* f) { return f->chain_trips; }),
             .load_instructions = instructions(loads),
             .store_instructions = instructions(stores),
             .allocated_bytes = in_memory,
             .special_iterations = ops(OP_special),
             .intdiv_iterations = ops(OP_intdiv),
             .heaviest_leaf_share = heaviness(*heaviest) / work,
             .footprint_bytes = sum(facts, [](auto* f) { return f->misses.footprint_bytes; }),
         });
  for (auto column : {&Misses::bytes, &Misses::crowded_bytes, &Misses::pages}) {
    for (size_t c = 0; c < (facts.front()->misses.*column).size(); ++c) {
      out.push_back(slog(sum(facts, [&](auto* f) { return (f->misses.*column)[c]; })));
    }
  }
  return out;
}

}  // namespace cdmpp
