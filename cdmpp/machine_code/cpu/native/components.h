// Loops of machine code, some of which have two entries.
#pragma once
#include "graph.h"

namespace cdmpp {

// Bodies of nested strongly connected components, those of one level by their place, the last one's inside first.
class Components {
 public:
  std::vector<Body> bodies;

  explicit Components(const BlockGraph& graph) : graph_(graph) {
    std::vector<std::pair<Blocks, std::vector<char>>> work{{graph.order, std::vector<char>(graph.size())}};
    while (!work.empty()) {
      auto [blocks, headers] = std::move(work.back());
      work.pop_back();
      for (Blocks& part : parts(blocks, headers)) {
        Body body{0, static_cast<int>(part.size()), std::vector<char>(graph.size())};
        for (int block : part) body.has[block] = 1;
        Blocks entries;
        auto entered = [&](int from) { return graph.place[from] >= 0 && !body.has[from]; };
        for (int block : part) {
          const auto& before = graph.predecessors[block];
          if (std::any_of(before.begin(), before.end(), entered)) entries.push_back(block);
        }
        if (entries.empty()) entries.push_back(part[0]);
        body.header = entries[0];
        auto inner = headers;
        for (int block : entries) inner[block] = 1;
        bodies.push_back(std::move(body));
        work.push_back({part, std::move(inner)});
      }
    }
  }

 private:
  const BlockGraph& graph_;

  // Components that have an edge, without edges to `headers`; blocks of each and they themselves by their place.
  std::vector<Blocks> parts(const Blocks& blocks, const std::vector<char>& headers) const {
    std::vector<char> inside(graph_.size()), seen(graph_.size());
    for (int block : blocks) inside[block] = 1;
    auto visit = [&](const std::vector<Blocks>& ways, bool back, int root, Blocks& found) {
      std::vector<std::pair<int, size_t>> stack{{root, 0}};
      seen[root] = 1;
      while (!stack.empty()) {
        auto& [block, next] = stack.back();
        if (next == ways[block].size()) { found.push_back(block); stack.pop_back(); continue; }
        int target = ways[block][next++];
        if (!inside[target] || seen[target] || headers[back ? block : target]) continue;
        seen[target] = 1;
        stack.push_back({target, 0});
      }
    };
    Blocks finished;
    for (int block : blocks) if (!seen[block]) visit(graph_.successors, false, block, finished);
    std::fill(seen.begin(), seen.end(), 0);
    std::vector<Blocks> found;
    for (auto block = finished.rbegin(); block != finished.rend(); ++block) {
      if (seen[*block]) continue;
      Blocks part;
      visit(graph_.predecessors, true, *block, part);
      const Blocks& next = graph_.successors[*block];
      bool repeats = std::find(next.begin(), next.end(), *block) != next.end() && !headers[*block];
      if (part.size() > 1 || repeats) found.push_back(part);
    }
    auto by_place = [&](int a, int b) { return graph_.place[a] < graph_.place[b]; };
    for (Blocks& part : found) std::sort(part.begin(), part.end(), by_place);
    std::sort(found.begin(), found.end(), [&](const Blocks& a, const Blocks& b) { return by_place(a[0], b[0]); });
    return found;
  }
};

}  // namespace cdmpp
