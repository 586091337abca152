// An out-of-order core runs a piece of machine code.
#pragma once
#include <cmath>
#include "operation.h"

namespace cdmpp {

struct Steady { double cycles = 0, blocked_loads = 0, masked_waits = 0, aliased_loads = 0, l1_conflicts = 0, l2_conflicts = 0; };
using Piece = std::vector<const Operation*>;

inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Pipeline {
 public:
  int64_t retired = 0, blocked = 0, masked = 0, aliased = 0;

  Pipeline(const Core& core, const Addresses& known, const std::vector<char>& is_vector)
      : core_(core), known_(known), is_vector_(is_vector), addresses_(known),
        width_(static_cast<int64_t>(core.issue_width)), window_(static_cast<int64_t>(core.window)) {
    int ports = static_cast<int>(core.ports);
    for (int i = 0; i < static_cast<int>(core.load_ports); ++i) load_ports_.push_back(ports++);
    for (int i = 0; i < static_cast<int>(core.store_ports); ++i) store_ports_.push_back(ports++);
    busy_.resize(ports);
  }

  void follow(const Piece& piece, bool anew) {
    if (anew) {
      ready_.assign(is_vector_.size(), 0);
      addresses_ = known_;
      next_ = 2 * FIRST_UNKNOWN;
      stored_.clear();
      stored_low_.clear();
    }
    lines_.clear();
    for (const Operation* item : piece) step(*item);
  }

  // Lines of the latest run that share a set with more of them than it holds.
  double conflicts(double sets, double ways) {
    std::sort(lines_.begin(), lines_.end());
    lines_.erase(std::unique(lines_.begin(), lines_.end()), lines_.end());
    std::vector<Key> used;
    int64_t n_sets = static_cast<int64_t>(sets);
    for (auto [unknowns, line] : lines_) used.push_back({unknowns, line - n_sets * floor_div(line, n_sets)});
    std::sort(used.begin(), used.end());
    double sum = 0;
    for (size_t begin = 0, end = 0; begin < used.size(); begin = end) {
      while (end < used.size() && used[end] == used[begin]) ++end;
      if (static_cast<double>(end - begin) > ways) sum += static_cast<double>(end - begin);
    }
    return sum;
  }

 private:
  using Key = std::pair<int64_t, int64_t>;
  struct Place { int64_t offset, width, done; bool masked; };
  struct Hash {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>(key.first) * 0x9E3779B97F4A7C15ull ^ static_cast<size_t>(key.second) * 0xC2B2AE3D27D4EB4Full;
    }
    size_t operator()(const decltype(Value::terms)& terms) const {
      size_t sum = terms.n;
      for (const Term& term : terms) sum = (sum ^ (*this)(Key{term.unknown, term.factor})) * 0x9E3779B97F4A7C15ull;
      return sum;
    }
  };

  void step(const Operation& item) {
    const Unit& unit = core_.unit_of(item);
    started_ += core_.slots_of(item);
    int64_t start = started_ / width_, n = retirements_.size();
    if (n >= window_ && retirements_[n - window_] > start) {
      start = retirements_[n - window_];
      started_ = start * width_;
    }
    int64_t at = start, unknowns = -1, offset = 0;
    for (int name : item.reads) at = std::max(at, ready_[name]);
    bool placed = item.addressed && !item.lanes && (item.loads || item.stores);
    if (placed) {
      Value place = addresses_.sum(item.terms, item.displacement, next_);
      offset = place.offset;
      unknowns = interned(place.terms);
      for (int64_t line = first(offset); line <= last(offset, item.moved); ++line) lines_.push_back({unknowns, line});
    }
    if (item.lanes && item.loads) {
      for (int i = 0; i < item.lanes; ++i) at = take(load_ports_, at, 1);
    } else if (item.loads && placed) {
      int64_t needed = start;
      for (int name : item.address_registers) needed = std::max(needed, ready_[name]);
      int64_t pieces = std::max<int64_t>(1, ceil_div(item.moved, static_cast<int64_t>(core_.load_bytes)));
      double latency = item.width == 8 ? core_.load_latency : core_.vector_load_latency;
      int64_t loaded = take(load_ports_, needed, pieces) + static_cast<int64_t>(latency);
      at = std::max(at, forwarded(unknowns, offset, item.moved, loaded));
    }
    if (unit.mask) at = take(unit.ports, at, unit.busy * (item.name == op::op_scatter ? item.lanes : 1));
    int64_t done = at + unit.latency;
    if (item.stores && placed) done = std::max(done, store(item, unknowns, offset, done));
    for (int name : item.writes) ready_[name] = done;
    addresses_.follow(item, is_vector_, next_);
    retired = std::max(retired, done);
    retirements_.push_back(retired);
  }

