// How often blocks of AArch64 code run: its loops are matched with those of the IR, whose runs are known.
#pragma once
#include <cmath>
#include <map>
#include <set>
#include "aarch64.h"
#include "assembly.h"
#include "classes.h"
#include "flow.h"
#include "pairs.h"

namespace cdmpp {

constexpr double UNKNOWN_TRIPS = 4.0;
// Of two loops or blocks that are to be the same: for their places in the text, and for other loops inside.
constexpr double ORDER_COST = 0.15, BLOCK_ORDER_COST = 1.5, SHAPE_COST = 1.0;

// Instructions, arithmetic, stores and loads.
using Size = std::array<double, 4>;

inline Size& operator+=(Size& sum, const Size& other) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

inline Size size_of(const Operation& item) {
  bool computes = is_any_of(item.name, FLOATS) || item.name == op::op_divide;
  return {1.0, double(computes), double(item.stores), double(item.loads)};
}

inline Size size_of(Text ir_line) {
  Size size{1.0, 0.0, 0.0, 0.0};
  for (auto [what, amount] : classify(ir_line)) {
    if (what >= feature::n_float_1 && what <= feature::n_divide_16) size[1] += amount;
    if ((what >= feature::n_store_1 && what <= feature::n_store_16) || what == feature::n_store_int) size[2] += amount;
    if ((what >= feature::n_load_1 && what <= feature::n_load_16) || what == feature::n_load_int) size[3] += amount;
  }
  return size;
}

// Loops inside loops, in the order of the control flow.
class Nest {
 public:
  const BlockGraph& graph;
  const std::vector<Body>& bodies;
  std::vector<Size> sizes;  // of blocks
  Blocks innermost;         // the smallest loop around each block; -1: none
  std::map<int, Blocks> children;

  Nest(const BlockGraph& graph, const std::vector<Body>& bodies, std::vector<Size> sizes)
      : graph(graph), bodies(bodies), sizes(std::move(sizes)), innermost(graph.size(), -1) {
    Blocks largest_first(bodies.size());
    for (size_t i = 0; i < bodies.size(); ++i) largest_first[i] = static_cast<int>(i);
    std::stable_sort(largest_first.begin(), largest_first.end(), [&](int a, int b) { return bodies[a].size > bodies[b].size; });
    for (int loop : largest_first) {
      children[innermost[bodies[loop].header]].push_back(loop);
      for (int b = 0; b < graph.size(); ++b) if (bodies[loop].has[b]) innermost[b] = loop;
    }
    for (auto& [around, inside] : children) {
      std::stable_sort(inside.begin(), inside.end(), [&](int a, int b) { return first_place(a) < first_place(b); });
    }
  }
  const Blocks& inside(int loop) const {
    static const Blocks none;
    auto found = children.find(loop);
    return found == children.end() ? none : found->second;
  }
  // The loops inside, as brackets.
  std::string shape(int loop) const {
    std::string text = "(";
    for (int child : inside(loop)) text += shape(child);
    return text + ")";
  }
  Size weight(int loop) const {
    Size sum{};
    for (int b = 0; b < graph.size(); ++b) if (bodies[loop].has[b]) sum += sizes[b];
    return sum;
  }
  // Blocks of the loop that are in no loop inside it, in order.
  Blocks own_blocks(int loop) const {
    Blocks blocks;
    for (int b : graph.order) if (innermost[b] == loop && bodies[loop].has[b]) blocks.push_back(b);
    return blocks;
  }

