// What the compiler leaves of a store's value expression, and the loads in it.
#pragma once

#include "points.h"

namespace cdmpp {

using Guards = Vector<std::pair<Node, bool>>;

struct Load {
  Node buffer;
  const ffi::ArrayObj* indices;
  Guards guards;
};

struct Arithmetic {
  std::array<double, N_OPS> counts{};
  Vector<Load> loads;
  // Constant tables (nested selects of constants) that unrolling folds away.
  Vector<Node> factors;
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
  explicit Counter(const Leaf& leaf)
      : leaf_(leaf), loops_(leaf.loops), all_(leaf.sums.get()), sums_(leaf.simplified ? nullptr : all_) {
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
      if (exactly && (kind == Kind::And || kind == Kind::Or)) doubt_joined(e);
      if (Node arm = decided_arm(e, *sums_); arm != e) return value(arm, guards);
      if (kind == Kind::Not && is_compare(kind_of(child(e, Field::a)))) return value(child(e, Field::a), guards);  // x != y
      if (is_compare(kind) && !is_float(child(e, Field::a))) doubt_comparison(e);
      if ((kind == Kind::Min || kind == Kind::Max) && !is_float(e)) doubt("the smaller or larger of two integers");
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
    for (Field field : children_of(e)) {
      if (Node below = child(e, field)) value(below, guards);
    }
  }

