// The pipeline of pipeline.py, the same step by step; machine_code/native.py compiles it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Terms = std::vector<std::pair<int64_t, int64_t>>;  // unknowns with their factors, sorted
struct Value { Terms terms; int64_t offset = 0; };
struct Place { int64_t offset, width, done; bool masked; };
struct Core {
  int64_t width, window, ports, load_ports, store_ports, store_bytes, forward, blocked, masked_forward, aliased;
  int64_t masked_store, l1_sets, l1_ways, l2_sets, l2_ways, alias_bytes, line_bytes, most_terms;
  double store_bytes_per_cycle;
};
struct Item {
  int64_t ports, latency, busy, slots, gathered, moved, load_pieces, load_latency;
  bool loads, stores, masked, wide;
  std::vector<int64_t> reads, address_registers, writes;
  Terms terms;
  int64_t displacement, assigned;
  Terms assigned_terms;
  int64_t assigned_offset;
};

class Reader {
 public:
  explicit Reader(const int64_t* at) : at_(at) {}
  int64_t next() { return *at_++; }
  std::vector<int64_t> list() {
    std::vector<int64_t> values(next());
    for (auto& value : values) value = next();
    return values;
  }
  Terms terms() {
    Terms values(next());
    for (auto& [unknown, factor] : values) { unknown = next(); factor = next(); }
    return values;
  }

 private:
  const int64_t* at_;
};

class Addresses {
 public:
  Addresses(const std::map<int64_t, Value>& known, int64_t first_unknown, int64_t most)
      : values_(known), next_(first_unknown), most_(most) {}
  Value sum(const Terms& terms, int64_t offset) {
    std::map<int64_t, int64_t> parts;
    for (auto [name, factor] : terms) {
      auto found = values_.find(name);
      if (found == values_.end()) { parts[name] += factor; continue; }
      offset += factor * found->second.offset;
      for (auto [unknown, times] : found->second.terms) parts[unknown] += factor * times;
    }
    if (static_cast<int64_t>(parts.size()) > most_) return {{{next_++, 1}}, 0};
    Value value{{}, offset};
    for (auto part : parts) if (part.second) value.terms.push_back(part);
    return value;
  }
  void follow(const Item& item, const std::vector<bool>& is_vector) {
    if (item.assigned >= 0) {
      values_[item.assigned] = sum(item.assigned_terms, item.assigned_offset);
      return;
    }
    for (int64_t name : item.writes) if (!is_vector[name]) values_[name] = {{{next_++, 1}}, 0};
  }

 private:
  std::map<int64_t, Value> values_;
  int64_t next_, most_;
};

class Pipeline {
 public:
  Pipeline(const Core& core, const std::map<int64_t, Value>& known, std::vector<bool> is_vector, int64_t first_unknown)
      : core_(core), known_(known), is_vector_(std::move(is_vector)), first_unknown_(first_unknown),
        busy_(core.ports + core.load_ports + core.store_ports) {
    for (int64_t i = 0; i < core.load_ports; ++i) load_ports_.push_back(core.ports + i);
    for (int64_t i = 0; i < core.store_ports; ++i) store_ports_.push_back(core.ports + core.load_ports + i);
  }
  int64_t retired = 0, blocked = 0, masked = 0, aliased = 0;
  std::set<std::pair<int64_t, int64_t>> lines;

  void follow(const std::vector<Item>& piece, bool anew) {
    if (anew) {
      ready_.assign(is_vector_.size(), 0);
      addresses_ = std::make_unique<Addresses>(known_, first_unknown_, core_.most_terms);
      stored_.clear();
      stored_low_.clear();
    }
    lines.clear();
    for (const Item& item : piece) step(item);
  }

