// Natural loops of a function, their trip counts and how often blocks run: loops.py and flow.py.
#pragma once
#include <cmath>
#include "constants.h"

namespace cdmpp {

struct Counter { bool starts; Operand start; int64_t step; Text name, after; };
struct Flip { int id; bool first, other; };  // a value that is one thing in the first iteration, then another
struct Loop {
  Body body;
  double trips = 0.0;
  std::vector<Counter> counters;
  std::vector<Flip> flips;
};

class LoopReader {
 public:
  explicit LoopReader(Constants& constants) : constants_(constants), function_(constants.function) {}

  std::vector<Loop> loops(const std::vector<Body>& natural) {
    std::vector<Loop> found;
    for (const Body& body : natural) {
      if (constants_.reached[body.header]) found.push_back({body, 0.0, counters(body), flips(body)});
    }
    Blocks sorted = BlockGraph::by_name(function_.names);
    for (Loop& loop : found) loop.trips = trips(loop, sorted);
    return found;
  }

 private:
  Constants& constants_;
  Function& function_;

  bool inside(const Body& body, Text block) const {
    int place = function_.find(unquoted(block));
    return place >= 0 && body.has[place];
  }

  std::vector<Counter> counters(const Body& body) {
    std::vector<Counter> found;
    for (Text line : function_.lines[body.header]) {
      Scan scan{line};
      Text name, after, changed, by;
      int bits;
      if (!scan.name(name) || !scan.eat(" = phi ") || !(scan.eat("ptr ") || (scan.type(bits) && scan.eat(" ")))) continue;
      const Text *entered = nullptr, *outside = nullptr;
      auto values = incoming(scan.rest);
      for (const auto& [value, block] : values) {
        if (inside(body, block)) {
          if (after.empty()) after = value;
          continue;
        }
        if (!outside) outside = &value;
        int from = function_.find(unquoted(block));
        if (from < 0 || !constants_.reached[from]) continue;
        const Blocks& next = constants_.taken(from);
        if (!entered && std::find(next.begin(), next.end(), body.header) != next.end()) entered = &value;
      }
      const Text* start = entered ? entered : outside;
      Scan step{function_.text_of(after)};
      bool adds = step.eat("add");
      if (!adds && !step.eat("sub")) continue;
      if (!step.flags_and_type(bits) || !step.name(changed) || !step.eat(", ") || !step.number(by)) continue;
      if (!step.rest.empty() || changed != name || to_number(by) == 0) continue;
      found.push_back({start != nullptr, start ? function_.operand(*start) : Operand{}, to_number(by) * (adds ? 1 : -1),
                       name, after});
    }
    return found;
  }

  std::vector<Flip> flips(const Body& body) {
    std::vector<Flip> found;
    for (Text line : function_.lines[body.header]) {
      Scan scan{line};
      Text name, block, second;
      bool values[2];
      auto literal = [&](bool& value) { return (value = scan.eat("true")) || scan.eat("false"); };
      if (!scan.name(name) || !scan.eat(" = phi i1 [ ") || !literal(values[0]) || !scan.eat(", %") ||
          !scan.label(block) || !scan.eat(" ], [ ") || !literal(values[1]) || !scan.eat(", ")) continue;
      bool outside = !inside(body, block);
      found.push_back({function_.id(name), values[!outside], values[outside]});
    }
    return found;
  }

  double trips(const Loop& loop, const Blocks& sorted) {
    double most = 0.0;
    for (int block : sorted) {
      const Blocks& targets = function_.successors[block];
      auto stays = [&](int target) { return loop.body.has[target] != 0; };
      if (!loop.body.has[block] || targets.size() < 2 || std::all_of(targets.begin(), targets.end(), stays)) continue;
      Branch branch;
      Text condition = read_branch(function_.lines[block], branch) ? function_.text_of(branch.condition) : Text();
      bool at_the_end = std::find(targets.begin(), targets.end(), loop.body.header) != targets.end();
      most = std::max(most, runs_twice(condition) ? 2.0 : from_compare(loop.counters, condition, at_the_end));
    }
    return most;
  }

  static bool runs_twice(Text condition) {
    Scan scan{condition};
    Text block;
    return scan.eat("phi i1 [ true, %") && scan.label(block) && scan.eat(" ], [ false, %") && scan.label(block) &&
           scan.eat(" ]");
  }

  double from_compare(const std::vector<Counter>& counters, Text condition, bool at_the_end) {
    Scan scan{condition};
    Text how, sides[2];
    int bits;
    if (!scan.eat("icmp ")) return 0.0;
    scan.eat("samesign ");
    if (!scan.word(how) || !scan.eat(" ") || !scan.type(bits) || !scan.eat(" ") || !scan.name_or_number(sides[0]) ||
        !scan.eat(", ") || !scan.name_or_number(sides[1]) || !scan.rest.empty()) return 0.0;
    for (int i : {0, 1}) {
      auto [counter, offset] = behind(counters, sides[i]);
      Number limit = constants_.at_most(function_.operand(sides[1 - i]));
      if (!counter || !limit) continue;
      int64_t start = counter->starts ? constants_.at_most(counter->start).value_or(0) : 0;
      Wide distance = Wide(*limit) - offset - start;
      if (distance > (1ll << 53) || distance < -(1ll << 53)) throw Unsupported();
      double steps = static_cast<double>(distance) / static_cast<double>(counter->step);
      auto names = uncast(sides[i]);
      bool before = std::find(names.begin(), names.end(), counter->after) == names.end();
      if (how == "eq" || how == "ne") return std::abs(before ? steps + 1 : steps);
      if (how == "ult" || how == "slt") return std::abs(std::ceil(steps) + (before && at_the_end));
      return std::abs(steps);
    }
    return 0.0;
  }

