// Amounts of a whole run, counted in the machine code and simulated on the core.
#pragma once
#include <deque>
#include <map>
#include <set>
#include "aarch64.h"
#include "assembly.h"
#include "flow.h"
#include "pipeline.h"
#include "x86.h"

namespace cdmpp {

using Totals = double*;  // by feature
using Decoded = std::vector<std::vector<Operation>>;

inline bool is_float(const Operation& item) { return is_any_of(item.name, FLOATS); }

// What registers hold where a piece of a function begins, as far as it follows from what comes before.
class Places {
 public:
  Places(const AsmFunction& function, const Decoded& decoded, const std::vector<Body>& bodies,
         const std::vector<char>& is_vector, int flags)
      : function_(function), decoded_(decoded), bodies_(bodies), is_vector_(is_vector), flags_(flags),
        headed_(function.size(), -1), written_(function.size()) {
    for (size_t i = 0; i < bodies.size(); ++i) headed_[bodies[i].header] = static_cast<int>(i);
    for (int b = 0; b < function.size(); ++b) {
      for (const Operation& item : decoded[b]) for (int name : item.writes) written_[b].push_back(name);
      std::sort(written_[b].begin(), written_[b].end());
      written_[b].erase(std::unique(written_[b].begin(), written_[b].end()), written_[b].end());
    }
    dominator_ = dominators(function.order, function.predecessors);
  }

  // When `block` is entered first, in iteration N of the loops around it.
  const Addresses& at(int block) {
    Blocks chain{block};
    while (dominator_[chain.back()] >= 0) chain.push_back(dominator_[chain.back()]);
    std::reverse(chain.begin(), chain.end());
    if (known_.empty()) known_.emplace_back(is_vector_.size());
    int now = 0;
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      int loop = headed_[chain[i]];
      bool inside = loop >= 0 && bodies_[loop].has[block];
      auto [step, is_new] = steps_.try_emplace({now, chain[i], inside, chain[i + 1]}, static_cast<int>(known_.size()));
      if (is_new) known_.push_back(after(known_[now], chain[i], inside ? loop : -1, chain[i + 1]));
      now = step->second;
    }
    return known_[now];
  }

 private:
  const AsmFunction& function_;
  const Decoded& decoded_;
  const std::vector<Body>& bodies_;
  const std::vector<char>& is_vector_;
  int flags_;
  Blocks headed_, dominator_;
  std::vector<std::vector<int>> written_;
  std::deque<Addresses> known_;                 // by the way there, the first at the entry
  std::map<std::array<int, 4>, int> steps_;     // place in `known_`, block, whether in its loop, next block -> place
  int64_t next_ = FIRST_UNKNOWN;

  // On through `from`, in some iteration of its `loop` where there is one, to the beginning of `to`.
  Addresses after(Addresses addresses, int from, int loop, int to) {
    if (loop >= 0) iterate(addresses, loop);
    for (const Operation& item : decoded_[from]) addresses.follow(item, is_vector_, next_);
    std::vector<char> forgotten(is_vector_.size());
    for (int i = function_.place[from] + 1; i < function_.place[to]; ++i) {
      for (int name : written_[function_.order[i]]) forgotten[name] = 1;
    }
    forget(addresses, forgotten);
    return addresses;
  }

  // Registers that grow by a constant in every iteration grow with it, those that change otherwise hold anything.
  void iterate(Addresses& addresses, int loop) {
    std::vector<char> changed(is_vector_.size()), grows(is_vector_.size());
    std::vector<int64_t> steps(is_vector_.size());
    for (int b = 0; b < function_.size(); ++b) {
      if (!bodies_[loop].has[b]) continue;
      for (const Operation& item : decoded_[b]) {
        const auto& terms = item.assigned_terms;
        if (item.assigned >= 0 && terms.n == 1 && terms.values[0] == Term{item.assigned, 1}) {
          grows[item.assigned] = 1;
          steps[item.assigned] += item.assigned_offset;
        } else {
          for (int name : item.writes) changed[name] = 1;
        }
      }
    }
    forget(addresses, changed);
    for (size_t name = 0; name < steps.size(); ++name) {
      if (!grows[name] || changed[name]) continue;
      Few<Term, 2> itself;
      itself.push({static_cast<int64_t>(name), 1});
      Value value = addresses.sum(itself, 0, next_);
      value.terms.push({3 * FIRST_UNKNOWN + loop, steps[name]});
      std::sort(value.terms.values.begin(), value.terms.values.begin() + value.terms.n);
      addresses.values[name] = value;
    }
  }

