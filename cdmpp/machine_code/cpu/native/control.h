// What decides the branches of a function: integer operations on slots, block by block, whatever language they are from.
#pragma once
#include <bit>
#include <unordered_map>
#include "components.h"

namespace cdmpp {

using Wide = __int128;

// Each makes `dst` from slots `a`, `b` and `c`, at `width` bits; values are kept without sign.
enum class Code : uint8_t {
  COPY,    // the low `width` bits of a
  ADD, SUB, MUL, AND, OR, XOR, SHL, LSHR, ASHR, UDIV, SDIV, UREM, SREM,
  HIGH,    // upper half of the product without signs
  HIGHS,   // upper half of the product with signs
  SEXT,    // a, to `how` bits
  TEST,    // a compared with b, see Test in `how`
  CARRY,   // a + b compared with zero before it wraps, see Test; of flags behind an addition
  SELECT,  // a ? b : c
  INSERT,  // a with the low bits of b in place of those from bit `how` on; what is not known of a is never read
  JOIN,    // the same, where all of a has to be known
  PACKED,  // lanes of `width` bits in 64, see Lanewise in `how`
  SPREAD,  // bits of a from bit `how` on, each over a lane of `width` bits
  SIGNS,   // top bits of the `width` wide lanes of a, shifted by `how` and joined with b
  COUNT,   // bits set
  LOAD,    // integer at address a
  FIND,    // pointer at address a; only where the closure lies if `how`
  LOSE,    // nothing that is known
};
enum Test : uint8_t { EQ, NE, UGT, UGE, ULT, ULE, SGT, SGE, SLT, SLE, NEGATIVE, POSITIVE };
enum Lanewise : uint8_t { 
  PADD, PSUB, PEQ, PGT, PUGT, PUMIN, PUMAX, PSMIN, PSMAX, PABS, PSHL, PLSHR, PSAR, PANDN,
  PTAKE,                // lane of a that a lane of b numbers, zero where there is none
  PMULL, PMULU, PMULS,  // low part of the product, product of lower halves without and with signs
  PSATS, PSATU,         // a as a number of half the width, with and without sign, the nearest there is
};

struct Op { Code code; uint8_t width = 64, how = 0; int dst = 0, a = 0, b = 0, c = 0; };

struct Copy { int dst, src; };
struct Way { int target; uint64_t value; std::vector<Copy> copies; };  // copies of phis happen at once
struct ControlBlock {
  std::vector<Op> ops;
  int decider = -1;  // slot that chooses among the ways: the one with its value, else the last; -1: the first
  std::vector<Way> ways;
};

constexpr uint64_t REGION = uint64_t(1) << 40;  // distance of buffers, which never overlap
constexpr uint64_t TASKS_AT = 8;                 // where TVM tells a thread how many there are

inline uint64_t mask_of(int bits) { return bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; }
inline int64_t signed_of(uint64_t value, int bits) {
  return bits >= 64 ? static_cast<int64_t>(value) : static_cast<int64_t>(value << (64 - bits)) >> (64 - bits);
}

// A function that computes, the part of one that threads run, or what checks arguments and may compute as well.
enum class Role { KERNEL, THREAD, WRAPPER };

// Slots with what they hold at first, and blocks that are numbered as those of the function.
class Control {
 public:
  struct Start { bool known = false; uint64_t value = 0; };
  std::vector<Start> starts;
  std::vector<ControlBlock> blocks;
  std::unordered_map<uint64_t, uint64_t> memory;  // what loads find where nothing stores
  uint64_t closure = 0;                           // where a thread finds its pointers
  bool complete = true;                           // false where a jump leads nobody knows where

  int slot() { starts.push_back({}); return static_cast<int>(starts.size()) - 1; }
  int constant(uint64_t value) {
    auto [found, is_new] = constants_.try_emplace(value, static_cast<int>(starts.size()));
    if (is_new) starts.push_back({true, value});
    return found->second;
  }
  int pointer() {
    starts.push_back({true, ++pointers_ * REGION});
    return static_cast<int>(starts.size()) - 1;
  }
  uint64_t region() { return ++pointers_ * REGION; }

