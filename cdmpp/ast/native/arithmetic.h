// Twin of arithmetic.py: what the compiler leaves of a store's value expression, and the loads in it.
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

class Counter {
 public:
  explicit Counter(const Loops& loops) : loops_(loops) {
    for (const auto& loop : loops) {
      if (loop->unrolled || loop->extent == 1) unrolled_.push_back(loop->handle);
    }
  }

  Arithmetic found;

  void value(Node e, const Guards& guards) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || kind == Kind::Var) return;
    if (kind == Kind::TensorLoad) {
      const auto* indices = list(e, Field::indices);
      found.loads.push_back({child(e, Field::source), indices, guards});
      for (size_t i = 0; i < indices->size(); ++i) value_of_index(item(indices, i), guards);
      return;
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

  // Index arithmetic: the divisions stay, most additions and products become strided addresses.
  void value_of_index(Node e, const Guards& guards) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || kind == Kind::Var) return;
    if (kind == Kind::TensorLoad) return value(e, guards);
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
  // How often per iteration an integer expression is computed once the compiler has moved it out of the loops that it
  // does not depend on, and folded it where only unrolled loops are left.
  double rate(Node e) const {
    std::vector<Node> names;
    free_variables(e, [&](Node variable) { names.push_back(variable); });
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
    free_variables(e, [&](Node variable) {
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

  const Loops& loops_;
  std::vector<Node> unrolled_;
};

inline Arithmetic count(Node store, const Loops& loops) {
  Counter counter(loops);
  counter.value(child(store, Field::value), {});
  const auto* indices = list(store, Field::indices);
  for (size_t i = 0; i < indices->size(); ++i) counter.value_of_index(item(indices, i), {});
  return std::move(counter.found);
}

// Share of iterations in which no folded factor is zero: the compiler drops the others.
inline double nonzero_fraction(const std::vector<Node>& factors, const Loops& loops, const Points& points) {
  if (factors.empty()) return 1.0;
  std::vector<Node> names;
  for (Node factor : factors) free_variables(factor, [&](Node variable) { names.push_back(variable); });
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
  }
  const Env& env = sampled ? points.env : all;
  std::vector<char> kept(env.n, 1);
  for (Node factor : factors) restrict_to(kept, factor, true, env);
  if (sampled) return points.share(kept);
  return static_cast<double>(std::count(kept.begin(), kept.end(), 1)) / static_cast<double>(env.n);
}

}  // namespace cdmpp
