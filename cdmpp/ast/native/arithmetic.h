// What the compiler leaves of a store's value expression, and the loads in it.
#pragma once

#include "points.h"

namespace cdmpp {

using Guards = std::vector<std::pair<Node, bool>>;

struct Load {
  Node buffer;
  const ffi::ArrayObj* indices;
  Guards guards;
};

struct Arithmetic {
  std::array<double, N_OPS> counts{};
  std::vector<Load> loads;
  // Constant tables (nested selects of constants) that unrolling folds away.
  std::vector<Node> factors;
};

// The arm that is left of a choice whose condition is decided; else the expression itself.
inline Node decided_arm(Node e, const Sums& sums) {
  Kind kind = kind_of(e);
  bool call = kind == Kind::Call && call_name(e) == "if_then_else";
  if (!call && kind != Kind::Select) return e;
  auto holds = sums.decided(call ? item(list(e, Field::args), 0) : child(e, Field::condition));
  if (!holds) return e;
  if (call) return item(list(e, Field::args), *holds ? 1 : 2);
  return child(e, *holds ? Field::true_value : Field::false_value);
}

class Counter {
 public:
  explicit Counter(const Leaf& leaf) : leaf_(leaf), loops_(leaf.loops), sums_(leaf.sums.get()) {
    for (const auto& loop : loops_) {
      if (loop->unrolled || loop->extent == 1) unrolled_.push_back(loop->handle);
    }
  }

  Arithmetic found;

