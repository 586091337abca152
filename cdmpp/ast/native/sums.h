// Index expressions of a scheduled program as sums of loop variables, quotients and remainders: what is left of them
// once block variables stand for their values and what cannot be is dropped. TVM's simplifier does this when it lowers.
#pragma once

#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "tree.h"

namespace cdmpp {

constexpr int64_t FAR_AWAY = int64_t{1} << 40;

// Whether only what is sure to be what TVM's simplifier leaves may be read: see `doubt`.
inline thread_local bool exactly = false;

struct Doubt : Unsupported {
  using Unsupported::Unsupported;
};

// Where it is set, doubts are gathered and reading goes on.
inline thread_local std::set<std::string>* gathered = nullptr;

// While one lives, doubts only set its `why`, and reading goes on with a guess: who made it has another way to be sure.
// A null `to` ends this for as long as it lives.
class Softly {
 public:
  explicit Softly(Softly* to) : before_(current) { current = to; }
  Softly() : Softly(this) {}
  Softly(const Softly&) = delete;
  ~Softly() { current = before_; }
  const char* why = nullptr;
  inline static thread_local Softly* current = nullptr;

 private:
  Softly* before_;
};

inline thread_local int64_t doubts_so_far = 0;

// What is read may differ from what lowering gives: a guess of how much TVM's simplifier leaves, or of what a region is.
inline void doubt(const char* what) {
  if (!exactly) return;
  ++doubts_so_far;
  if (Softly::current != nullptr) {
    Softly::current->why = what;
    return;
  }
  if (gathered == nullptr) throw Doubt(what);
  gathered->insert(what);
}

// Smallest and largest value.
struct Range {
  int64_t low = -FAR_AWAY;
  int64_t high = FAR_AWAY;
};

struct Sum;

// What a sum adds up: a loop variable, a quotient or remainder of another sum, or an expression of another kind.
struct Atom {
  Node variable = nullptr;
  Node other = nullptr;
  Kind division = Kind::Other;
  int64_t divisor = 0;
  std::shared_ptr<const Sum> inside;
  Range range;
};

struct Sum {
  int64_t constant = 0;
  Vector<std::pair<Atom, int64_t>> terms;  // and their factors
};

inline bool equal(const Atom& x, const Atom& y);

inline bool equal(const Sum& x, const Sum& y) {
  if (&x == &y) return true;
  if (x.constant != y.constant || x.terms.size() != y.terms.size()) return false;
  for (size_t i = 0; i < x.terms.size(); ++i) {
    if (x.terms[i].second != y.terms[i].second || !equal(x.terms[i].first, y.terms[i].first)) return false;
  }
  return true;
}

inline bool equal(const Atom& x, const Atom& y) {
  if (x.variable != y.variable || x.other != y.other || x.division != y.division || x.divisor != y.divisor) return false;
  return x.inside == nullptr || equal(*x.inside, *y.inside);
}

inline void add(Sum& to, const Sum& other, int64_t times) {
  to.constant += times * other.constant;
  for (const auto& [atom, factor] : other.terms) {
    auto same = std::find_if(to.terms.begin(), to.terms.end(), [&](const auto& term) { return equal(term.first, atom); });
    if (same == to.terms.end()) {
      to.terms.emplace_back(atom, times * factor);
    } else if ((same->second += times * factor) == 0) {
      to.terms.erase(same);
    }
  }
}

inline Range range_of(const Sum& sum) {
  Range range{sum.constant, sum.constant};
  for (const auto& [atom, factor] : sum.terms) {
    range.low += factor * (factor > 0 ? atom.range.low : atom.range.high);
    range.high += factor * (factor > 0 ? atom.range.high : atom.range.low);
  }
  return {std::max(range.low, -FAR_AWAY), std::min(range.high, FAR_AWAY)};
}

// ((index % upper) / lower): TVM's canonical simplifier keeps a sum as such splits.
struct Split {
  int64_t lower = 1, upper = std::numeric_limits<int64_t>::max();
  const Atom* index;
};

inline const Atom* only_atom(const Sum& sum, Kind division) {
  bool one = sum.constant == 0 && sum.terms.size() == 1 && sum.terms[0].second == 1;
  return one && sum.terms[0].first.division == division ? &sum.terms[0].first : nullptr;
}

inline Split split_of(const Atom& atom) {
  Split split;
  split.index = &atom;
  if (split.index->division == Kind::FloorDiv) {
    split.lower = atom.divisor;
    split.index = only_atom(*atom.inside, Kind::FloorMod);
  }
  if (split.index != nullptr && split.index->division == Kind::FloorMod) split.upper = split.index->divisor;
  return split;
}

// The terms of a sum as TVM writes them: those that are added first, by falling factor, then those that are taken away.
inline Vector<const std::pair<Atom, int64_t>*> as_written(const Sum& sum) {
  Vector<const std::pair<Atom, int64_t>*> terms;
  for (const auto& term : sum.terms) terms.push_back(&term);
  auto before = [](const auto* one, const auto* other) {
    if (one->second != other->second) return one->second > other->second;
    Split a = split_of(one->first), b = split_of(other->first);
    return a.lower != b.lower ? a.lower > b.lower : a.upper > b.upper;
  };
  for (auto it = terms.begin(); it != terms.end(); ++it) {  // std::stable_sort allocates
    std::rotate(std::upper_bound(terms.begin(), it, *it, before), it, it + 1);
  }
  return terms;
}

inline bool only_variables(const Sum& sum) {
  return std::all_of(sum.terms.begin(), sum.terms.end(), [](const auto& term) { return term.first.variable != nullptr; });
}

// Whether the value of a sum is known from the loops around it.
inline bool only_loops(const Sum& sum) {
  return std::all_of(sum.terms.begin(), sum.terms.end(), [](const auto& term) {
    return term.first.other == nullptr && (term.first.inside == nullptr || only_loops(*term.first.inside));
  });
}

inline int64_t quotient(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Reads expressions below some loops and blocks.
class Sums {
 public:
  // Ranges of loop variables; block variables with their values, outer blocks first.
  Sums(Vector<std::pair<Node, Range>> loops, Bindings bindings)
      : loops_(std::move(loops)), bindings_(std::move(bindings)), bound_(bindings_.size()) {}

  // Whether it is of just these loops and block variables.
  bool below(const Vector<std::pair<Node, Range>>& loops, const Bindings& bindings) const {
    return bindings == bindings_ && std::equal(loops.begin(), loops.end(), loops_.begin(), loops_.end(), [](auto& a, auto& b) {
             return a.first == b.first && a.second.low == b.second.low && a.second.high == b.second.high;
           });
  }

  // Lives as long as this. An expression is read once, unless that is in doubt, of which each question hears again.
  const Sum& of(Node e) const {
    for (const auto& [known, sum] : known_) {
      if (known == e) return sum;
    }
    if (kind_of(e) == Kind::Var) {
      if (const Sum* value = bound(e)) return *value;
    }
    int64_t before = doubts_so_far;
    Sum found = read(e);
    return known_.emplace_back(doubts_so_far == before ? e : nullptr, std::move(found)).second;
  }

  // Whether one of the expressions so far held a quotient of a sum of quotients.
  bool nested() const { return nested_; }

  // Whether a condition always holds, or never.
  std::optional<bool> decided(Node e) const {
    Kind kind = kind_of(e);
    if (kind == Kind::IntImm) return int_value(e) != 0;
    if (kind == Kind::Not) {
      auto inner = decided(child(e, Field::a));
      return inner ? std::optional<bool>(!*inner) : std::nullopt;
    }
    if (kind == Kind::And || kind == Kind::Or) {
      auto a = decided(child(e, Field::a)), b = decided(child(e, Field::b));
      bool strong = kind == Kind::Or;  // what decides alone
      if ((a && *a == strong) || (b && *b == strong)) return strong;
      return a && b ? std::optional<bool>(!strong) : std::nullopt;
    }
    if (kind == Kind::Call && call_name(e) == "likely") return decided(item(list(e, Field::args), 0));
    if (!is_compare(kind) || is_float(child(e, Field::a))) return std::nullopt;
    Sum difference = read(child(e, Field::a));
    add(difference, read(child(e, Field::b)), -1);
    Range range = range_of(difference);
    auto known = [](bool yes, bool no) { return yes || no ? std::optional<bool>(yes) : std::nullopt; };
    bool zero = range.low == 0 && range.high == 0, never_zero = range.low > 0 || range.high < 0;
    switch (kind) {
      case Kind::LT: return known(range.high < 0, range.low >= 0);
      case Kind::LE: return known(range.high <= 0, range.low > 0);
      case Kind::GT: return known(range.low > 0, range.high <= 0);
      case Kind::GE: return known(range.low >= 0, range.high < 0);
      case Kind::EQ: return known(zero, never_zero);
      default: return known(never_zero, zero);
    }
  }

  // Whether `decided` says of a condition what TVM says, whatever else is known of its variables: it bounds sums of them.
  bool plain(Node e) const {
    Kind kind = kind_of(e);
    if (kind == Kind::IntImm) return true;
    if (kind == Kind::And) return plain(child(e, Field::a)) && plain(child(e, Field::b));
    if (kind == Kind::Call && call_name(e) == "likely") return plain(item(list(e, Field::args), 0));
    if (kind < Kind::LT || kind > Kind::GE || is_float(child(e, Field::a))) return false;
    Sum difference = read(child(e, Field::a));
    add(difference, read(child(e, Field::b)), -1);
    return only_variables(difference);
  }

  // Calls visit(Node part) for what is right below an expression.
  template <typename Visit>
  static void below(Node e, Kind kind, const Visit& visit) {
    if (kind == Kind::TensorLoad || kind == Kind::Call) {
      const auto* parts = list(e, kind == Kind::Call ? Field::args : Field::indices);
      for (size_t i = 0; i < parts->size(); ++i) {
        if (Node part = item(parts, i)) visit(part);
      }
    } else {
      for (Field field : children_of(e)) {
        if (Node part = child(e, field)) visit(part);
      }
    }
  }

  // Calls visit(Node variable) for every loop variable that a value depends on.
  template <typename Visit>
  void variables(Node e, const Visit& visit) const {
    Kind kind = kind_of(e);
    if (is_immediate(kind)) return;
    if (kind == Kind::Var || (kind >= Kind::Add && kind <= Kind::FloorMod && !is_float(e))) return variables(of(e), visit);
    below(e, kind, [&](Node part) { variables(part, visit); });
  }

  template <typename Visit>
  void variables(const Sum& sum, const Visit& visit) const {
    for (const auto& term : sum.terms) variables(term.first, visit);
  }

  template <typename Visit>
  void variables(const Atom& atom, const Visit& visit) const {
    if (atom.variable != nullptr) visit(atom.variable);
    if (atom.inside != nullptr) variables(*atom.inside, visit);
    if (atom.other != nullptr && kind_of(atom.other) != Kind::Var) {
      below(atom.other, kind_of(atom.other), [&](Node part) { variables(part, visit); });
    }
  }

 private:
  Sum read(Node e) const {
    Kind kind = kind_of(e);
    switch (kind) {
      case Kind::IntImm: return {int_value(e), {}};
      case Kind::Var: {
        const Sum* value = bound(e);
        return value != nullptr ? *value : variable(e);
      }
      case Kind::Add:
      case Kind::Sub: {
        if (is_float(e)) break;
        Sum sum = read(child(e, Field::a));
        add(sum, read(child(e, Field::b)), kind == Kind::Add ? 1 : -1);
        return sum;
      }
      case Kind::Mul: {
        if (is_float(e)) break;
        Sum a = read(child(e, Field::a)), b = read(child(e, Field::b)), product;
        if (!b.terms.empty()) std::swap(a, b);
        if (!b.terms.empty()) break;
        add(product, a, b.constant);
        if (b.constant == 0) product.terms.clear();
        return product;
      }
      case Kind::Cast:
        if (is_float(e) || is_float(child(e, Field::value))) break;
        doubt("a conversion of integers");
        return read(child(e, Field::value));
      case Kind::FloorDiv:
      case Kind::FloorMod:
      case Kind::Div:
      case Kind::Mod: {
        if (is_float(e)) break;
        Sum divisor = read(child(e, Field::b));
        if (!divisor.terms.empty() || divisor.constant <= 0) break;
        return divided(read(child(e, Field::a)), divisor.constant, kind == Kind::FloorDiv || kind == Kind::Div);
      }
      case Kind::Call:
        if (call_name(e) == "likely") return read(item(list(e, Field::args), 0));
        break;
      default: break;
    }
    Atom atom;
    atom.other = e;
    atom.range = range_of_other(e, kind);
    return {0, {{atom, 1}}};
  }

  Sum variable(Node e) const {
    Atom atom;
    for (const auto& [name, range] : loops_) {
      if (name != e) continue;
      if (range.low == range.high) return {range.low, {}};
      atom.variable = e;
      atom.range = range;
      return {0, {{atom, 1}}};
    }
    atom.other = e;
    return {0, {{atom, 1}}};
  }

  // The value of a block variable; null for others.
  const Sum* bound(Node e) const {
    for (const auto& loop : loops_) {
      if (loop.first == e) return nullptr;
    }
    for (size_t i = bindings_.size(); i-- > 0;) {
      if (bindings_[i].first != e) continue;
      if (!bound_[i]) {
        Softly doubts;
        Sum found = read(bindings_[i].second);
        bound_[i] = {std::move(found), doubts.why};
      }
      if (bound_[i]->second != nullptr) doubt(bound_[i]->second);
      return &bound_[i]->first;
    }
    return nullptr;
  }

  // `sum` as `factor` times the first, plus the second.
  static std::pair<Sum, Sum> parted(const Sum& sum, int64_t factor) {
    Sum multiple, rest;
    multiple.constant = quotient(sum.constant, factor);
    rest.constant = sum.constant - multiple.constant * factor;
    for (const auto& [atom, times] : sum.terms) {
      if (times % factor == 0) {
        multiple.terms.emplace_back(atom, times / factor);
      } else {
        rest.terms.emplace_back(atom, times);
      }
    }
    return {std::move(multiple), std::move(rest)};
  }

  // Quotient or remainder of `sum` by `divisor`, without the parts that divide evenly.
  Sum divided(const Sum& sum, int64_t divisor, bool whole) const {
    for (const auto& term : sum.terms) nested_ |= sum.terms.size() > 1 && term.first.inside != nullptr;
    auto [even, rest] = parted(sum, divisor);
    Range range = range_of(rest);
    int64_t low = quotient(range.low, divisor), high = quotient(range.high, divisor);
    if (low == high) {  // always the same quotient
      even.constant += low;
      rest.constant -= low * divisor;
      return whole ? even : rest;
    }
    // (64 x + y) / 768 is x / 12 where y stays below 64; the remainder is 64 (x mod 12) + y.
    int64_t common = 0;
    for (const auto& term : rest.terms) {
      int64_t factor = std::abs(term.second);
      if (factor <= common || factor <= 1 || divisor % factor != 0) continue;
      Range small = range_of(parted(rest, factor).second);
      if (small.low >= 0 && small.high < factor) common = factor;
    }
    if (common > 0) {
      if (rest.terms.size() > 2) doubt("a quotient of more than two variables with a common factor");
      auto [multiple, small] = parted(rest, common);
      Sum inner = divided(multiple, divisor / common, whole);
      if (!whole) {
        add(small, inner, common);
        return small;
      }
      add(even, inner, 1);
      return even;
    }
    if (!whole) {
      if (const Atom* inner = only_atom(rest, Kind::FloorDiv)) {  // (x / c) % d is (x % (c d)) / c
        return divided(divided(*inner->inside, divisor * inner->divisor, false), inner->divisor, true);
      }
      const Atom* inner = only_atom(rest, Kind::FloorMod);
      if (inner != nullptr && inner->divisor % divisor == 0) return divided(*inner->inside, divisor, false);
    }
    Atom atom;
    atom.division = whole ? Kind::FloorDiv : Kind::FloorMod;
    atom.divisor = divisor;
    atom.range = whole ? Range{low, high} : Range{0, divisor - 1};
    bool nested = whole && rest.constant == 0 && rest.terms.size() == 1 && rest.terms[0].second == 1 &&
                  rest.terms[0].first.division == Kind::FloorDiv;
    if (nested) {
      atom.divisor *= rest.terms[0].first.divisor;
      atom.inside = rest.terms[0].first.inside;
    } else {
      atom.inside = make_pooled<const Sum>(std::move(rest));
    }
    Sum result;
    if (whole) result = std::move(even);
    add(result, Sum{0, {{atom, 1}}}, 1);
    return result;
  }

  Range range_of_other(Node e, Kind kind) const {
    if (kind == Kind::Min || kind == Kind::Max) {
      Range a = range_of(read(child(e, Field::a))), b = range_of(read(child(e, Field::b)));
      if (kind == Kind::Min) return {std::min(a.low, b.low), std::min(a.high, b.high)};
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    }
    if (kind == Kind::Select || (kind == Kind::Call && call_name(e) == "if_then_else")) {
      bool call = kind == Kind::Call;
      Range a = range_of(read(call ? item(list(e, Field::args), 1) : child(e, Field::true_value)));
      Range b = range_of(read(call ? item(list(e, Field::args), 2) : child(e, Field::false_value)));
      return {std::min(a.low, b.low), std::max(a.high, b.high)};
    }
    return {};
  }

  Vector<std::pair<Node, Range>> loops_;
  Bindings bindings_;
  mutable Vector<std::optional<std::pair<Sum, const char*>>> bound_;  // and what is doubtful about it
  mutable Deque<std::pair<Node, Sum>> known_;  // never moves its elements; null: was in doubt
  mutable bool nested_ = false;
};

}  // namespace cdmpp
