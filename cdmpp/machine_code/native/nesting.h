// How often each block of the machine code runs: nesting.py. The pairs of least cost are found by Python.
#pragma once
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include "assembly.h"
#include "classes.h"
#include "components.h"
#include "loops.h"

namespace cdmpp {

// Sizes of n and of m things, an (n, m) cost besides -> for each of the n its partner, or -1.
using Assign = void (*)(const double* left, int64_t n, const double* right, int64_t m, const double* extra, int64_t* partners);
using Size = std::array<double, 4>;  // instructions, arithmetic, stores, loads

inline Size size_of_ir(const Amounts& classes) {
  Size size{1.0, 0.0, 0.0, 0.0};
  for (auto [name, amount] : classes) {
    if (name >= feature::n_float_1 && name <= feature::n_divide_16) size[1] += amount;
    if ((name >= feature::n_store_1 && name <= feature::n_store_16) || name == feature::n_store_int) size[2] += amount;
    if ((name >= feature::n_load_1 && name <= feature::n_load_16) || name == feature::n_load_int) size[3] += amount;
  }
  return size;
}

inline Size size_of_x86(Text line) {
  Text name = before(line, " ");
  bool stores = line.ends_with(')') && (name.starts_with("vmov") || name.starts_with("mov"));
  bool loads = has(line, "(") && !stores && !has(name, "lea");
  return {1.0, starts_with_any(name, X86_FLOATS) ? 1.0 : 0.0, stores ? 1.0 : 0.0, loads ? 1.0 : 0.0};
}

inline Size operator+(Size a, const Size& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Loops inside loops, in the order of the control flow; -1 stands for no loop.
class Nest {
 public:
  const std::vector<Body>& bodies;
  std::vector<Size> sizes;  // of blocks
  Blocks innermost;         // index of the smallest loop around each block
  std::map<int, Blocks> children;

  Nest(const BlockGraph& graph, const std::vector<Body>& loops, std::vector<Size> block_sizes)
      : bodies(loops), sizes(std::move(block_sizes)), innermost(graph.size(), -1), graph_(graph) {
    Blocks sorted;
    for (size_t i = 0; i < loops.size(); ++i) sorted.push_back(static_cast<int>(i));
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return loops[a].size > loops[b].size; });
    for (int loop : sorted) {
      children[innermost[loops[loop].header]].push_back(loop);
      for (int b = 0; b < graph.size(); ++b) if (loops[loop].has[b]) innermost[b] = loop;
    }
    std::vector<int> first;
    for (const Body& body : loops) {
      int place = static_cast<int>(graph.order.size());
      for (int b = 0; b < graph.size(); ++b) if (body.has[b] && graph.place[b] >= 0) place = std::min(place, graph.place[b]);
      first.push_back(place);
    }
    for (auto& [loop, inside] : children) {
      std::stable_sort(inside.begin(), inside.end(), [&](int a, int b) { return first[a] < first[b]; });
    }
  }
  std::string shape(int loop) const {
    std::string inside = "(";
    if (auto found = children.find(loop); found != children.end()) for (int child : found->second) inside += shape(child);
    return inside + ")";
  }
  Size weight(int loop) const {
    Size sum{};
    for (int b = 0; b < graph_.size(); ++b) if (bodies[loop].has[b]) sum = sum + sizes[b];
    return sum;
  }
  // Blocks of the loop that are in no loop inside it, in order.
  Blocks own_blocks(int loop) const {
    Blocks own;
    for (int b : graph_.order) if (bodies[loop].has[b] && innermost[b] == loop) own.push_back(b);
    return own;
  }

 private:
  const BlockGraph& graph_;
};

struct MachinePiece { Blocks blocks; int loop; };  // loop: -1 for a block alone

class MachineFlow {
 public:
  std::vector<Body> bodies;
  std::vector<double> runs, trips;  // of blocks, of loops
  std::vector<MachinePiece> pieces;
  int64_t unmatched = 0;

  // `size`: of the IR's blocks; `loops` are those of the IR that are reached.
  MachineFlow(const AsmFunction& function, const Function& ir, const std::vector<Body>& ir_bodies,
              std::vector<Size> ir_sizes, const std::vector<Loop>& loops, const std::vector<double>& ir_runs, Assign assign)
      : bodies(Components(function).bodies), function_(function), assign_(assign) {
    std::vector<Size> sizes(function.size());
    for (int b = 0; b < function.size(); ++b) for (Text line : function.lines[b]) sizes[b] = sizes[b] + size_of_x86(line);
    Nest nest(function, bodies, std::move(sizes)), ir_nest(ir, ir_bodies, std::move(ir_sizes));
    std::vector<std::pair<int, int>> pairs;
    match(nest, ir_nest, -1, -1, pairs);
    unmatched = static_cast<int64_t>(bodies.size() - pairs.size());
    trips.assign(bodies.size(), UNKNOWN_TRIPS);
    std::vector<double> given(function.size(), -1.0), factors(function.size(), 1.0);
    for (auto [loop, ir_loop] : pairs) {
      for (const Loop& known : loops) {
        if (known.body.header == ir_bodies[ir_loop].header && known.trips != 0) trips[loop] = std::max(1.0, known.trips);
      }
      run_pair(nest, ir_nest, loop, ir_loop, ir_runs, given);
    }
    for (size_t i = 0; i < bodies.size(); ++i) factors[bodies[i].header] = trips[i];
    auto ways = [&](int b) {
      return Ways{function.successors[b], nest.innermost[b] < 0 ? nullptr : &bodies[nest.innermost[b]]};
    };
    runs = runs_of_blocks(function.order, factors, ways, given, true);
    cut(nest);
  }