  // Where in a buffer: what the loops around its allocation add to an index is gone once the buffer shrinks.
  void place(Node buffer, const ffi::ArrayObj* indices, const Guards& guards) {
    const Placement* placement = placement_of(leaf_, buffer);
    Softly* before = Softly::current;
    for (size_t i = 0; i < indices->size(); ++i) {
      Node index = item(indices, i);
      Vector<char> around;
      if (placement != nullptr) around = loops_around(leaf_, *placement, i);
      bool moved = placement != nullptr && (placement->low[i] != 0 || std::count(around.begin(), around.end(), 1) > 0);
      Softly surely(nullptr);
      if (exactly && has_load(index)) doubt_loads(index);
      if (placement == nullptr || kind_of(index) == Kind::TensorLoad || (exactly && !moved)) {
        Softly again(before);
        value_of_index(index, guards);
        continue;
      }
      Sum inside = all_->of(index);
      inside.constant -= placement->low[i];
      std::erase_if(inside.terms, [&](const auto& term) {
        bool stands = true;
        all_->variables(term.first, [&](Node variable) {
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
    if (sums_ != nullptr) doubt("an index that is no sum");
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
    for (Field field : children_of(e)) {
      if (Node below = child(e, field)) value_of_index(below, guards);
    }
  }

 private:
  // What computing a sum takes, below an index or as a value.
  void sum(const Sum& all, bool index, const Guards& guards) {
    if (exactly) {
      doubt_sum(all);
      doubt_bounded(all, leaf_.guards);
      doubt_bounded(all, guards);
    }
    Vector<Node> before;
    bool first = true, constant = all.constant != 0;
    auto add_constant = [&] {
      if (constant && !first) add(OP_int, rate(before));
      first = first && !constant;
      constant = false;
    };
    for (const auto* term : as_written(all)) {
      const auto& [atom, factor] = *term;
      if (factor < 0 && all.constant > 0) add_constant();
      Vector<Node> own;
      all_->variables(atom, [&](Node variable) { own.push_back(variable); });
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
    add_constant();
  }

  // `x % 4 == 0 and x / 4 == 0` is x == 0.
  void doubt_joined(Node e) const {
    Vector<Node> first = divided_variables(child(e, Field::a)), second = divided_variables(child(e, Field::b));
    for (Node variable : first) {
      if (std::find(second.begin(), second.end(), variable) != second.end()) doubt("two conditions that may be one");
    }
  }

  Vector<Node> divided_variables(Node condition) const {
    Kind kind = kind_of(condition);
    Vector<Node> found;
    if (kind == Kind::Not || kind == Kind::And || kind == Kind::Or || is_compare(kind)) {
      for (Field side : {Field::a, Field::b}) {
        Node part = kind == Kind::Not && side == Field::b ? nullptr : child(condition, side);
        if (part == nullptr || is_float(part) || (kind >= Kind::LT && kind <= Kind::GE)) continue;
        if (!is_compare(kind)) {
          for (Node variable : divided_variables(part)) found.push_back(variable);
          continue;
        }
        const Sum sum = all_->of(part);
        for (const auto& term : sum.terms) {
          if (term.first.inside != nullptr) all_->variables(term.first, [&](Node variable) { found.push_back(variable); });
        }
      }
    }
    return found;
  }

  // An index that is loaded depends on what is left of the index of that load.
  void doubt_loads(Node e) const {
    Kind kind = kind_of(e);
    if (kind == Kind::TensorLoad && placement_of(leaf_, child(e, Field::source)) != nullptr) {
      doubt("an index that is loaded from a buffer of the program's own");
    }
    if (is_immediate(kind) || kind == Kind::Var) return;
    Sums::below(e, kind, [&](Node part) { doubt_loads(part); });
  }

  // A bound of a sum stays as it is, unless all that moves by less than a common factor of the rest goes.
  void doubt_comparison(Node e) const {
    if (!exactly) return;
    Sum a = sums_->of(child(e, Field::a)), b = sums_->of(child(e, Field::b));
    if (a.terms.empty()) std::swap(a, b);
    if (!b.terms.empty() || a.constant != 0) doubt("a comparison of two sums");
    int64_t common = 0;
    auto terms = as_written(a);
    for (const auto* term : terms) {
      if (term->second < 0) doubt("a comparison of a difference");
      if (terms.size() == 1 && term->first.inside != nullptr && kind_of(e) > Kind::NE) doubt("a comparison of a quotient");
      if (term != terms.back()) common = std::gcd(common, term->second);
    }
    common = std::gcd(common, b.constant);
    if (common != 1 && (terms.size() > 1 || terms[0]->second > 1)) doubt("a comparison that can be divided");
  }

  // What TVM's simplifier may write otherwise than `sum` counts.
  static void doubt_sum(const Sum& all) {
    bool added = all.constant > 0;
    for (const auto& [atom, factor] : all.terms) {
      added |= factor > 0;
      if (atom.other != nullptr) doubt("an integer that is no sum of loop variables");
      if (atom.inside == nullptr) continue;
      const Atom* remainder = only_atom(*atom.inside, Kind::FloorMod);
      const Sum& index = remainder != nullptr && atom.division == Kind::FloorDiv ? *remainder->inside : *atom.inside;
      if (index.constant != 0 || range_of(index).low < 0) doubt("a quotient of what a constant is added to");
      for (const auto& term : index.terms) {
        if (term.first.variable == nullptr) doubt("a quotient of a quotient");
        if (remainder != nullptr && term.second % atom.divisor == 0) doubt("a quotient of a remainder that parts");
      }
      for (const auto& [other_atom, other_factor] : all.terms) {
        if (merge(atom, factor, other_atom, other_factor)) doubt("quotient and remainder that join");
      }
    }
    if (!all.terms.empty() && !added) doubt("a sum that only takes away");
  }

  // Behind `x < 4` or `x / 8 == 0` TVM knows more of quotients and remainders of x.
  void doubt_bounded(const Sum& all, const Guards& guards) const {
    for (const auto& [condition, positive] : guards) {
      for (const auto& term : all.terms) {
        if (term.first.inside == nullptr) continue;
        all_->variables(term.first, [&, guard = condition](Node variable) {
          if (bounds(guard, variable)) doubt("a quotient behind a bound of its variable");
        });
      }
    }
  }

  bool bounds(Node condition, Node variable) const {
    Kind kind = kind_of(condition);
    if (kind == Kind::Not) return bounds(child(condition, Field::a), variable);
    if (kind == Kind::And || kind == Kind::Or) {
      return bounds(child(condition, Field::a), variable) || bounds(child(condition, Field::b), variable);
    }
    if (!is_compare(kind)) return kind != Kind::IntImm;
    if (is_float(child(condition, Field::a))) return false;
    Sum difference = all_->of(child(condition, Field::a));
    cdmpp::add(difference, all_->of(child(condition, Field::b)), -1);
    if (difference.terms.size() != 1 || difference.terms[0].first.division == Kind::FloorMod) return false;
    bool found = false;
    all_->variables(difference.terms[0].first, [&](Node one) { found = found || one == variable; });
    return found;
  }

  // (x / 6) * 6 + x % 6 is x.
  static bool merge(const Atom& one, int64_t factor, const Atom& other, int64_t other_factor) {
    Split a = split_of(one), b = split_of(other);
    if (&one == &other || factor % other_factor != 0 || a.lower != b.upper) return false;
    return a.lower == factor / other_factor * b.lower;
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
    Vector<Node> names;
    loop_variables(e, leaf_, [&](Node variable) { names.push_back(variable); });
    return rate(names);
  }

  double rate(const Vector<Node>& names) const {
    auto among = [](const Vector<Node>& all, Node one) { return std::find(all.begin(), all.end(), one) != all.end(); };
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
      if (sums_ != nullptr) {  // TVM makes one choice of two where the other arms are equal
        Node arm = decided_arm(item(args, 1), *sums_);
        if (kind_of(arm) == Kind::Call && call_name(arm) == "if_then_else") doubt("a choice within a choice");
      }
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
  const Sums* all_;
  const Sums* sums_;  // null where TVM has simplified: what is there is counted
  Vector<Node> unrolled_;
};

inline Arithmetic count(const Leaf& leaf) {
  Counter counter(leaf);
  counter.value(child(leaf.store, Field::value), {});
  counter.place(child(leaf.store, Field::buffer), list(leaf.store, Field::indices), {});
  return std::move(counter.found);
}

// Share of iterations in which no folded factor is zero: the compiler drops the others.
inline double nonzero_fraction(const Vector<Node>& factors, const Leaf& leaf, const Points& points) {
  const Loops& loops = leaf.loops;
  if (factors.empty()) return 1.0;
  Vector<Node> names;
  for (Node factor : factors) loop_variables(factor, leaf, [&](Node variable) { names.push_back(variable); });
  Vector<const Loop*> involved;
  double n_exact = 1.0;
  for (const auto& loop : loops) {
    if (std::find(names.begin(), names.end(), loop->handle) == names.end()) continue;
    involved.push_back(loop.get());
    n_exact *= static_cast<double>(loop->extent);
  }
  bool sampled = n_exact > MAX_ENUMERATED;
  Env all(static_cast<int64_t>(sampled ? 0 : n_exact), leaf.bindings);
  if (!sampled) {
    int64_t stride = 1;
    for (const Loop* loop : involved) {
      auto& values = all.row(loop->handle);
      values.resize(all.n);
      for (int64_t i = 0; i < all.n; ++i) values[i] = loop->start + (i / stride) % loop->extent;
      stride *= loop->extent;
    }
  }
  const Env& env = sampled ? points.env() : all;
  Vector<char> kept(env.n, 1);
  for (Node factor : factors) restrict_to(kept, factor, true, env);
  if (sampled) return points.share(kept);
  return static_cast<double>(std::count(kept.begin(), kept.end(), 1)) / static_cast<double>(env.n);
}

}  // namespace cdmpp