  void forget(Addresses& addresses, const std::vector<char>& names) {
    for (size_t name = 0; name < names.size(); ++name) {
      if (names[name] && static_cast<int>(name) != flags_) addresses.values[name] = Addresses::unknown(next_);
    }
  }
};

// Cycles that the busiest group of ports needs: all work that no port outside the group can take.
template <class Counts>
double port_bound(const Core& core, const Piece& piece, Counts counts) {
  std::map<uint64_t, int64_t> work;
  std::set<uint64_t> groups;
  for (const Operation* item : piece) {
    const Unit& unit = core.unit_of(*item);
    if (unit.mask && counts(*item)) work[unit.mask] += unit.busy;
  }
  for (auto& [a, n] : work) for (auto& [b, k] : work) groups.insert(a | b);
  double most = 0.0;
  for (uint64_t group : groups) {
    int64_t sum = 0;
    for (auto& [ports, n] : work) if (!(ports & ~group)) sum += n;
    most = std::max(most, static_cast<double>(sum) / __builtin_popcountll(group));
  }
  return most;
}

// Cycles that each resource of the core needs for one run of a piece; gathers and scatters have their own.
inline void add_bounds(const Core& core, const Piece& piece, Totals counts) {
  double loads = 0, stores = 0, stored = 0, scattered = 0, slots = 0;
  for (const Operation* item : piece) {
    slots += static_cast<double>(core.slots_of(*item));
    if (item->loads && !item->lanes) loads += std::max(1.0, std::ceil(item->moved / core.load_bytes));
    if (item->stores && !item->lanes) { stores += std::ceil(item->moved / core.store_bytes); stored += item->moved; }
    if (item->stores) scattered += item->lanes;
  }
  auto integer = [](const Operation& item) { return is_any_of(item.name, INTEGERS); };
  counts[feature::machine_issue_cycles] = slots / core.issue_width;
  counts[feature::machine_float_cycles] = port_bound(core, piece, is_float);
  counts[feature::machine_vector_cycles] = port_bound(core, piece, [&](const Operation& item) { return !integer(item); });
  counts[feature::machine_shuffle_cycles] =
      port_bound(core, piece, [](const Operation& item) { return is_any_of(item.name, SHUFFLES); });
  counts[feature::machine_integer_cycles] = port_bound(core, piece, integer);
  counts[feature::machine_load_cycles] = loads / core.load_ports;
  counts[feature::machine_store_cycles] = std::max(stores / core.store_ports, stored / core.store_bytes_per_cycle) +
                                          core.scatter_cycles_per_lane * scattered;
}

inline void add_counts(const Piece& piece, Totals counts) {
  auto moves = [&](const Operation& item, bool stores) {
    // Stores stand behind loads, and so do their kinds.
    auto count = [&](int of_loads, bool fits) { counts[of_loads + stores] += fits; };
    count(feature::machine_loads, true);
    count(feature::machine_wide_loads, item.width == WIDE);
    count(feature::machine_scalar_loads, item.scalar);
    count(feature::machine_spill_loads, item.spills);
    count(feature::machine_masked_loads, item.masked);
  };
  for (const Operation* item : piece) {
    counts[KIND_OF[item->name]] += 1;
    if (is_float(*item)) counts[item->scalar ? feature::machine_scalar_floats : feature::machine_vector_floats] += 1;
    if (item->lanes) {
      counts[item->loads ? feature::machine_gather_lanes : feature::machine_scatter_lanes] += item->lanes;
      continue;
    }
    if (item->loads) moves(*item, false);
    if (item->stores) moves(*item, true);
  }
}

struct MachinePiece { Blocks blocks; int loop; };  // loop: -1 for a block alone

// What runs as one: the usual way through an innermost loop; other blocks alone.
inline std::vector<MachinePiece> pieces_of(const AsmFunction& function, const Flow& flow) {
  std::vector<MachinePiece> pieces;
  std::vector<char> in_loops(function.size()), holds_more(flow.loops.size());
  for (size_t i = 0; i < flow.loops.size(); ++i) {
    for (const Body& other : flow.loops) holds_more[i] |= other.size < flow.loops[i].size && flow.loops[i].has[other.header];
  }
  for (size_t i = 0; i < flow.loops.size(); ++i) {
    if (holds_more[i]) continue;
    double often = 0.5 * flow.runs[flow.loops[i].header];
    Blocks usual;
    for (int b : function.order) {
      if (flow.loops[i].has[b] && !function.lines[b].empty() && flow.runs[b] > 0 && flow.runs[b] >= often) usual.push_back(b);
    }
    if (usual.empty()) continue;
    for (int b : usual) in_loops[b] = 1;
    pieces.push_back({usual, static_cast<int>(i)});
  }
  for (int b : function.order) if (!in_loops[b] && !function.lines[b].empty()) pieces.push_back({{b}, -1});
  return pieces;
}

