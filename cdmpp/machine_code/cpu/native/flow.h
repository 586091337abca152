// How a function runs each time it is called: what its control says, and where data decide.
#pragma once
#include <array>
#include <cmath>
#include <unordered_map>
#include "runner.h"

namespace cdmpp {

constexpr double A_LITTLE = 0.01;    // of the instructions that run
constexpr double CALL_SIZE = 40.0;   // instructions that a call stands for where data decide about it

// What branches that data decide can change: where both ways meet again, the difference of the longest and the shortest,
// in instructions, loads or stores, whichever is largest.
class Undecided {
 public:
  Undecided(const BlockGraph& graph, const Flow& flow) : graph_(graph), flow_(flow), end_(graph.size()), sizes_(end_) {
    std::vector<Blocks> back(graph.predecessors);
    ahead_ = graph.successors;
    back.emplace_back();
    ahead_.emplace_back();
    for (int b : graph.order) if (graph.successors[b].empty()) { back[end_].push_back(b); ahead_[b].push_back(end_); }
    Blocks order = BlockGraph::postorder(back, end_);
    std::reverse(order.begin(), order.end());
    meets_ = dominators(order, ahead_);
    for (int b = 0; b < end_; ++b) {
      for (Text line : graph.lines[b]) {
        bool names_place = (has(line, "(") || has(line, "[")) && !line.starts_with("lea");
        bool stores = line.starts_with("store ") || line.ends_with(')') || line.ends_with('}') || line.starts_with("st");
        sizes_[b][0] += line.starts_with("call") ? CALL_SIZE : 1.0;
        sizes_[b][1] += has(line, " load ") || (names_place && !stores);
        sizes_[b][2] += line.starts_with("store ") || (names_place && stores);
      }
    }
    depends_.assign(end_, 0.0);
    loose_.assign(end_, 0.0);
    Blocks dominator = dominators(graph.order, graph.predecessors);
    std::vector<char> covered(end_);  // by a branch before, whose range holds theirs
    for (int b : graph.order) if (flow.undecided[b] && !covered[b]) follow(b, dominator, covered);
  }

  // Whether no more than a little of what runs can be otherwise.
  bool matter_little() const {
    double part = apart_;
    for (int b = 0; b < end_; ++b) part += loose_[b] * sizes_[b][0];
    return !skipped_ && part <= A_LITTLE * all();
  }
  // Whether they lie in front of more than a little of what runs, however long their ways are.
  bool stand_before_much() const {
    double part = 0.0;
    for (int b = 0; b < end_; ++b) part += depends_[b] * static_cast<double>(graph_.lines[b].size());
    return skipped_ || part > A_LITTLE * all();
  }

 private:
  const BlockGraph& graph_;
  const Flow& flow_;
  int end_;  // behind all blocks that nothing follows
  using Sizes = std::array<double, 3>;  // instructions, and those of them that read and write a place in memory
  std::vector<Sizes> sizes_;            // of blocks
  std::vector<double> depends_, loose_;  // runs of blocks that may be other ones; where no range holds them
  std::vector<Blocks> ahead_;
  Blocks meets_;
  double apart_ = 0.0;    // instructions that may run besides, or not
  bool skipped_ = false;  // a loop that may run was never entered

  double all() const {
    double sum = 0.0;
    for (int b = 0; b < end_; ++b) sum += flow_.runs[b] * static_cast<double>(graph_.lines[b].size());
    return sum;
  }
  struct Range {
    Sizes least, most;
    void join(const Range& other) {
      for (size_t i = 0; i < least.size(); ++i) {
        least[i] = std::min(least[i], other.least[i]);
        most[i] = std::max(most[i], other.most[i]);
      }
    }
    double width() const {
      double widest = 0.0;
      for (size_t i = 0; i < least.size(); ++i) widest = std::max(widest, most[i] - least[i]);
      return widest;
    }
  };
  static constexpr Range NOTHING{{INFINITY, INFINITY}, {0.0, 0.0}}, AT_ONCE{{0.0, 0.0}, {0.0, 0.0}};

