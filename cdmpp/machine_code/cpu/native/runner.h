// How often blocks run and loops are entered: the function is carried out, as far as its branches need it.
#pragma once
#include <optional>
#include "arithmetic.h"

namespace cdmpp {

struct Flow {
  std::vector<double> runs;        // of each block
  std::vector<Body> loops;         // nested components
  std::vector<double> entries;     // of each loop
  std::vector<char> undecided;     // blocks that end in a branch that data decide
  bool complete = true;            // false where it took too long to follow
  double unknown = 0.0;            // of these branches, where they change more than a little
  bool before_much = false;        // whether they lie in front of more than a little

  double trips(size_t loop) const { return entries[loop] > 0 ? std::max(1.0, runs[loops[loop].header] / entries[loop]) : 1.0; }
};

constexpr int64_t MOST_STEPS = 16000000;  // operations that are carried out for one function
constexpr int64_t FEW_STEPS = 4000000;    // the same where data decide a branch, so that the count is none to rely on
constexpr int MOST_TURNS = 4;            // iterations that are watched as one, where a branch takes turns

// Loops are entered once for each set of values that matter to them; what happened then is kept and counted again.
// In a loop, iterations that go the same way as the one before are counted together.
class Runner {
 public:
  Runner(Control& control, const BlockGraph& graph, const std::vector<Slots>& live)
      : control_(control), graph_(graph), live_(live), cells_(control) {
    flow_.runs.assign(graph.size(), 0.0);
    flow_.loops = Components(graph).bodies;
    flow_.undecided.assign(graph.size(), 0);
    flow_.complete = control.complete;
    build();
    places_.resize(regions_.size());
    Entry whole;
    follow(0, 0, whole);
    std::vector<double> times(entries_.size() + 1, 0.0);
    settle(whole, 1.0, times);
    flow_.entries.assign(flow_.loops.size(), 0.0);
    for (size_t i = entries_.size(); i-- > 0;) {
      if (times[i] == 0.0) continue;
      flow_.entries[entries_[i].region - 1] += times[i];
      settle(entries_[i], times[i], times);
    }
  }
  Flow result() { return std::move(flow_); }

 private:
  struct Region {
    int parent = -1, depth = 0;
    Blocks own;                // blocks in no loop inside it
    Slots reads, writes;
  };
  struct Outcome { int slot; uint64_t value; bool known; };
  // What one run of a region does.
  struct Entry {
    int region = 0, exit = -1;
    std::vector<Outcome> outcomes;
    std::vector<double> runs;                    // of own blocks
    std::vector<std::pair<int, double>> inside;  // entries of loops inside, and how often they happen
    bool settled = true;                         // false where a branch took turns
    size_t sealed = 0;                           // of `inside`: what is not added to any more

    void add(int index, double times) {
      if (inside.size() > sealed && inside.back().first == index) inside.back().second += times;
      else inside.push_back({index, times});
    }
  };
  struct Key {
    int block;
    std::vector<uint64_t> values;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t hash = static_cast<uint64_t>(key.block) + 0x9e3779b97f4a7c15;
      for (uint64_t value : key.values) hash = (std::rotl(hash, 5) ^ value) * 0x9e3779b97f4a7c15;
      return hash;
    }
  };

  Control& control_;
  const BlockGraph& graph_;
  const std::vector<Slots>& live_;
  Arithmetic cells_;
  Flow flow_;
  std::vector<Region> regions_;  // the whole function, then its loops
  Blocks region_of_, own_place_;
  std::vector<std::unordered_map<Key, int, Hash>> places_;  // of entries, by region
  std::unordered_map<int, std::vector<int>> needed_;        // slots that matter to a loop entered at a block
  std::vector<Entry> entries_;
  std::vector<uint32_t> turns_ = std::vector<uint32_t>(graph_.size(), 0);
  int64_t steps_ = 0, most_steps_ = MOST_STEPS;