template <class Decoder>
RegisterNames decode_all(const AsmFunction& function, Decoded& decoded) {
  Decoder decoder;
  for (int b = 0; b < function.size(); ++b) for (Text line : function.lines[b]) decoded[b].push_back(decoder.decode(line));
  return decoder.registers;
}

// What a function asks of a core that is called `times`.
inline void add_machine_amounts(const Core& core, const AsmFunction& function, const Flow& flow, double times, Totals totals) {
  Decoded decoded(function.size());
  RegisterNames registers = function.arm ? decode_all<ArmDecoder>(function, decoded) : decode_all<Decoder>(function, decoded);
  int flags = registers.id("flags");
  const auto& is_vector = registers.is_vector;
  Places places(function, decoded, flow.loops, is_vector, flags);
  if (flow.unknown > 0) totals[feature::unknown_loops] = 1.0;
  for (const auto& items : decoded) totals[feature::machine_text] += static_cast<double>(items.size());
  for (const auto& [blocks, loop] : pieces_of(function, flow)) {
    int begin = loop < 0 ? blocks[0] : flow.loops[loop].header;
    Piece piece;
    double run_in_all = 0.0;
    for (int b : blocks) {
      Piece block;
      for (const Operation& item : decoded[b]) block.push_back(&item);
      std::vector<double> counts(feature::N, 0.0);
      add_counts(block, counts.data());
      for (int i = 0; i < feature::N; ++i) if (counts[i] != 0) totals[i] += times * flow.runs[b] * counts[i];
      run_in_all += flow.runs[b] * static_cast<double>(block.size());
      piece.insert(piece.end(), block.begin(), block.end());
    }
    double size = static_cast<double>(piece.size()), runs = times * run_in_all / size;
    if (runs <= 0) continue;
    std::vector<double> counts(feature::N, 0.0);
    add_bounds(core, piece, counts.data());
    double bound = *std::max_element(&counts[feature::machine_issue_cycles], &counts[feature::machine_store_cycles] + 1);
    const Addresses& known = places.at(begin);
    double trips = loop < 0 ? 1.0 : flow.trips(loop);
    Steady steady = run(core, piece, loop < 0 ? 1.0 : INFINITY, known, is_vector);
    counts[feature::machine_cycles] = steady.cycles;
    counts[feature::machine_blocked_loads] = steady.blocked_loads;
    counts[feature::machine_masked_waits] = steady.masked_waits;
    counts[feature::machine_aliased_loads] = steady.aliased_loads;
    counts[feature::machine_l1_conflicts] = steady.l1_conflicts;
    counts[feature::machine_l2_conflicts] = steady.l2_conflicts;
    counts[feature::machine_latency_cycles] = std::max(0.0, steady.cycles - bound);
    if (loop >= 0) {
      totals[feature::machine_loop_runs] += times * flow.runs[begin];
      totals[feature::machine_loop_entries] += times * flow.entries[loop];
      if (trips * size <= 2 * core.window) {
        double anew = run(core, piece, trips, known, is_vector).cycles;
        counts[feature::machine_overlap_cycles] = std::max(0.0, steady.cycles - anew);
      }
    }
    for (int i = 0; i < feature::N; ++i) if (counts[i] != 0) totals[i] += runs * counts[i];
    if (runs * steady.cycles > totals[feature::hottest_machine_total]) {
      double spills = 0.0;
      for (const Operation* item : piece) if (item->spills && !item->lanes) spills += item->loads + item->stores;
      totals[feature::hottest_machine_total] = runs * steady.cycles;
      totals[feature::hottest_machine_cycles] = steady.cycles;
      totals[feature::hottest_machine_trips] = trips;
      totals[feature::hottest_machine_instructions] = size;
      totals[feature::hottest_machine_spills] = spills;
    }
  }
}

}  // namespace cdmpp
