// Twin of kernel.py: all stores of one kernel -> its summary vector.
#pragma once

#include <map>

#include "vectors.h"

namespace cdmpp {

using Facts = std::vector<const LeafFacts*>;
using Pairs = std::vector<std::pair<const LeafFacts*, const Access*>>;

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
  std::vector<std::pair<Node, double>> per_buffer;
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
inline std::vector<Node> indexed_dynamically(const Facts& facts) {
  std::vector<Node> found;
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
  std::vector<Node> in_memory = indexed_dynamically(facts);
  double dynamic = 0.0;
  for (const LeafFacts* f : facts) {
    f->each_access([&](const Access& a) {
      if (std::find(in_memory.begin(), in_memory.end(), a.buffer) == in_memory.end()) return;
      dynamic += a.trips_region * (f->update && &a == &f->store ? 2.0 : 1.0);
    });
  }
  return dynamic;
}

inline double allocated(const std::vector<Allocation>& allocations, int scope, int64_t Allocation::*amount) {
  int64_t total = 0;
  for (const auto& a : allocations) total += a.scope == scope ? a.*amount : 0;
  return static_cast<double>(total);
}

inline double instructions(const Pairs& pairs) {
  return sum(pairs, [](auto& p) { return p.second->trips_region * ceil_div(p.second->access_bytes, LINE_BYTES); });
}

inline double heaviness(const LeafFacts& f) { return f.work() * std::max(1.0, f.flops_per_iteration()); }

inline Numbers kernel_vector(const Kernel& kernel, const Facts& facts, const std::vector<Allocation>& outside, bool gpu) {
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
  Numbers out = {
      double(gpu),
      slog(blocks),
      slog(threads),
      slog(ceil_div(threads, WARP)),
      slog(largest(facts, [](auto* f) { return f->vthreads; })),
      slog(shared),
      slog(local),
      slog(static_cast<double>(kernel.stages)),
      slog(static_cast<double>(kernel.unroll_limit)),
      slog(static_cast<double>(facts.size())),
      slog(sum(facts, [](auto* f) { return f->work() * f->flops_per_iteration(); })),
      slog(fma),
      slog(fp),
      slog(per_thread(OP_special)),
      slog(per_thread(OP_int) + 4 * per_thread(OP_intdiv)),
      slog(per_thread(OP_select)),
      slog(sum(facts, [](auto* f) { return static_cast<double>(f->leaf.guards.size()) * f->iterations; }) / all_threads),
      slog(total(s_loads, false)),
      slog(total(s_loads, true)),
      slog(total(s_loads, false, wavefronts)),
      slog(total(s_loads, true, wavefronts)),
      slog(total(s_stores, false)),
      slog(total(s_stores, false, wavefronts)),
      slog(total(g_loads, false)),
      slog(total(g_loads, true)),
      slog(total(g_loads, false, sectors)),
      slog(total(g_loads, true, sectors)),
      use(g_loads),
      slog(total(g_stores, false)),
      slog(total(g_stores, false, sectors)),
      use(g_stores),
      slog(unique(g_loads)),
      slog(unique(g_stores)),
      slog(sum(g_loads, [](auto& p) { return p.second->block_unique_bytes; })),
      slog(largest(s_stores, [](auto& p) { return p.first->refill_trips; })),
      slog(kernel.cross_thread_reductions),
      slog(kernel.code_steps),
      slog(largest(facts, [](auto* f) { return f->region_trips; })),
      slog(registers),
      slog(dynamic),
      -largest(facts, [](auto* f) { return -f->active; }),
      slog(heavy_shared != 0.0 ? heavy_fma / heavy_shared : 0.0),
      slog(inner_body),
      slog(largest(facts, [](auto* f) { return f->parallel_extent; })),
      slog(sum(facts, [](auto* f) { return f->iterations; })),
      slog(sum(facts, [](auto* f) { return f->scalar ? 0.0 : f->iterations / std::max(f->lanes, f->auto_lanes); })),
      slog(sum(facts, [](auto* f) { return f->scalar ? f->iterations : 0.0; })),
      slog(sum(facts, [](auto* f) { return f->iterations * gathers(*f); })),
      slog(sum(facts, [](auto* f) { return f->odd_lanes() ? f->iterations : 0.0; })),
      slog(sum(facts, [](auto* f) { return f->chain_trips; })),
      slog(instructions(loads)),
      slog(instructions(stores)),
      slog(in_memory),
      slog(ops(OP_special)),
      slog(ops(OP_intdiv)),
      heaviness(*heaviest) / work,
      slog(sum(facts, [](auto* f) { return f->misses.footprint_bytes; })),
  };
  for (auto column : {&Misses::bytes, &Misses::crowded_bytes, &Misses::pages}) {
    for (size_t c = 0; c < (facts.front()->misses.*column).size(); ++c) {
      out.push_back(slog(sum(facts, [&](auto* f) { return (f->misses.*column)[c]; })));
    }
  }
  return out;
}

}  // namespace cdmpp