  void build() {
    size_t slots = control_.starts.size();
    regions_.resize(flow_.loops.size() + 1);
    region_of_.assign(graph_.size(), 0);
    own_place_.assign(graph_.size(), 0);
    Blocks sorted;
    for (size_t i = 0; i < flow_.loops.size(); ++i) sorted.push_back(static_cast<int>(i));
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return flow_.loops[a].size > flow_.loops[b].size; });
    for (int loop : sorted) {
      const Body& body = flow_.loops[loop];
      int outer = region_of_[body.header];
      regions_[loop + 1].parent = outer;
      regions_[loop + 1].depth = regions_[outer].depth + 1;
      for (int b = 0; b < graph_.size(); ++b) if (body.has[b]) region_of_[b] = loop + 1;
    }
    for (Region& region : regions_) { region.reads = Slots(slots); region.writes = Slots(slots); }
    for (int block : graph_.order) {
      Region& innermost = regions_[region_of_[block]];
      own_place_[block] = static_cast<int>(innermost.own.size());
      innermost.own.push_back(block);
      for (int region = region_of_[block]; region >= 0; region = regions_[region].parent) {
        Slots &reads = regions_[region].reads, &writes = regions_[region].writes;
        const ControlBlock& body = control_.blocks[block];
        for (const Op& op : body.ops) { each_source(op, [&](int source) { reads.add(source); }); writes.add(op.dst); }
        if (body.decider >= 0) reads.add(body.decider);
        for (const Way& way : body.ways) for (const Copy& copy : way.copies) { reads.add(copy.src); writes.add(copy.dst); }
      }
    }
  }
  bool inside(int block, int region) const { return region == 0 || flow_.loops[region - 1].has[block]; }

  void settle(const Entry& entry, double times, std::vector<double>& all) {
    const Blocks& own = regions_[entry.region].own;
    for (size_t i = 0; i < own.size(); ++i) flow_.runs[own[i]] += times * entry.runs[i];
    for (auto [inner, often] : entry.inside) all[inner] += times * often;
  }

  // The way that `block` takes.
  const Way& decided(int block, Entry& entry) {
    const ControlBlock& body = control_.blocks[block];
    if (body.decider < 0 || body.ways.size() == 1) return body.ways[0];
    uint64_t value;
    if (!cells_.decide(body.decider, value)) {
      flow_.undecided[block] = 1;
      most_steps_ = FEW_STEPS;
      entry.settled = false;
      return body.ways[turns_[block]++ % body.ways.size()];
    }
    for (size_t i = 0; i + 1 < body.ways.size(); ++i) if (body.ways[i].value == value) return body.ways[i];
    return body.ways.back();
  }
  void copy(const std::vector<Copy>& copies) {
    if (copies.size() == 1) { cells_.cells[copies[0].dst] = cells_.cells[copies[0].src]; return; }
    scratch_.clear();
    for (const Copy& one : copies) scratch_.push_back(cells_.cells[one.src]);
    for (size_t i = 0; i < copies.size(); ++i) cells_.cells[copies[i].dst] = scratch_[i];
  }
  std::vector<Cell> scratch_;

  // Goes on from `block` until the region is left, or ends.
  void follow(int region, int block, Entry& entry) {
    const Blocks& own = regions_[region].own;
    entry.region = region;
    entry.runs.assign(own.size(), 0.0);
    int first = block;
    Watch watch(*this, region, first, entry);
    for (;;) {
      if (++steps_ > most_steps_) flow_.complete = false;
      int next;
      if (region_of_[block] == region) {
        entry.runs[own_place_[block]] += 1.0;
        const ControlBlock& body = control_.blocks[block];
        for (const Op& op : body.ops) cells_.run(op);
        steps_ += static_cast<int64_t>(body.ops.size());
        if (body.ways.empty()) { entry.exit = -1; return; }
        const Way* way = &decided(block, entry);
        if (!flow_.complete) way = leaving(body, region, way);
        copy(way->copies);
        watch.path(static_cast<uint64_t>(block) * 64 + static_cast<uint64_t>(way - body.ways.data()));
        next = way->target;
      } else {
        int inner = region_of_[block];
        while (regions_[inner].parent != region) inner = regions_[inner].parent;
        int index = enter(inner, block);
        const Entry& happened = entries_[index];
        entry.add(index, 1.0);
        entry.settled &= happened.settled;
        watch.path(0x8000000000000000 | static_cast<uint64_t>(index));
        next = happened.exit;
        if (next < 0) { entry.exit = -1; return; }
      }
      if (!inside(next, region)) { entry.exit = next; return; }
      block = next;
      if (block == first && region > 0) watch.arrive();
    }
  }
  // Once there is no time left, loops are left where they can be.
  const Way* leaving(const ControlBlock& body, int region, const Way* way) const {
    for (const Way& other : body.ways) if (!inside(other.target, region)) return &other;
    return way;
  }
  // Index of what happens from here on, which is carried out the first time.
  int enter(int region, int block) {
    auto [slots, is_new] = needed_.try_emplace(block * static_cast<int>(regions_.size()) + region);
    if (is_new) slots->second = live_[block].in_both(regions_[region].reads);
    Key key{block, {}};
    uint64_t known = 0;
    for (int slot : slots->second) {
      Cell& cell = cells_.cells[slot];
      if (cell.step || cell.odd) cells_.ahead = 0;
      key.values.push_back(cell.known ? cell.value : 0);
      known = known << 1 | (known >> 63 ^ cell.known);
    }
    key.values.push_back(known);
    auto found = places_[region].find(key);
    if (found != places_[region].end()) {
      for (const Outcome& outcome : entries_[found->second].outcomes) {
        cells_.cells[outcome.slot] = {outcome.value, 0, outcome.known, false};
      }
      steps_ += 4 + static_cast<int64_t>(key.values.size());
      return found->second;
    }
    int64_t ahead = cells_.ahead;
    std::vector<Cell> before = cells_.cells;  // what goes on growing outside
    for (Cell& cell : cells_.cells) { cell.step = 0; cell.odd = false; }
    Entry entry;
    follow(region, block, entry);
    if (entry.exit >= 0) {
      for (int slot : live_[entry.exit].in_both(regions_[region].writes)) {
        const Cell& cell = cells_.cells[slot];
        entry.outcomes.push_back({slot, cell.value, cell.known});
      }
    }
    cells_.cells.swap(before);
    for (const Outcome& outcome : entry.outcomes) cells_.cells[outcome.slot] = {outcome.value, 0, outcome.known, false};
    cells_.ahead = ahead;
    compact(entry.inside);
    entries_.push_back(std::move(entry));
    int index = static_cast<int>(entries_.size()) - 1;
    places_[region].emplace(std::move(key), index);
    return index;
  }
  static void compact(std::vector<std::pair<int, double>>& inside) {
    std::sort(inside.begin(), inside.end(), [](auto& a, auto& b) { return a.first < b.first; });
    size_t n = 0;
    for (size_t i = 0; i < inside.size(); ++i) {
      if (n && inside[n - 1].first == inside[i].first) inside[n - 1].second += inside[i].second;
      else inside[n++] = inside[i];
    }
    inside.resize(n);
  }

  // Watches a loop for iterations that are like the one before, and counts those to come that will be, too.
  class Watch {
   public:
    Watch(Runner& runner, int region, int first, Entry& entry) : runner_(runner), region_(region), first_(first), entry_(entry) {}
    void path(uint64_t step) { path_ = (std::rotl(path_, 7) ^ step) * 0x9e3779b97f4a7c15; }

    void arrive() {
      if (paths_.empty() && states_.empty()) carried_ = runner_.live_[first_].in_both(runner_.regions_[region_].writes);
      if (watched_ > 0 && --watched_ == 0) skip();
      paths_.push_back(path_);
      for (int slot : carried_) states_.push_back(runner_.cells_.cells[slot].value);
      path_ = 0;
      if (watched_ > 0) return;
      if (wait_ > 0) { --wait_; trim(); return; }
      int most = entry_.settled ? 1 : MOST_TURNS;
      for (int turns = 1; turns <= most; turns *= 2) if (repeats(turns)) { begin(turns); break; }
      trim();
    }

   private:
    Runner& runner_;
    int region_, first_;
    Entry& entry_;
    uint64_t path_ = 0;
    std::vector<int> carried_;      // slots that matter to the next iteration
    std::vector<uint64_t> paths_;   // that iterations took
    std::vector<uint64_t> states_;  // of `carried_` where each began
    std::vector<Cell> start_;       // where the watched iterations began, with what each grows by
    std::vector<double> runs_;
    size_t inside_ = 0;
    int watched_ = 0, turns_ = 1, wait_ = 0, patience_ = 1;

    void trim() {
      size_t kept = 2 * MOST_TURNS + 1;
      if (paths_.size() < 4 * kept) return;
      paths_.erase(paths_.begin(), paths_.end() - kept);
      states_.erase(states_.begin(), states_.end() - kept * carried_.size());
    }
    const uint64_t* state(size_t back) const { return states_.data() + (paths_.size() - 1 - back) * carried_.size(); }
    bool repeats(int turns) const {
      size_t n = paths_.size(), back = turns;
      if (n < 2 * back + 1) return false;
      for (size_t i = 1; i <= back; ++i) if (paths_[n - i] != paths_[n - i - back]) return false;
      const uint64_t *now = state(0), *once = state(back), *before = state(2 * back);
      for (size_t i = 0; i < carried_.size(); ++i) if (now[i] - once[i] != once[i] - before[i]) return false;
      return true;
    }
    void begin(int turns) {
      start_.clear();
      for (size_t i = 0; i < carried_.size(); ++i) {
        Cell& cell = runner_.cells_.cells[carried_[i]];
        cell.step = cell.known ? static_cast<int64_t>(state(0)[i] - state(turns)[i]) : 0;
        start_.push_back(cell);
      }
      entry_.sealed = inside_ = entry_.inside.size();
      runs_ = entry_.runs;
      runner_.cells_.ahead = Arithmetic::MOST;
      watched_ = turns_ = turns;
    }
    void skip() {
      auto& cells = runner_.cells_.cells;
      int64_t ahead = runner_.cells_.ahead;
      for (size_t i = 0; i < carried_.size(); ++i) {
        const Cell &cell = cells[carried_[i]], &start = start_[i];
        bool grows = cell.known == start.known && !cell.odd && cell.step == start.step &&
                     (!cell.known || cell.value - start.value == static_cast<uint64_t>(start.step));
        if (!grows) ahead = 0;
      }
      if (ahead == Arithmetic::MOST) ahead = 0;  // nothing ends such a loop
      for (int slot : carried_) {
        Cell& cell = cells[slot];
        cell.value += static_cast<uint64_t>(cell.step) * static_cast<uint64_t>(ahead);
      }
      for (Cell& cell : cells) { cell.step = 0; cell.odd = false; }
      if (ahead == 0) {
        wait_ = patience_ = std::min(2 * patience_, 1024);
        return;
      }
      double times = static_cast<double>(ahead);
      for (size_t i = 0; i < entry_.runs.size(); ++i) entry_.runs[i] += times * (entry_.runs[i] - runs_[i]);
      for (size_t i = inside_, end = entry_.inside.size(); i < end; ++i) {
        auto [index, often] = entry_.inside[i];
        entry_.inside.push_back({index, times * often});
      }
      paths_.clear();
      states_.clear();
      patience_ = 1;
    }
  };
};

}  // namespace cdmpp