  void value(Node e, const Guards& guards) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || (kind == Kind::Var && sums_ == nullptr)) return;
    if (sums_ != nullptr) {
      if (kind == Kind::Var || (kind >= Kind::Add && kind <= Kind::FloorMod && !is_float(e))) return sum(sums_->of(e), false, guards);
      if (kind >= Kind::EQ && kind <= Kind::Or && sums_->decided(e)) return;
      if (kind == Kind::And || kind == Kind::Or) {
        for (auto [side, rest] : {std::pair(Field::a, Field::b), std::pair(Field::b, Field::a)}) {
          if (sums_->decided(child(e, side))) return value(child(e, rest), guards);
        }
      }
      if (Node arm = decided_arm(e, *sums_); arm != e) return value(arm, guards);
    }
    if (kind == Kind::TensorLoad) {
      const auto* indices = list(e, Field::indices);
      found.loads.push_back({child(e, Field::source), indices, guards});
      return place(child(e, Field::source), indices, guards);
    }
    if (kind == Kind::Mul) {
      Node a = child(e, Field::a), b = child(e, Field::b);
      bool first = foldable(a);
      if (first || foldable(b)) {
        found.factors.push_back(first ? a : b);
        return value(first ? b : a, guards);
      }
    }
    if (kind >= Kind::Add && kind <= Kind::Max) {
      binary(e, kind);
      value(child(e, Field::a), guards);
      value(child(e, Field::b), guards);
      return;
    }
    if (kind == Kind::Select) {
      if (foldable(e)) return;
      add(OP_select);
      value(child(e, Field::condition), guards);
      value(child(e, Field::true_value), guards);
      value(child(e, Field::false_value), guards);
      return;
    }
    if (kind == Kind::Call) return call(e, guards);
    if (is_compare(kind)) {
      if (is_float(child(e, Field::a))) {
        add(OP_fcompare);
      } else {
        add(OP_compare, rate(e));
      }
    } else if (kind == Kind::And || kind == Kind::Or || kind == Kind::Not) {
      add(OP_bool, rate(e));
    } else if (kind == Kind::Cast) {
      add(OP_cast);
    }
    for (Field field : CHILDREN) {
      if (Node below = child(e, field)) value(below, guards);
    }
  }

  // Where in a buffer: what the loops around its allocation add to an index is gone once the buffer shrinks.
  void place(Node buffer, const ffi::ArrayObj* indices, const Guards& guards) {
    const Placement* placement = placement_of(leaf_, buffer);
    for (size_t i = 0; i < indices->size(); ++i) {
      Node index = item(indices, i);
      if (placement == nullptr || kind_of(index) == Kind::TensorLoad) {
        value_of_index(index, guards);
        continue;
      }
      std::vector<char> around = loops_around(leaf_, *placement, i);
      Sum inside = sums_->of(index);
      inside.constant -= placement->low[i];
      std::erase_if(inside.terms, [&](const auto& term) {
        bool stands = true;
        sums_->variables(term.first, [&](Node variable) {
          for (size_t k = 0; k < loops_.size(); ++k) stands &= loops_[k]->handle != variable || around[k];
        });
        return stands && term.first.other == nullptr;
      });
      sum(inside, true, guards);
    }
  }

  // Index arithmetic: the divisions stay, most additions and products become strided addresses.
  void value_of_index(Node e, const Guards& guards) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || (kind == Kind::Var && sums_ == nullptr)) return;
    if (kind == Kind::TensorLoad) return value(e, guards);
    if (sums_ != nullptr && (kind == Kind::Var || (kind >= Kind::Add && kind <= Kind::FloorMod))) return sum(sums_->of(e), true, guards);
    if (is_division(kind)) {
      Node divisor = child(e, Field::b);
      bool power_of_two = kind_of(divisor) == Kind::IntImm && (int_value(divisor) & (int_value(divisor) - 1)) == 0;
      add(power_of_two ? OP_int : OP_intdiv, rate(e));
    } else if (kind == Kind::Add || kind == Kind::Sub || kind == Kind::Mul || kind == Kind::Min || kind == Kind::Max) {
      add(OP_int, rate(e));
    }
    if (kind == Kind::Call) {
      const auto* args = list(e, Field::args);
      for (size_t i = 0; i < args->size(); ++i) value_of_index(item(args, i), guards);
      return;
    }
    for (Field field : CHILDREN) {
      if (Node below = child(e, field)) value_of_index(below, guards);
    }
  }

 private:
  // What computing a sum takes, below an index or as a value. Of its terms the first ones are added first.
  void sum(const Sum& all, bool index, const Guards& guards) {
    std::vector<Node> before;
    bool first = true;
    for (const auto& [atom, factor] : all.terms) {
      std::vector<Node> own;
      sums_->variables(atom, [&](Node variable) { own.push_back(variable); });
      if (atom.inside != nullptr) {
        bool shift = index && (atom.divisor & (atom.divisor - 1)) == 0;
        add(shift ? OP_int : OP_intdiv, rate(own));
        sum(*atom.inside, index, guards);
      } else if (atom.other != nullptr && kind_of(atom.other) != Kind::Var) {
        other(atom.other, index, guards);
      }
      if (factor != 1 && factor != -1) add(OP_int, rate(own));
      before.insert(before.end(), own.begin(), own.end());
      if (!first) add(OP_int, rate(before));
      first = false;
    }
    if (all.constant != 0 && !first) add(OP_int, rate(before));
  }

  void other(Node e, bool index, const Guards& guards) {
    Kind kind = kind_of(e);
    if (kind == Kind::Mul || kind == Kind::Min || kind == Kind::Max || is_division(kind)) {
      add(is_division(kind) ? OP_intdiv : OP_int, rate(e));
      for (Field side : {Field::a, Field::b}) {
        Node part = child(e, side);
        index ? value_of_index(part, guards) : value(part, guards);
      }
    } else {
      index ? value_of_index(e, guards) : value(e, guards);
    }
  }

  // How often per iteration an integer expression is computed once the compiler has moved it out of the loops that it
  // does not depend on, and folded it where only unrolled loops are left.
  double rate(Node e) const {
    std::vector<Node> names;
    loop_variables(e, leaf_, [&](Node variable) { names.push_back(variable); });
    return rate(names);
  }

  double rate(const std::vector<Node>& names) const {
    auto among = [](const std::vector<Node>& all, Node one) { return std::find(all.begin(), all.end(), one) != all.end(); };
    int64_t n = static_cast<int64_t>(loops_.size()), deepest = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (among(names, loops_[i]->handle) && !among(unrolled_, loops_[i]->handle)) deepest = i;
    }
    if (deepest < 0) return 0.0;
    double inner = 1.0;
    for (int64_t i = deepest + 1; i < n; ++i) {
      if (!among(names, loops_[i]->handle)) inner *= static_cast<double>(loops_[i]->extent);
    }
    return 1.0 / inner;
  }

  bool foldable(Node e) const {
    if (!is_table(e)) return false;
    bool known = true;
    loop_variables(e, leaf_, [&](Node variable) {
      known = known && std::find(unrolled_.begin(), unrolled_.end(), variable) != unrolled_.end();
    });
    return known;
  }

  bool folds(Node product) const { return foldable(child(product, Field::a)) || foldable(child(product, Field::b)); }

  void add(Op op, double amount = 1.0) { found.counts[op] += amount; }

  void binary(Node e, Kind kind) {
    if (is_float(e)) {
      if (kind == Kind::Add || kind == Kind::Sub) {
        bool product = false;
        for (Field side : {Field::b, Field::a}) {
          Node c = child(e, side);
          product = product || (kind_of(c) == Kind::Mul && !folds(c));
        }
        if (product) {
          // The multiply below adds its own count; together they are one fused instruction.
          add(OP_fma);
          add(OP_fmul, -1.0);
        } else {
          add(OP_fadd);
        }
      } else if (kind == Kind::Mul) {
        add(OP_fmul);
      } else if (kind == Kind::Min || kind == Kind::Max) {
        add(OP_fcompare);
      } else {
        add(OP_fdiv);
      }
    } else {
      add(is_division(kind) ? OP_intdiv : OP_int, rate(e));
    }
  }

  void call(Node e, const Guards& guards) {
    const std::string& name = call_name(e);
    const auto* args = list(e, Field::args);
    if (name == "if_then_else") {
      Node condition = item(args, 0);
      add(OP_select);
      value(condition, guards);
      for (bool positive : {true, false}) {
        Guards inner = guards;
        inner.emplace_back(condition, positive);
        value(item(args, positive ? 1 : 2), inner);
      }
      return;
    }
    auto any_of = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
    };
    if (name.rfind("shift_", 0) == 0 || name.rfind("bitwise_", 0) == 0) {
      add(OP_int, rate(e));
    } else if (name == "fma") {
      add(OP_fma);
    } else if (any_of({"fabs", "floor", "ceil", "round", "trunc", "nearbyint"})) {
      add(OP_fadd);
    } else if (!any_of({"likely", "reinterpret", "tvm_access_ptr", "address_of"})) {
      add(OP_special);
    }
    for (size_t i = 0; i < args->size(); ++i) {
      if (Node argument = item(args, i)) value(argument, guards);
    }
  }

  const Leaf& leaf_;
  const Loops& loops_;
  const Sums* sums_;
  std::vector<Node> unrolled_;
};