  void follow(int b, const Blocks& dominator, std::vector<char>& covered) {
    std::vector<char> seen(end_ + 1);
    int meet = meets_[b];
    if (meet >= 0) seen[meet] = 1;
    for (int next : graph_.successors[b]) if (!seen[next]) BlockGraph::walk(ahead_, next, seen);
    if (meet >= 0) seen[meet] = 0;
    for (const Body& loop : flow_.loops) skipped_ |= seen[loop.header] && flow_.runs[loop.header] == 0.0;
    for (int other = 0; other < end_; ++other) {
      if (seen[other]) depends_[other] = std::max({depends_[other], flow_.runs[other], flow_.runs[b]});
    }
    if (!seen[b] && meet >= 0) {
      Blocks loop_of(end_, -1);  // the largest around a block, but not around the branch
      for (size_t i = 0; i < flow_.loops.size(); ++i) {
        const Body& loop = flow_.loops[i];
        if (loop.has[b]) continue;
        for (int other = 0; other < end_; ++other) {
          bool larger = loop.has[other] && (loop_of[other] < 0 || flow_.loops[loop_of[other]].size < loop.size);
          if (larger) loop_of[other] = static_cast<int>(i);
        }
      }
      std::unordered_map<int, Range> known;
      std::vector<char> open(end_ + flow_.loops.size());
      Range range = NOTHING;
      bool ends = true;
      for (int next : graph_.successors[b]) range.join(ways(next, seen, loop_of, known, open, ends));
      if (ends) {
        // Both ways of two are taken as often, unless others that are not decided lie behind them.
        bool alone = graph_.successors[b].size() == 2;
        for (int other = 0; other < end_; ++other) {
          if (!seen[other] || !flow_.undecided[other]) continue;
          alone = false;
          int before = other;
          while (before >= 0 && before != b) before = dominator[before];
          if (before == b && loop_of[other] < 0) covered[other] = 1;
        }
        apart_ += flow_.runs[b] * range.width() * (alone ? 0.5 : 1.0);
        return;
      }
    }
    for (int other = 0; other < end_; ++other) if (seen[other]) loose_[other] = depends_[other];
  }

  // Instructions from a block until the ways meet, a loop as long as it was; `ends` is false where that is not so simple.
  Range ways(int block, const std::vector<char>& seen, const Blocks& loop_of, std::unordered_map<int, Range>& known,
             std::vector<char>& open, bool& ends) const {
    if (block == end_ || !seen[block]) return AT_ONCE;
    int loop = loop_of[block], node = loop < 0 ? block : end_ + loop;
    if (auto found = known.find(node); found != known.end()) return found->second;
    if (open[node]) { ends = false; return AT_ONCE; }
    open[node] = 1;
    Sizes own{};
    Blocks next;
    if (loop < 0) {
      own = sizes_[block];
      next = ahead_[block];
    } else {
      for (int b = 0; b < end_; ++b) {
        if (!flow_.loops[loop].has[b]) continue;
        double often = flow_.runs[b] / std::max(flow_.entries[loop], 1.0);
        for (size_t i = 0; i < own.size(); ++i) own[i] += often * sizes_[b][i];
        for (int target : ahead_[b]) if (target == end_ || !flow_.loops[loop].has[target]) next.push_back(target);
      }
    }
    Range range = next.empty() ? AT_ONCE : NOTHING;
    for (int target : next) range.join(ways(target, seen, loop_of, known, open, ends));
    open[node] = 0;
    for (size_t i = 0; i < own.size(); ++i) { range.least[i] += own[i]; range.most[i] += own[i]; }
    return known[node] = range;
  }
};

// Tells how many branches data decide, where that changes more than a little of all that runs.
inline void doubt(const BlockGraph& graph, Flow& flow) {
  auto undecided = static_cast<double>(std::count(flow.undecided.begin(), flow.undecided.end(), 1));
  flow.unknown = flow.complete ? 0.0 : 1.0;
  flow.before_much = false;
  if (undecided == 0.0) return;
  Undecided branches(graph, flow);
  flow.unknown = flow.complete && branches.matter_little() ? 0.0 : undecided;
  flow.before_much = !flow.complete || branches.stand_before_much();
}

// How a function runs each time it is called, by what its `control` says.
inline Flow flow_of(Control& control, const BlockGraph& graph) {
  auto live = slice(control, graph);
  Flow flow = Runner(control, graph, live).result();
  doubt(graph, flow);
  return flow;
}

// The same of its `part` behind the checks of arguments, which are taken to pass.
inline Flow flow_behind_checks(Control& control, const BlockGraph& whole, const BlockGraph& part) {
  std::vector<char> leads(whole.size());
  int start = whole.find(part.names[0]);
  BlockGraph::walk(whole.predecessors, start, leads);
  for (int b : whole.order) {
    auto refuses = [&](const Way& way) { return !leads[way.target] && part.find(whole.names[b]) < 0; };
    std::erase_if(control.blocks[b].ways, refuses);
  }
  Flow all = flow_of(control, whole), flow;
  flow.loops = Components(part).bodies;
  flow.complete = all.complete;
  for (const std::string& name : part.names) {
    flow.runs.push_back(all.runs[whole.find(name)]);
    flow.undecided.push_back(all.undecided[whole.find(name)]);
  }
  for (const Body& loop : flow.loops) {
    double entries = 0.0;
    for (size_t i = 0; i < all.loops.size(); ++i) {
      if (whole.names[all.loops[i].header] == part.names[loop.header]) entries = all.entries[i];
    }
    flow.entries.push_back(entries);
  }
  doubt(part, flow);
  return flow;
}

}  // namespace cdmpp