  std::pair<const Counter*, int64_t> behind(const std::vector<Counter>& counters, Text value) {
    auto by_name = [&](Text name) {
      auto found = std::find_if(counters.rbegin(), counters.rend(), [&](const Counter& c) { return c.name == name; });
      return found == counters.rend() ? nullptr : &*found;
    };
    for (Text name : uncast(value)) {
      const Counter* counter = by_name(name);
      for (auto c = counters.rbegin(); !counter && c != counters.rend(); ++c) if (c->after == name) counter = &*c;
      if (counter) return {counter, 0};
      Scan scan{function_.text_of(name)};
      Text changed, by;
      int bits;
      bool adds = scan.eat("add") || scan.eat("or disjoint");
      if (!adds && !scan.eat("sub")) continue;
      if (!scan.flags_and_type(bits) || !scan.name(changed) || !scan.eat(", ") || !scan.number(by)) continue;
      if (!scan.rest.empty() || !by_name(changed)) continue;
      return {by_name(changed), to_number(by) * (adds ? 1 : -1)};
    }
    return {nullptr, 0};
  }

  std::vector<Text> uncast(Text value) const {
    std::vector<Text> names;
    while (names.size() < MAX_CASTS) {
      names.push_back(value);
      Scan scan{function_.text_of(value)};
      int bits;
      if (!scan.eat("trunc") && !scan.eat("zext") && !scan.eat("sext")) break;
      if (!scan.flags_and_type(bits) || !scan.name(value) || !scan.eat(" to")) break;
    }
    return names;
  }
};

inline std::vector<const Loop*> outer_first(const std::vector<Loop>& loops) {
  std::vector<const Loop*> sorted;
  for (const Loop& loop : loops) sorted.push_back(&loop);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->body.size > b->body.size; });
  return sorted;
}

// The smallest loop around each block.
inline std::vector<const Loop*> innermost_loops(const std::vector<Loop>& loops, int blocks) {
  std::vector<const Loop*> table(blocks, nullptr);
  for (const Loop* loop : outer_first(loops)) {
    for (int b = 0; b < blocks; ++b) if (loop->body.has[b]) table[b] = loop;
  }
  return table;
}

// Fixes the counters of one iteration of every loop.
inline void fix_iteration(Constants& constants, const std::vector<const Loop*>& loops, int sample, int samples) {
  std::vector<std::pair<int, int64_t>> values;
  for (size_t i = 0; i < loops.size(); ++i) {
    const Loop& loop = *loops[i];
    double place = ((samples == 1 ? 0 : SPREAD[i][sample]) + 0.5) / samples, turn = place * std::max(1.0, loop.trips);
    if (turn > 1e15) throw Unsupported();
    constants.fix(values);
    for (const Counter& counter : loop.counters) {
      Number start = counter.starts ? constants.at_most(counter.start) : Number(0);
      if (!start) continue;
      int64_t value = narrow(*start + Wide(counter.step) * static_cast<int64_t>(turn));
      values.push_back({constants.function.id(counter.name), value});
    }
    for (const Flip& flip : loop.flips) values.push_back({flip.id, turn < 1.0 ? flip.first : flip.other});
  }
  constants.fix(values);
}

// Runs of each block per call of the function.
inline std::vector<double> frequencies(Constants& constants, const std::vector<Loop>& loops) {
  const Function& function = constants.function;
  int n = function.size();
  std::vector<Blocks> taken(n);
  for (int b = 0; b < n; ++b) if (constants.reached[b]) taken[b] = constants.taken(b);
  std::vector<std::pair<int, int>> others;
  Blocks order = BlockGraph::postorder(taken, others);
  std::reverse(order.begin(), order.end());
  auto innermost = innermost_loops(loops, n);
  std::vector<char> ends(n);
  bool open = false;
  for (int b = 0; b < n; ++b) {
    if (!constants.reached[b] || !innermost[b]) continue;
    auto inside = std::count_if(taken[b].begin(), taken[b].end(), [&](int t) { return innermost[b]->body.has[t]; });
    Branch branch;
    ends[b] = inside > 0 && inside < static_cast<long>(taken[b].size()) && read_branch(function.lines[b], branch);
  }
  for (int b : order) open |= taken[b].size() == 2 && !ends[b];
  std::vector<double> trips(n, 1.0), total(n, 0.0);
  for (const Loop& loop : loops) trips[loop.body.header] = std::max(1.0, loop.trips);
  auto sorted = outer_first(loops);
  int samples = open ? SAMPLES : 1;
  if (open && loops.size() > std::size(SPREAD)) throw Unsupported();
  auto ways = [&](int b) { return ends[b] ? Ways{taken[b], &innermost[b]->body} : Ways{constants.taken(b), nullptr}; };
  for (int sample = 0; sample < samples; ++sample) {
    if (open) fix_iteration(constants, sorted, sample, samples);
    else constants.fix({});
    auto runs = runs_of_blocks(order, trips, ways, {}, false);
    for (int b : order) total[b] += runs[b] / samples;
  }
  constants.fix({});
  return total;
}

}  // namespace cdmpp