 private:
  const AsmFunction& function_;
  Assign assign_;

  // Pairs of the least total cost.
  template <class Extra>
  std::vector<std::pair<int, int>> assigned(const std::vector<Size>& left, const std::vector<Size>& right, Extra extra) {
    if (left.empty() || right.empty()) return {};
    if (left.size() == 1 && right.size() == 1) return {{0, 0}};
    std::vector<double> costs;
    int n = static_cast<int>(left.size()), m = static_cast<int>(right.size());
    for (int i = 0; i < n; ++i) for (int j = 0; j < m; ++j) costs.push_back(extra(i, j));
    std::vector<int64_t> partners(n, -2);
    assign_(left[0].data(), n, right[0].data(), m, costs.data(), partners.data());
    std::vector<std::pair<int, int>> found;
    for (int i = 0; i < n; ++i) {
      if (partners[i] < -1 || partners[i] >= m) throw Unsupported();
      if (partners[i] >= 0) found.push_back({i, static_cast<int>(partners[i])});
    }
    return found;
  }

  void match(Nest& nest, Nest& ir_nest, int loop, int ir_loop, std::vector<std::pair<int, int>>& pairs) {
    const Blocks loops = nest.children[loop], ir_loops = ir_nest.children[ir_loop];
    std::vector<Size> left, right;
    for (int inside : loops) left.push_back(nest.weight(inside));
    for (int inside : ir_loops) right.push_back(ir_nest.weight(inside));
    auto extra = [&](int i, int j) {
      return ORDER_COST * std::abs(i - j) + SHAPE_COST * (nest.shape(loops[i]) != ir_nest.shape(ir_loops[j]));
    };
    for (auto [i, j] : assigned(left, right, extra)) {
      pairs.push_back({loops[i], ir_loops[j]});
      match(nest, ir_nest, loops[i], ir_loops[j], pairs);
    }
  }

  // Runs of the blocks of a loop that the IR has too: where they differ, by the block that is most alike.
  void run_pair(const Nest& nest, const Nest& ir_nest, int loop, int ir_loop, const std::vector<double>& ir_runs,
                std::vector<double>& given) {
    Blocks blocks = nest.own_blocks(loop), ir_blocks = ir_nest.own_blocks(ir_loop);
    double of_header = ir_runs[ir_nest.bodies[ir_loop].header], most = std::max(of_header, 1e-9);
    std::set<std::string> shares;
    for (int b : ir_blocks) {
      char text[400];
      snprintf(text, sizeof text, "%.3f", ir_runs[b] / most);
      shares.insert(text);
    }
    if (blocks.size() == 1 || shares.size() == 1) {
      for (int b : blocks) given[b] = of_header;
      return;
    }
    std::vector<Size> left, right;
    for (int b : blocks) left.push_back(nest.sizes[b]);
    for (int b : ir_blocks) right.push_back(ir_nest.sizes[b]);
    auto extra = [&](int i, int j) {
      return BLOCK_ORDER_COST * std::abs(i / static_cast<double>(left.size()) - j / static_cast<double>(right.size()));
    };
    for (auto [i, j] : assigned(left, right, extra)) given[blocks[i]] = ir_runs[ir_blocks[j]];
    given[bodies[loop].header] = of_header;
  }

  // What runs as one: the usual way through an innermost loop; other blocks alone.
  void cut(const Nest& nest) {
    std::vector<char> in_loops(function_.size());
    for (size_t i = 0; i < bodies.size(); ++i) {
      if (nest.children.contains(static_cast<int>(i)) && !nest.children.at(static_cast<int>(i)).empty()) continue;
      double often = 0.5 * std::max(runs[bodies[i].header], 1e-9);
      Blocks usual;
      for (int b : function_.order) {
        if (bodies[i].has[b] && !function_.lines[b].empty() && runs[b] >= often) usual.push_back(b);
      }
      if (usual.empty()) continue;
      for (int b : usual) in_loops[b] = 1;
      pieces.push_back({usual, static_cast<int>(i)});
    }
    for (int b : function_.order) if (!in_loops[b] && !function_.lines[b].empty()) pieces.push_back({{b}, -1});
  }
};

}  // namespace cdmpp
