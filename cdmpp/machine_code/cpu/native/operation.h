// What one machine instruction asks of a core, where it reads and writes, and the core.
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <unordered_map>
#include "tables.h"
#include "text.h"

namespace cdmpp {

// A few values, without duplicates where they are registers.
template <class T, int N>
struct Few {
  std::array<T, N> values;
  int n = 0;
  void push(T value) {
    if (n == N) throw Unsupported();
    values[n++] = value;
  }
  void add(T value) { if (std::find(begin(), end(), value) == end()) push(value); }
  const T* begin() const { return values.data(); }
  const T* end() const { return values.data() + n; }
  bool operator==(const Few& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
};

struct Term {
  int64_t unknown, factor;
  bool operator==(const Term&) const = default;
  auto operator<=>(const Term&) const = default;
};
using Registers = Few<int, 14>;

template <class Names>
bool is_any_of(int name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

struct Operation {
  int name = 0, width = 8, moved = 0, lanes = 0;
  Registers reads, writes, address_registers;
  bool addressed = false, loads = false, stores = false, scalar = false, masked = false, spills = false;
  Few<Term, 2> terms;
  int64_t displacement = 0;
  int assigned = -1;  // register that becomes the sum of these
  Few<Term, 2> assigned_terms;
  int64_t assigned_offset = 0;
};

// Ids of registers by their names.
class RegisterNames {
 public:
  std::vector<char> is_vector;
  std::vector<std::string> names;
  int id(const std::string& name) {
    auto [found, is_new] = ids_.try_emplace(name, static_cast<int>(is_vector.size()));
    if (is_new) { is_vector.push_back(name[0] == 'v'); names.push_back(name); }
    return found->second;
  }

 private:
  std::unordered_map<std::string, int> ids_;
};

constexpr int64_t FIRST_UNKNOWN = int64_t(1) << 32;  // registers' first values have their own ids

// Unknowns with their factors, sorted, and an offset in bytes; a register that was never written has none.
struct Value {
  Few<Term, MOST_TERMS + 1> terms;
  int64_t offset = 0;
  bool known = false;
};

class Addresses {
 public:
  std::vector<Value> values;  // of each register

  explicit Addresses(size_t registers) : values(registers) {}
  Value sum(const Few<Term, 2>& terms, int64_t offset, int64_t& next) const {
    Few<Term, 2 * (MOST_TERMS + 1)> parts;
    auto add = [&](Term term) {
      for (int i = 0; i < parts.n; ++i) {
        if (parts.values[i].unknown == term.unknown) { parts.values[i].factor += term.factor; return; }
      }
      parts.push(term);
    };
    for (const Term& term : terms) {
      const Value& value = values[term.unknown];
      if (!value.known) { add(term); continue; }
      offset += term.factor * value.offset;
      for (const Term& inner : value.terms) add({inner.unknown, term.factor * inner.factor});
    }
    if (parts.n > MOST_TERMS) return unknown(next);
    Value found;
    found.known = true;
    found.offset = offset;
    for (const Term& part : parts) if (part.factor) found.terms.push(part);
    std::sort(found.terms.values.begin(), found.terms.values.begin() + found.terms.n);
    return found;
  }
  void follow(const Operation& item, const std::vector<char>& is_vector, int64_t& next) {
    if (item.assigned >= 0) {
      values[item.assigned] = sum(item.assigned_terms, item.assigned_offset, next);
      return;
    }
    for (int name : item.writes) if (!is_vector[name]) values[name] = unknown(next);
  }
  static Value unknown(int64_t& next) {
    Value value;
    value.known = true;
    value.terms.push({next++, 1});
    return value;
  }
};

struct Unit {
  uint64_t mask = 0;
  std::vector<int> ports;
  int64_t latency = 0, busy = 0, slots = 0;
};

struct Core {
  double issue_width, window, load_ports, load_bytes, store_ports, store_bytes, store_bytes_per_cycle, load_latency;
  double vector_load_latency, forward_cycles, blocked_cycles, masked_forward_cycles, aliased_cycles;
  double masked_store_cycles, scatter_cycles_per_lane, l1_sets, l1_ways, l2_sets, l2_ways, ports;
  std::vector<std::array<Unit, 2>> units;

  // As Python writes it: the numbers above, then of each operation and width ports as a mask, latency, busy, slots.
  explicit Core(const double* at) {
    for (double* field : {&issue_width, &window, &load_ports, &load_bytes, &store_ports, &store_bytes,
                          &store_bytes_per_cycle, &load_latency, &vector_load_latency, &forward_cycles,
                          &blocked_cycles, &masked_forward_cycles, &aliased_cycles, &masked_store_cycles,
                          &scatter_cycles_per_lane, &l1_sets, &l1_ways, &l2_sets, &l2_ways, &ports}) {
      *field = *at++;
    }
    units.resize(std::size(KIND_OF));
    for (auto& widths : units) {
      for (Unit& unit : widths) {
        unit.mask = static_cast<uint64_t>(*at++);
        for (int64_t* field : {&unit.latency, &unit.busy, &unit.slots}) *field = static_cast<int64_t>(*at++);
        for (int port = 0; port < ports; ++port) if (unit.mask >> port & 1) unit.ports.push_back(port);
      }
    }
  }
  const Unit& unit_of(const Operation& item) const { return units[item.name][item.width == WIDE]; }
  // Places in the core's width.
  int64_t slots_of(const Operation& item) const {
    bool moves_only = (item.name == op::op_move || item.name == op::op_int_move) && item.addressed;
    int64_t slots = moves_only ? 0 : unit_of(item).slots;
    return std::max<int64_t>(1, slots + (item.loads && slots == 0) + item.stores);
  }
};

}  // namespace cdmpp
