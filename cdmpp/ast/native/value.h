// Numbers at many points at once, and what index expressions do with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "pool.h"
#include "reflection.h"

namespace cdmpp {

// Block variables with their values, outer blocks first. Lowered programs have none.
using Bindings = Vector<std::pair<Node, Node>>;

// Values of the loop variables at n points; those of block variables are added once an expression asks.
struct Env {
  int64_t n = 0;
  const Bindings* bindings = nullptr;
  mutable Vector<std::pair<Node, Vector<int64_t>>> rows;

  Env() = default;
  Env(int64_t points, const Bindings& bound) : n(points), bindings(&bound) {}

  Vector<int64_t>& row(Node variable) const {
    for (auto& [handle, values] : rows) {
      if (handle == variable) return values;
    }
    rows.emplace_back(variable, Vector<int64_t>());
    return rows.back().second;
  }

  const int64_t* find(Node variable) const {
    for (const auto& [handle, values] : rows) {
      if (handle == variable) return values.data();
    }
    return nullptr;
  }
};

// One number per point; one number for all points where it is uniform. int64, or float64 where floats occur.
struct Value {
  bool real = false;
  bool uniform = true;
  int64_t one = 0;
  double one_real = 0.0;
  const int64_t* many = nullptr;
  Vector<int64_t> own;
  Vector<double> reals;

  Value() = default;
  Value(Value&&) = default;
  Value& operator=(Value&&) = default;
  Value(const Value&) = delete;

  static Value of(int64_t number) {
    Value v;
    v.one = number;
    return v;
  }

  int64_t* claim(int64_t n) {
    uniform = false;
    own.resize(n);
    many = own.data();
    return own.data();
  }
  double* claim_real(int64_t n) {
    real = true;
    uniform = false;
    reals.resize(n);
    return reals.data();
  }
  int64_t integer(int64_t i) const {
    if (real) return static_cast<int64_t>(uniform ? one_real : reals[i]);
    return uniform ? one : many[i];
  }
  double number(int64_t i) const {
    if (real) return uniform ? one_real : reals[i];
    return static_cast<double>(uniform ? one : many[i]);
  }
  bool truth(int64_t i) const { return real ? number(i) != 0.0 : integer(i) != 0; }
};

inline int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}
inline int64_t floor_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}