  int64_t store(const Operation& item, int64_t unknowns, int64_t offset, int64_t done) {
    for (int64_t line = first(offset); line <= last(offset, item.moved); ++line) {
      auto& places = stored_[{unknowns, line}];
      auto same = std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.offset == offset; });
      Place place{offset, item.moved, done, item.masked};
      if (same == places.end()) places.push_back(place); else *same = place;
    }
    stored_low_[{unknowns, low(offset)}] = {offset, done};
    int64_t pieces = std::max<int64_t>(1, ceil_div(item.moved, static_cast<int64_t>(core_.store_bytes)));
    int64_t kept = item.masked && item.width > 8 ? rounded(core_.masked_store_cycles) : 1;
    int64_t left = take(store_ports_, done, pieces * kept);
    store_bytes_ = std::max(store_bytes_, static_cast<double>(left)) + item.moved / core_.store_bytes_per_cycle;
    return std::max(left + 1, static_cast<int64_t>(store_bytes_));
  }

  // The first cycle from `earliest` on in which one of `ports` is free; it is taken then.
  int64_t take(const std::vector<int>& ports, int64_t earliest, int64_t cycles) {
    int64_t best = -1, chosen = 0;
    for (int port : ports) {
      int64_t cycle = earliest, known = busy_[port].size();
      while (cycle < known && busy_[port][cycle]) ++cycle;
      if (best < 0 || cycle < best) { best = cycle; chosen = port; }
    }
    auto& taken = busy_[chosen];
    if (static_cast<int64_t>(taken.size()) < best + cycles) taken.resize(2 * (best + cycles));
    for (int64_t i = 0; i < cycles; ++i) taken[best + i] = 1;
    return best;
  }

  int64_t forwarded(int64_t unknowns, int64_t offset, int64_t width, int64_t loaded) {
    auto found = stored_low_.find({unknowns, low(offset)});
    if (found != stored_low_.end() && found->second.first != offset) {
      int64_t late = found->second.second + rounded(core_.aliased_cycles);
      aliased += late > loaded;
      return std::max(loaded, late);
    }
    int64_t youngest = -1, exact = -1;
    bool whole = false, masks = false;
    for (int64_t line = first(offset); line <= last(offset, width); ++line) {
      auto places = stored_.find({unknowns, line});
      if (places == stored_.end()) continue;
      for (const Place& p : places->second) {
        if (p.offset >= offset + width || offset >= p.offset + p.width) continue;
        youngest = std::max(youngest, p.done);
        whole |= p.offset <= offset && offset + width <= p.offset + p.width;
        masks |= p.masked;
        if (p.offset == offset && p.width >= width) exact = p.done;
      }
    }
    if (youngest < 0) return loaded;
    int64_t late;
    if (masks) {
      late = youngest + rounded(core_.masked_forward_cycles);
      masked += late > loaded;
    } else if (whole) {
      late = (exact >= 0 ? exact : youngest) + rounded(core_.forward_cycles);
    } else {
      late = youngest + rounded(core_.blocked_cycles);
      blocked += late > loaded;
    }
    return std::max(loaded, late);
  }

  int64_t interned(const decltype(Value::terms)& terms) {
    return ids_.try_emplace(terms, ids_.size()).first->second;
  }
  static int64_t rounded(double cycles) { return static_cast<int64_t>(std::nearbyint(cycles)); }
  static int64_t first(int64_t offset) { return floor_div(offset, LINE_BYTES); }
  static int64_t last(int64_t offset, int64_t width) { return floor_div(offset + width - 1, LINE_BYTES); }
  static int64_t low(int64_t offset) { return offset - ALIAS_BYTES * floor_div(offset, ALIAS_BYTES); }

  const Core& core_;
  const Addresses& known_;
  const std::vector<char>& is_vector_;
  Addresses addresses_;
  int64_t width_, window_, started_ = 0, next_ = 2 * FIRST_UNKNOWN;
  std::vector<int> load_ports_, store_ports_;
  std::vector<std::vector<char>> busy_;
  std::vector<int64_t> ready_, retirements_;
  std::vector<Key> lines_;
  std::unordered_map<Key, std::vector<Place>, Hash> stored_;
  std::unordered_map<Key, Key, Hash> stored_low_;
  std::unordered_map<decltype(Value::terms), int64_t, Hash> ids_;
  double store_bytes_ = 0.0;
};

// What a run of a piece costs, repeated until `trips` are done.
inline Steady run(const Core& core, const Piece& piece, double trips, const Addresses& known,
                  const std::vector<char>& is_vector) {
  Piece followed(piece.begin(), piece.begin() + std::min<size_t>(piece.size(), LONGEST));
  int64_t n = followed.size(), runs = 2;
  if (n < REPEATED) runs = std::max<int64_t>(4, std::min<int64_t>(24, ceil_div(REPEATED, n)));
  bool anew = trips * static_cast<double>(n) <= 2 * core.window;
  int64_t between = anew ? std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(trips))) : runs;
  if (between < runs) runs = between * std::max<int64_t>(2, ceil_div(runs, between));
  int64_t middle = (between < runs ? runs / between / 2 * between : runs / 2) - 1;
  Pipeline pipeline(core, known, is_vector);
  int64_t cycles = 0;
  for (int64_t turn = 0; turn < runs; ++turn) {
    pipeline.follow(followed, turn % between == 0);
    if (turn == middle) cycles = pipeline.retired;
  }
  double scale = static_cast<double>(piece.size()) / static_cast<double>(n), share = scale / static_cast<double>(runs);
  double first = static_cast<double>(cycles), last = static_cast<double>(pipeline.retired);
  return {scale * (last - first) / static_cast<double>(runs - 1 - middle),
          share * static_cast<double>(pipeline.blocked),
          share * static_cast<double>(pipeline.masked),
          share * static_cast<double>(pipeline.aliased),
          pipeline.conflicts(core.l1_sets, core.l1_ways),
          pipeline.conflicts(core.l2_sets, core.l2_ways)};
}

}  // namespace cdmpp