 private:
  void step(const Item& item) {
    started_ += item.slots;
    int64_t start = started_ / core_.width;
    int64_t n = retirements_.size();
    if (n >= core_.window && retirements_[n - core_.window] > start) {
      start = retirements_[n - core_.window];
      started_ = start * core_.width;
    }
    int64_t at = start;
    for (int64_t name : item.reads) at = std::max(at, ready_[name]);
    Value place;
    int64_t unknowns = -1;
    if (item.loads || item.stores) {
      place = addresses_->sum(item.terms, item.displacement);
      unknowns = interned(place.terms);
      for (int64_t line = first(place.offset); line <= last(place.offset, item.moved); ++line) {
        lines.insert({unknowns, line});
      }
    }
    if (item.gathered) {
      for (int64_t i = 0; i < item.gathered; ++i) at = take(load_ports_, at, 1);
    } else if (item.loads) {
      int64_t needed = start;
      for (int64_t name : item.address_registers) needed = std::max(needed, ready_[name]);
      int64_t loaded = take(load_ports_, needed, item.load_pieces) + item.load_latency;
      at = std::max(at, forwarded(unknowns, place.offset, item.moved, loaded));
    }
    if (item.ports) {
      std::vector<int64_t> ports;
      for (int64_t port = 0; port < core_.ports; ++port) if (item.ports >> port & 1) ports.push_back(port);
      at = take(ports, at, item.busy);
    }
    int64_t done = at + item.latency;
    if (item.stores) done = std::max(done, store(item, unknowns, place.offset, done));
    for (int64_t name : item.writes) ready_[name] = done;
    addresses_->follow(item, is_vector_);
    retired = std::max(retired, done);
    retirements_.push_back(retired);
  }

  int64_t store(const Item& item, int64_t unknowns, int64_t offset, int64_t done) {
    for (int64_t line = first(offset); line <= last(offset, item.moved); ++line) {
      auto& places = stored_[{unknowns, line}];
      auto same = std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.offset == offset; });
      Place place{offset, item.moved, done, item.masked};
      if (same == places.end()) places.push_back(place); else *same = place;
    }
    stored_low_[{unknowns, low(offset)}] = {offset, done};
    int64_t pieces = std::max<int64_t>(1, (item.moved + core_.store_bytes - 1) / core_.store_bytes);
    int64_t left = take(store_ports_, done, pieces * (item.masked && item.wide ? core_.masked_store : 1));
    store_bytes_ = std::max(store_bytes_, static_cast<double>(left)) + item.moved / core_.store_bytes_per_cycle;
    return std::max(left + 1, static_cast<int64_t>(store_bytes_));
  }

  int64_t take(const std::vector<int64_t>& ports, int64_t earliest, int64_t cycles) {
    int64_t best = -1, chosen = 0;
    for (int64_t port : ports) {
      int64_t cycle = earliest;
      while (cycle < static_cast<int64_t>(busy_[port].size()) && busy_[port][cycle]) ++cycle;
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
      int64_t late = found->second.second + core_.aliased;
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
      late = youngest + core_.masked_forward;
      masked += late > loaded;
    } else if (whole) {
      late = (exact >= 0 ? exact : youngest) + core_.forward;
    } else {
      late = youngest + core_.blocked;
      blocked += late > loaded;
    }
    return std::max(loaded, late);
  }

  int64_t interned(const Terms& terms) { return ids_.try_emplace(terms, ids_.size()).first->second; }
  int64_t first(int64_t offset) const { return floor_div(offset, core_.line_bytes); }
  int64_t last(int64_t offset, int64_t width) const { return floor_div(offset + width - 1, core_.line_bytes); }
  int64_t low(int64_t offset) const { return offset - core_.alias_bytes * floor_div(offset, core_.alias_bytes); }

 public:
  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

 private:
  struct Hash {
    size_t operator()(const std::pair<int64_t, int64_t>& key) const {
      return static_cast<size_t>(key.first) * 0x9E3779B97F4A7C15ull ^ static_cast<size_t>(key.second) * 0xC2B2AE3D27D4EB4Full;
    }
  };
  const Core& core_;
  const std::map<int64_t, Value>& known_;
  std::vector<bool> is_vector_;
  int64_t first_unknown_;
  std::vector<std::vector<char>> busy_;
  std::vector<int64_t> load_ports_, store_ports_;
  std::vector<int64_t> ready_, retirements_;
  std::unique_ptr<Addresses> addresses_;
  std::unordered_map<std::pair<int64_t, int64_t>, std::vector<Place>, Hash> stored_;
  std::unordered_map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>, Hash> stored_low_;
  std::map<Terms, int64_t> ids_;
  int64_t started_ = 0;
  double store_bytes_ = 0.0;
};