template <typename F>
Value zip(const Value& a, const Value& b, int64_t n, const F& f) {
  if (a.uniform && b.uniform) return Value::of(f(a.one, b.one));
  Value out;
  int64_t* to = out.claim(n);
  if (b.uniform) {
    int64_t c = b.one;
    for (int64_t i = 0; i < n; ++i) to[i] = f(a.many[i], c);
  } else if (a.uniform) {
    int64_t c = a.one;
    for (int64_t i = 0; i < n; ++i) to[i] = f(c, b.many[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = f(a.many[i], b.many[i]);
  }
  return out;
}

// Division of many by one: through float64, exact where both fit in 32 bits, many times faster than the instruction.
inline Value divide(const Value& a, const Value& b, int64_t n, bool rest) {
  if (b.uniform && !a.uniform && b.one > 0 && b.one <= INT32_MAX) {
    bool small = true;
    for (int64_t i = 0; i < n; ++i) small &= a.many[i] >= INT32_MIN && a.many[i] <= INT32_MAX;
    if (small) {
      Value out;
      int64_t* to = out.claim(n);
      const int64_t c = b.one;
      const double divisor = static_cast<double>(c);
      for (int64_t i = 0; i < n; ++i) {
        int64_t q = static_cast<int32_t>(static_cast<double>(static_cast<int32_t>(a.many[i])) / divisor);
        q -= q * c > a.many[i];
        to[i] = rest ? a.many[i] - q * c : q;
      }
      return out;
    }
  }
  if (rest) return zip(a, b, n, [](int64_t x, int64_t y) { return y == 0 ? 0 : floor_mod(x, y); });
  return zip(a, b, n, [](int64_t x, int64_t y) { return y == 0 ? 0 : floor_div(x, y); });
}

template <typename F>
Value zip_real(const Value& a, const Value& b, int64_t n, bool to_integer, const F& f) {
  Value out;
  if (to_integer) {
    int64_t* to = out.claim(n);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(f(a.number(i), b.number(i)));
    return out;
  }
  double* to = out.claim_real(n);
  for (int64_t i = 0; i < n; ++i) to[i] = f(a.number(i), b.number(i));
  return out;
}

// First address and step of a value's numbers of type T; the value must hold that type.
template <typename T>
std::pair<const T*, int64_t> numbers(const Value& v) {
  if constexpr (std::is_same_v<T, double>) return {v.uniform ? &v.one_real : v.reals.data(), v.uniform ? 0 : 1};
  else return {v.uniform ? &v.one : v.many, v.uniform ? 0 : 1};
}

template <typename T>
void choose_into(T* to, const Value& condition, const Value& a, const Value& b, int64_t n) {
  auto [x, step_x] = numbers<T>(a);
  auto [y, step_y] = numbers<T>(b);
  if (!condition.real && !condition.uniform && step_x == 0 && step_y == 1) {  // a link of a constant table
    for (int64_t i = 0; i < n; ++i) to[i] = condition.many[i] != 0 ? *x : y[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = condition.truth(i) ? x[i * step_x] : y[i * step_y];
}

// A mixture of int64 and float64 becomes float64.
inline Value choose(const Value& condition, Value a, Value b, int64_t n) {
  if (condition.uniform && a.real == b.real) return condition.truth(0) ? std::move(a) : std::move(b);
  Value out;
  if (!a.real && !b.real) {
    choose_into(out.claim(n), condition, a, b, n);
    return out;
  }
  double* to = out.claim_real(n);
  if (a.real && b.real) {
    choose_into(to, condition, a, b, n);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = condition.truth(i) ? a.number(i) : b.number(i);
  }
  return out;
}

inline Value binary_real(Kind kind, const Value& a, const Value& b, int64_t n) {
  using D = double;
  switch (kind) {
    case Kind::Add: return zip_real(a, b, n, false, [](D x, D y) { return x + y; });
    case Kind::Sub: return zip_real(a, b, n, false, [](D x, D y) { return x - y; });
    case Kind::Mul: return zip_real(a, b, n, false, [](D x, D y) { return x * y; });
    case Kind::Min: return zip_real(a, b, n, false, [](D x, D y) { return std::min(x, y); });
    case Kind::Max: return zip_real(a, b, n, false, [](D x, D y) { return std::max(x, y); });
    case Kind::Div:
    case Kind::FloorDiv: return zip_real(a, b, n, false, [](D x, D y) { return y == 0 ? 0.0 : std::floor(x / y); });
    case Kind::Mod:
    case Kind::FloorMod:
      return zip_real(a, b, n, false, [](D x, D y) { return y == 0 ? 0.0 : x - std::floor(x / y) * y; });
    case Kind::EQ: return zip_real(a, b, n, true, [](D x, D y) { return x == y; });
    case Kind::NE: return zip_real(a, b, n, true, [](D x, D y) { return x != y; });
    case Kind::LT: return zip_real(a, b, n, true, [](D x, D y) { return x < y; });
    case Kind::LE: return zip_real(a, b, n, true, [](D x, D y) { return x <= y; });
    case Kind::GT: return zip_real(a, b, n, true, [](D x, D y) { return x > y; });
    case Kind::GE: return zip_real(a, b, n, true, [](D x, D y) { return x >= y; });
    case Kind::And: return zip_real(a, b, n, true, [](D x, D y) { return x != 0 && y != 0; });
    default: return zip_real(a, b, n, true, [](D x, D y) { return x != 0 || y != 0; });
  }
}

inline Value binary(Kind kind, const Value& a, const Value& b, int64_t n) {
  using I = int64_t;
  if (a.real || b.real) return binary_real(kind, a, b, n);
  switch (kind) {
    case Kind::Add: return zip(a, b, n, [](I x, I y) { return x + y; });
    case Kind::Sub: return zip(a, b, n, [](I x, I y) { return x - y; });
    case Kind::Mul: return zip(a, b, n, [](I x, I y) { return x * y; });
    case Kind::Min: return zip(a, b, n, [](I x, I y) { return std::min(x, y); });
    case Kind::Max: return zip(a, b, n, [](I x, I y) { return std::max(x, y); });
    case Kind::Div:
    case Kind::FloorDiv: return divide(a, b, n, false);
    case Kind::Mod:
    case Kind::FloorMod: return divide(a, b, n, true);
    case Kind::EQ: return zip(a, b, n, [](I x, I y) { return I(x == y); });
    case Kind::NE: return zip(a, b, n, [](I x, I y) { return I(x != y); });
    case Kind::LT: return zip(a, b, n, [](I x, I y) { return I(x < y); });
    case Kind::LE: return zip(a, b, n, [](I x, I y) { return I(x <= y); });
    case Kind::GT: return zip(a, b, n, [](I x, I y) { return I(x > y); });
    case Kind::GE: return zip(a, b, n, [](I x, I y) { return I(x >= y); });
    case Kind::And: return zip(a, b, n, [](I x, I y) { return I(x != 0 && y != 0); });
    default: return zip(a, b, n, [](I x, I y) { return I(x != 0 || y != 0); });
  }
}

}  // namespace cdmpp