inline Arithmetic count(const Leaf& leaf) {
  Counter counter(leaf);
  counter.value(child(leaf.store, Field::value), {});
  counter.place(child(leaf.store, Field::buffer), list(leaf.store, Field::indices), {});
  return std::move(counter.found);
}

// Share of iterations in which no folded factor is zero: the compiler drops the others.
inline double nonzero_fraction(const std::vector<Node>& factors, const Leaf& leaf, const Points& points) {
  const Loops& loops = leaf.loops;
  if (factors.empty()) return 1.0;
  std::vector<Node> names;
  for (Node factor : factors) loop_variables(factor, leaf, [&](Node variable) { names.push_back(variable); });
  std::vector<const Loop*> involved;
  double n_exact = 1.0;
  for (const auto& loop : loops) {
    if (std::find(names.begin(), names.end(), loop->handle) == names.end()) continue;
    involved.push_back(loop.get());
    n_exact *= static_cast<double>(loop->extent);
  }
  bool sampled = n_exact > MAX_ENUMERATED;
  Env all;
  all.n = static_cast<int64_t>(sampled ? 0 : n_exact);
  if (!sampled) {
    int64_t stride = 1;
    for (const Loop* loop : involved) {
      auto& values = all.row(loop->handle);
      values.resize(all.n);
      for (int64_t i = 0; i < all.n; ++i) values[i] = loop->start + (i / stride) % loop->extent;
      stride *= loop->extent;
    }
    evaluate_bindings(all, leaf.bindings);
  }
  const Env& env = sampled ? points.env : all;
  std::vector<char> kept(env.n, 1);
  for (Node factor : factors) restrict_to(kept, factor, true, env);
  if (sampled) return points.share(kept);
  return static_cast<double>(std::count(kept.begin(), kept.end(), 1)) / static_cast<double>(env.n);
}

}  // namespace cdmpp