double conflicts(const std::set<std::pair<int64_t, int64_t>>& lines, int64_t sets, int64_t ways) {
  std::map<std::pair<int64_t, int64_t>, int64_t> used;
  for (auto [unknowns, line] : lines) ++used[{unknowns, line - sets * Pipeline::floor_div(line, sets)}];
  double sum = 0;
  for (auto& [set, n] : used) if (n > ways) sum += static_cast<double>(n);
  return sum;
}

}  // namespace

// text: the core, the registers, what is known of them, the instructions, as pipeline.py writes them. result: retired
// cycles after half of the runs and after all, blocked, masked, aliased loads, conflicts in both caches.
extern "C" void run_pipeline(const int64_t* text, double store_bytes_per_cycle, int64_t runs, int64_t between,
                             int64_t before, double* result) {
  Reader in(text);
  Core core{};
  for (int64_t* field : {&core.width, &core.window, &core.ports, &core.load_ports, &core.store_ports,
                         &core.store_bytes, &core.forward, &core.blocked, &core.masked_forward, &core.aliased,
                         &core.masked_store, &core.l1_sets, &core.l1_ways, &core.l2_sets, &core.l2_ways,
                         &core.alias_bytes, &core.line_bytes, &core.most_terms}) {
    *field = in.next();
  }
  core.store_bytes_per_cycle = store_bytes_per_cycle;
  std::vector<bool> is_vector;
  for (int64_t flag : in.list()) is_vector.push_back(flag != 0);
  int64_t first_unknown = in.next();
  std::map<int64_t, Value> known;
  for (int64_t n = in.next(); n > 0; --n) {
    int64_t name = in.next();
    Terms terms = in.terms();
    std::sort(terms.begin(), terms.end());
    known[name] = {terms, in.next()};
  }
  std::vector<Item> piece(in.next());
  for (Item& item : piece) {
    for (int64_t* field : {&item.ports, &item.latency, &item.busy, &item.slots, &item.gathered, &item.moved,
                           &item.load_pieces, &item.load_latency}) {
      *field = in.next();
    }
    for (bool* field : {&item.loads, &item.stores, &item.masked, &item.wide}) *field = in.next() != 0;
    item.reads = in.list();
    item.address_registers = in.list();
    item.writes = in.list();
    item.terms = in.terms();
    item.displacement = in.next();
    item.assigned = in.next();
    item.assigned_terms = in.terms();
    item.assigned_offset = in.next();
  }
  Pipeline pipeline(core, known, is_vector, first_unknown);
  int64_t middle = 0;
  for (int64_t turn = 0; turn < runs; ++turn) {
    pipeline.follow(piece, turn % between == 0);
    if (turn == before) middle = pipeline.retired;
  }
  result[0] = static_cast<double>(middle);
  result[1] = static_cast<double>(pipeline.retired);
  result[2] = static_cast<double>(pipeline.blocked);
  result[3] = static_cast<double>(pipeline.masked);
  result[4] = static_cast<double>(pipeline.aliased);
  result[5] = conflicts(pipeline.lines, core.l1_sets, core.l1_ways);
  result[6] = conflicts(pipeline.lines, core.l2_sets, core.l2_ways);
}