 private:
  std::unordered_map<uint64_t, int> constants_;
  uint64_t pointers_ = 0;
};

// A set of slots.
class Slots {
 public:
  explicit Slots(size_t slots = 0) : words_((slots + 63) / 64) {}
  bool has(int slot) const { return words_[slot >> 6] >> (slot & 63) & 1; }
  void add(int slot) { words_[slot >> 6] |= uint64_t(1) << (slot & 63); }
  void drop(int slot) { words_[slot >> 6] &= ~(uint64_t(1) << (slot & 63)); }
  bool join(const Slots& other) {
    uint64_t fresh = 0;
    for (size_t i = 0; i < words_.size(); ++i) { fresh |= other.words_[i] & ~words_[i]; words_[i] |= other.words_[i]; }
    return fresh != 0;
  }
  bool operator==(const Slots&) const = default;
  std::vector<int> in_both(const Slots& other) const {
    std::vector<int> found;
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t rest = words_[i] & other.words_[i]; rest; rest &= rest - 1) {
        found.push_back(static_cast<int>(64 * i) + std::countr_zero(rest));
      }
    }
    return found;
  }

 private:
  std::vector<uint64_t> words_;
};

template <class Visit>
void each_source(const Op& op, Visit visit) {
  if (op.code == Code::LOSE) return;
  visit(op.a);
  bool one = op.code == Code::COPY || op.code == Code::SEXT || op.code == Code::LOAD || op.code == Code::FIND ||
             op.code == Code::COUNT;
  if (!one) visit(op.b);
  if (op.code == Code::SELECT) visit(op.c);
}

// Numbers the slots anew that anything still uses.
inline void renumber(Control& control, std::vector<Slots>& live) {
  std::vector<int> names(control.starts.size(), -1);
  std::vector<Control::Start> starts;
  auto name = [&](int& slot) {
    if (names[slot] < 0) {
      names[slot] = static_cast<int>(starts.size());
      starts.push_back(control.starts[slot]);
    }
    slot = names[slot];
  };
  for (ControlBlock& body : control.blocks) {
    for (Op& op : body.ops) {
      int sources = 0;
      each_source(op, [&](int) { ++sources; });
      if (sources > 0) name(op.a);
      if (sources > 1) name(op.b);
      if (sources > 2) name(op.c);
      name(op.dst);
    }
    if (body.decider >= 0) name(body.decider);
    for (Way& way : body.ways) for (Copy& copy : way.copies) { name(copy.dst); name(copy.src); }
  }
  for (Slots& block : live) {
    Slots renamed(starts.size());
    for (int slot : block.in_both(block)) if (names[slot] >= 0) renamed.add(names[slot]);
    block = std::move(renamed);
  }
  control.starts = std::move(starts);
}

// Drops what decides no branch; returns the slots that matter where each block begins, behind the copies into it.
inline std::vector<Slots> slice(Control& control, const BlockGraph& graph) {
  size_t slots = control.starts.size();
  std::vector<Slots> live(graph.size(), Slots(slots));
  auto before = [&](int block, std::vector<char>* kept) {
    ControlBlock& body = control.blocks[block];
    Slots now(slots);
    for (const Way& way : body.ways) {
      Slots after = live[way.target];
      for (const Copy& copy : way.copies) after.drop(copy.dst);
      for (const Copy& copy : way.copies) if (live[way.target].has(copy.dst)) after.add(copy.src);
      now.join(after);
    }
    if (body.decider >= 0) now.add(body.decider);
    for (size_t i = body.ops.size(); i-- > 0;) {
      const Op& op = body.ops[i];
      if (!now.has(op.dst)) continue;
      if (kept) (*kept)[i] = 1;
      now.drop(op.dst);
      each_source(op, [&](int source) { now.add(source); });
    }
    return now;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto block = graph.order.rbegin(); block != graph.order.rend(); ++block) {
      changed |= live[*block].join(before(*block, nullptr));
    }
  }
  for (int block = 0; block < graph.size(); ++block) if (graph.place[block] < 0) control.blocks[block] = {};
  for (int block : graph.order) {
    ControlBlock& body = control.blocks[block];
    std::vector<char> kept(body.ops.size());
    before(block, &kept);
    size_t n = 0;
    for (size_t i = 0; i < kept.size(); ++i) if (kept[i]) body.ops[n++] = body.ops[i];
    body.ops.resize(n);
    for (Way& way : body.ways) {
      std::erase_if(way.copies, [&](const Copy& copy) { return !live[way.target].has(copy.dst); });
    }
  }
  renumber(control, live);
  return live;
}

}  // namespace cdmpp
