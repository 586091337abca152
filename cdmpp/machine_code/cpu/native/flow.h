// How a function runs each time it is called: what its control says, and where data decide.
#pragma once
#include "runner.h"

namespace cdmpp {

constexpr double A_LITTLE = 0.01;  // of the instructions that run

// How many branches data decide, where what they decide about is more than a little of all that runs.
inline double unknown_branches(const BlockGraph& graph, const Flow& flow) {
  auto undecided = static_cast<double>(std::count(flow.undecided.begin(), flow.undecided.end(), 1));
  if (undecided == 0.0) return flow.complete ? 0.0 : 1.0;
  int end = graph.size();  // behind all blocks that nothing follows
  std::vector<Blocks> back(graph.predecessors), ahead(graph.successors);
  back.emplace_back();
  ahead.emplace_back();
  for (int b : graph.order) if (graph.successors[b].empty()) { back[end].push_back(b); ahead[b].push_back(end); }
  Blocks order = BlockGraph::postorder(back, end);
  std::reverse(order.begin(), order.end());
  Blocks meets = dominators(order, ahead);
  std::vector<double> depends(end, 0.0);  // runs that may be other ones
  bool skipped = false;                   // a loop that may run was never entered
  for (int b = 0; b < end; ++b) {
    if (!flow.undecided[b]) continue;
    std::vector<char> seen(end + 1);
    if (meets[b] >= 0) seen[meets[b]] = 1;
    for (int next : graph.successors[b]) if (!seen[next]) BlockGraph::walk(ahead, next, seen);
    if (meets[b] >= 0) seen[meets[b]] = 0;
    for (int other = 0; other < end; ++other) {
      if (seen[other]) depends[other] = std::max({depends[other], flow.runs[other], flow.runs[b]});
    }
    for (const Body& loop : flow.loops) skipped |= seen[loop.header] && flow.runs[loop.header] == 0.0;
  }
  double all = 0.0, part = 0.0;
  for (int b = 0; b < end; ++b) {
    all += flow.runs[b] * static_cast<double>(graph.lines[b].size());
    part += depends[b] * static_cast<double>(graph.lines[b].size());
  }
  return flow.complete && !skipped && part <= A_LITTLE * all ? 0.0 : undecided;
}

// How a function runs each time it is called, by what its `control` says.
inline Flow flow_of(Control& control, const BlockGraph& graph) {
  auto live = slice(control, graph);
  Flow flow = Runner(control, graph, live).result();
  flow.unknown = unknown_branches(graph, flow);
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
  flow.unknown = unknown_branches(part, flow);
  return flow;
}

}  // namespace cdmpp