 private:
  int first_place(int loop) const {
    int first = graph.size();
    for (int b = 0; b < graph.size(); ++b) if (bodies[loop].has[b] && graph.place[b] >= 0) first = std::min(first, graph.place[b]);
    return first;
  }
};

// What sizes of two loops or blocks cost as a pair: their ratios.
inline double unlike(const Size& a, const Size& b) {
  double cost = 0.0;
  for (size_t i = 0; i < a.size(); ++i) cost += std::abs(std::log1p(a[i]) - std::log1p(b[i]));
  return cost;
}

// Finds the same loop in both: alike in what they compute, where they stand and what they hold.
inline void match(const Nest& nest, const Nest& ir, int around, int ir_around, std::vector<std::pair<int, int>>& pairs) {
  const Blocks &loops = nest.inside(around), &ir_loops = ir.inside(ir_around);
  auto cost = [&](int i, int j) {
    double apart = ORDER_COST * std::abs(i - j) + SHAPE_COST * (nest.shape(loops[i]) != ir.shape(ir_loops[j]));
    return unlike(nest.weight(loops[i]), ir.weight(ir_loops[j])) + apart;
  };
  for (auto [i, j] : pairs_of_least_cost(static_cast<int>(loops.size()), static_cast<int>(ir_loops.size()), cost)) {
    pairs.emplace_back(loops[i], ir_loops[j]);
    match(nest, ir, loops[i], ir_loops[j], pairs);
  }
}

// Runs of the blocks of a loop that the IR has too: where they differ, by the block that is most alike.
inline void runs_of_pair(const Nest& nest, const Nest& ir, int loop, int ir_loop, const std::vector<double>& ir_runs,
                         std::map<int, double>& given) {
  Blocks blocks = nest.own_blocks(loop), ir_blocks = ir.own_blocks(ir_loop);
  double of_header = ir_runs[ir.bodies[ir_loop].header], most = std::max(of_header, 1e-9);
  std::set<double> shares;
  for (int b : ir_blocks) shares.insert(std::nearbyint(ir_runs[b] / most * 1000.0));
  if (blocks.size() == 1 || shares.size() == 1) {
    for (int b : blocks) given[b] = of_header;
    return;
  }
  auto cost = [&](int i, int j) {
    double at = static_cast<double>(i) / static_cast<double>(blocks.size());
    double ir_at = static_cast<double>(j) / static_cast<double>(ir_blocks.size());
    return unlike(nest.sizes[blocks[i]], ir.sizes[ir_blocks[j]]) + BLOCK_ORDER_COST * std::abs(at - ir_at);
  };
  for (auto [i, j] : pairs_of_least_cost(static_cast<int>(blocks.size()), static_cast<int>(ir_blocks.size()), cost)) {
    given[blocks[i]] = ir_runs[ir_blocks[j]];
  }
  given[nest.bodies[loop].header] = of_header;
}

// Blocks right in a loop, or in none, that end in a branch about anything but whether the loop goes on.
inline Blocks parting(const Nest& nest, int loop) {
  Blocks blocks;
  for (int b : nest.graph.order) {
    const Blocks& targets = nest.graph.successors[b];
    if (nest.innermost[b] != loop || targets.size() < 2) continue;
    auto stays = [&](int target) { return loop < 0 || nest.bodies[loop].has[target]; };
    if (loop < 0 || std::count_if(targets.begin(), targets.end(), stays) != 1) blocks.push_back(b);
  }
  return blocks;
}

// The flow of `function`, the machine code of `ir`. Loops that only one of them has count as unknown branches, and so do,
// where they matter, all branches of a loop of which the IR has more or fewer: nothing carries them out, so which way they
// go is a guess.
inline Flow matched_flow(const AsmFunction& function, const Function& ir, const Flow& ir_flow) {
  Flow flow;
  flow.loops = Components(function).bodies;
  ArmDecoder decoder;
  std::vector<Size> sizes(function.size()), ir_sizes(ir.size());
  for (int b = 0; b < function.size(); ++b) for (Text line : function.lines[b]) sizes[b] += size_of(decoder.decode(line));
  for (int b = 0; b < ir.size(); ++b) for (Text line : ir.lines[b]) ir_sizes[b] += size_of(line);
  Nest nest(function, flow.loops, std::move(sizes)), ir_nest(ir, ir_flow.loops, std::move(ir_sizes));
  std::vector<std::pair<int, int>> pairs;
  match(nest, ir_nest, -1, -1, pairs);
  std::vector<double> trips(flow.loops.size(), UNKNOWN_TRIPS), of_header(function.size(), 1.0);
  std::map<int, double> given;
  for (auto [loop, ir_loop] : pairs) {
    trips[loop] = ir_flow.trips(ir_loop);
    runs_of_pair(nest, ir_nest, loop, ir_loop, ir_flow.runs, given);
  }
  for (size_t i = 0; i < trips.size(); ++i) of_header[flow.loops[i].header] = trips[i];
  // What the IR tells, else what flows in: a loop is left once in its trips, other branches are even, and what guards the
  // whole function is taken to let it pass.
  std::vector<double> inflow(function.size(), 0.0);
  flow.runs.assign(function.size(), 0.0);
  flow.undecided.assign(function.size(), 0);
  inflow[function.order[0]] = 1.0;
  for (int b : function.order) {
    auto known = given.find(b);
    flow.runs[b] = known != given.end() ? known->second : inflow[b] * of_header[b];
    const Blocks& targets = function.successors[b];
    int loop = nest.innermost[b];
    auto stays = [&](int target) { return loop >= 0 && flow.loops[loop].has[target]; };
    auto staying = std::count_if(targets.begin(), targets.end(), stays);
    bool leaves = loop >= 0 && staying > 0 && staying < static_cast<long>(targets.size());
    for (int target : targets) {
      if (function.place[target] <= function.place[b]) continue;  // the back edge of a loop is in its trips already
      double share = 1.0 / static_cast<double>(targets.size());
      if (leaves) share = stays(target) ? 1.0 - 1.0 / trips[loop] : 1.0 / trips[loop];
      if (loop < 0) inflow[target] = std::max(inflow[target], flow.runs[b]);
      else inflow[target] += flow.runs[b] * share;
    }
  }
  for (size_t i = 0; i < trips.size(); ++i) flow.entries.push_back(flow.runs[flow.loops[i].header] / trips[i]);
  pairs.emplace_back(-1, -1);
  for (auto [loop, ir_loop] : pairs) {
    Blocks blocks = parting(nest, loop);
    if (blocks.size() != parting(ir_nest, ir_loop).size()) for (int b : blocks) flow.undecided[b] = 1;
  }
  doubt(function, flow);
  auto alone = static_cast<double>(flow.loops.size() + ir_flow.loops.size() + 2 - 2 * pairs.size());
  flow.unknown += ir_flow.unknown + alone;
  return flow;
}

}  // namespace cdmpp
