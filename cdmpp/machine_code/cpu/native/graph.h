// A function as basic blocks and the ways between them.
#pragma once
#include <algorithm>
#include <unordered_map>
#include "text.h"

namespace cdmpp {

using Blocks = std::vector<int>;

struct Body {
  int header = 0, size = 0;
  std::vector<char> has;  // of each block
};

class BlockGraph {
 public:
  std::string name;
  std::vector<std::string> names;
  std::vector<std::vector<Text>> lines;
  std::vector<Blocks> successors, predecessors;
  Blocks order, place;  // reverse postorder; -1 for what the entry does not lead to

  int size() const { return static_cast<int>(names.size()); }
  int find(Text block) const {
    auto found = index_.find(std::string(block));
    return found == index_.end() ? -1 : found->second;
  }
  int add(Text block) {
    if (!index_.try_emplace(std::string(block), size()).second) throw Unsupported();
    names.emplace_back(block);
    lines.emplace_back();
    return size() - 1;
  }
  // After `successors` are known.
  void link() {
    if (!size()) throw Unsupported();
    predecessors.assign(size(), {});
    for (int block = 0; block < size(); ++block) for (int next : successors[block]) predecessors[next].push_back(block);
    order = postorder(successors);
    std::reverse(order.begin(), order.end());
    place.assign(size(), -1);
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
  }
  // Adds to `seen` all that `from` leads to by `ways`, and itself.
  static void walk(const std::vector<Blocks>& ways, int from, std::vector<char>& seen) {
    Blocks work{from};
    seen[from] = 1;
    while (!work.empty()) {
      int block = work.back();
      work.pop_back();
      for (int next : ways[block]) if (!seen[next]) { seen[next] = 1; work.push_back(next); }
    }
  }
  // Of depth first search from one block.
  static Blocks postorder(const std::vector<Blocks>& ways, int from = 0) {
    std::vector<char> seen(ways.size());
    std::vector<std::pair<int, size_t>> stack{{from, 0}};
    Blocks found;
    seen[from] = 1;
    while (!stack.empty()) {
      auto& [block, next] = stack.back();
      if (next == ways[block].size()) {
        found.push_back(block);
        stack.pop_back();
        continue;
      }
      int target = ways[block][next++];
      if (seen[target]) continue;
      seen[target] = 1;
      stack.push_back({target, 0});
    }
    return found;
  }
  // The part of TVM's wrapper behind the checks of arguments.
  template <class Graph>
  static Graph after_checks(const Graph& whole, Text refusal) {
    int n = whole.size(), start = -1;
    std::vector<char> checks(n), kept;
    for (int b = 0; b < n; ++b) {
      for (Text line : whole.lines[b]) if (has(line, refusal)) { walk(whole.predecessors, b, checks); break; }
    }
    long most = -1;
    for (int b : by_name(whole.names)) {
      bool starts = !checks[b] && std::any_of(whole.predecessors[b].begin(), whole.predecessors[b].end(),
                                              [&](int before) { return checks[before] != 0; });
      if (!starts) continue;
      std::vector<char> after(n);
      walk(whole.successors, b, after);
      long count = std::count(after.begin(), after.end(), 1);
      if (count > most) { most = count; start = b; kept = std::move(after); }
    }
    if (start < 0) return whole;
    Graph part;
    part.name = whole.name;
    Blocks chosen{start};
    for (int b = 0; b < n; ++b) if (kept[b] && b != start) chosen.push_back(b);
    for (int b : chosen) part.lines[part.add(whole.names[b])] = whole.lines[b];
    for (int b : chosen) {
      part.successors.emplace_back();
      for (int next : whole.successors[b]) part.successors.back().push_back(part.find(whole.names[next]));
    }
    part.link();
    return part;
  }
  static Blocks by_name(const std::vector<std::string>& names) {
    Blocks sorted(names.size());
    for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = static_cast<int>(i);
    std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return names[a] < names[b]; });
    return sorted;
  }

 protected:
  // `targets` by name, of each block.
  void link(const std::vector<std::vector<Text>>& targets) {
    for (const auto& labels : targets) {
      successors.emplace_back();
      for (Text label : labels) {
        int block = find(label);
        auto& ways = successors.back();
        if (block >= 0 && std::find(ways.begin(), ways.end(), block) == ways.end()) ways.push_back(block);
      }
    }
    link();
  }

 private:
  std::unordered_map<std::string, int> index_;
};

// Of each block the nearest one that every way from the first of `order` to it leads through; -1 where there is none.
inline Blocks dominators(const Blocks& order, const std::vector<Blocks>& before) {
  Blocks found(before.size(), -1), place(before.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 1; i < order.size(); ++i) {
      int nearest = -1;
      for (int from : before[order[i]]) {
        if (place[from] < 0 || (from != order[0] && found[from] < 0)) continue;
        if (nearest < 0) { nearest = from; continue; }
        for (int other = from; nearest != other;) {
          if (place[nearest] > place[other]) nearest = found[nearest]; else other = found[other];
        }
      }
      changed |= found[order[i]] != nearest;
      found[order[i]] = nearest;
    }
  }
  return found;
}

}  // namespace cdmpp
