// Twin of expression.py: numbers out of TVM index expressions, evaluated at many points of the loop space at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "constants.h"
#include "reflection.h"

namespace cdmpp {

inline bool is_division(Kind kind) {
  return kind == Kind::FloorDiv || kind == Kind::FloorMod || kind == Kind::Div || kind == Kind::Mod;
}

inline bool is_compare(Kind kind) { return kind >= Kind::EQ && kind <= Kind::GE; }

inline bool is_binary(Kind kind) { return kind >= Kind::Add && kind <= Kind::Or; }

// IntImm, FloatImm, StringImm: nothing below them.
inline bool is_immediate(Kind kind) { return kind >= Kind::IntImm && kind <= Kind::StringImm; }

inline bool is_float(Node expression) {
  Node type = child(expression, Field::ty);
  if (kind_of(type) != Kind::PrimType) return false;
  auto code = data_type(type).code;
  return code != kDLInt && code != kDLUInt && code != kDLBool && code != kDLOpaqueHandle && code != kDLComplex;
}

inline const std::string& call_name(Node call) {
  thread_local std::unordered_map<Node, std::pair<ffi::ObjectRef, std::string>> names;
  Node op = child(call, Field::op);
  auto it = names.find(op);
  if (it == names.end()) {
    std::string name = has_field(op, Field::name) ? text(op, Field::name) : "";
    if (auto dot = name.rfind('.'); dot != std::string::npos) name = name.substr(dot + 1);
    if (names.size() > 4096) names.clear();
    // The reference keeps the operator alive, so its address stays its own.
    auto held = ffi::GetRef<ffi::ObjectRef>(op);
    it = names.emplace(op, std::make_pair(held, std::move(name))).first;
  }
  return it->second.second;
}

// Calls visit(Node variable) for every variable, those inside data-dependent loads included.
template <typename Visit>
void free_variables(Node expression, const Visit& visit) {
  Kind kind = kind_of(expression);
  if (kind == Kind::Var) {
    visit(expression);
  } else if (kind == Kind::TensorLoad || kind == Kind::Call) {
    const auto* parts = list(expression, kind == Kind::Call ? Field::args : Field::indices);
    for (size_t i = 0; i < parts->size(); ++i) free_variables(item(parts, i), visit);
  } else if (!is_immediate(kind)) {
    for (Field field : CHILDREN) {
      if (Node below = child(expression, field)) free_variables(below, visit);
    }
  }
}

inline bool has_load(Node expression) {
  Kind kind = kind_of(expression);
  if (kind == Kind::TensorLoad) return true;
  if (kind == Kind::Call) {
    const auto* args = list(expression, Field::args);
    for (size_t i = 0; i < args->size(); ++i) {
      if (has_load(item(args, i))) return true;
    }
    return false;
  }
  if (is_immediate(kind) || kind == Kind::Var) return false;
  for (Field field : CHILDREN) {
    Node below = child(expression, field);
    if (below != nullptr && has_load(below)) return true;
  }
  return false;
}

// Values of the loop variables at n points.
struct Env {
  int64_t n = 0;
  std::vector<std::pair<Node, std::vector<int64_t>>> rows;

  std::vector<int64_t>& row(Node variable) {
    for (auto& [handle, values] : rows) {
      if (handle == variable) return values;
    }
    rows.emplace_back(variable, std::vector<int64_t>());
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
  std::vector<int64_t> own;
  std::vector<double> reals;

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
  out.real = true;
  out.uniform = false;
  out.reals.resize(n);
  for (int64_t i = 0; i < n; ++i) out.reals[i] = f(a.number(i), b.number(i));
  return out;
}

inline Value choose(const Value& condition, Value a, Value b, int64_t n) {
  if (condition.uniform && a.real == b.real) return condition.truth(0) ? std::move(a) : std::move(b);
  Value out;
  if (a.real || b.real) {
    out.real = true;
    out.uniform = false;
    out.reals.resize(n);
    for (int64_t i = 0; i < n; ++i) out.reals[i] = condition.truth(i) ? a.number(i) : b.number(i);
    return out;
  }
  int64_t* to = out.claim(n);
  for (int64_t i = 0; i < n; ++i) to[i] = condition.truth(i) ? a.integer(i) : b.integer(i);
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

inline Value evaluate(Node expression, const Env& env);

inline Value evaluate_call(Node call, const Env& env) {
  const std::string& name = call_name(call);
  const auto* args = list(call, Field::args);
  if (name == "if_then_else") {
    return choose(evaluate(item(args, 0), env), evaluate(item(args, 1), env), evaluate(item(args, 2), env), env.n);
  }
  if (name == "likely") return evaluate(item(args, 0), env);
  if (name == "shift_right" || name == "shift_left" || name == "bitwise_and") {
    Value a = evaluate(item(args, 0), env), b = evaluate(item(args, 1), env), out;
    int64_t* to = out.claim(env.n);
    for (int64_t i = 0; i < env.n; ++i) {
      int64_t x = a.integer(i), y = b.integer(i);
      if (name == "bitwise_and") {
        to[i] = x & y;
      } else {
        y = std::clamp<int64_t>(y, 0, 62);
        to[i] = name == "shift_right" ? x >> y : x << y;
      }
    }
    return out;
  }
  return Value::of(0);
}

// Data-dependent parts (loads, unknown calls) count as 0; unbound variables too. Division by zero gives 0.
inline Value evaluate(Node expression, const Env& env) {
  Kind kind = kind_of(expression);
  if (is_binary(kind)) {
    Value a = evaluate(child(expression, Field::a), env), b = evaluate(child(expression, Field::b), env);
    return binary(kind, a, b, env.n);
  }
  switch (kind) {
    case Kind::IntImm: return Value::of(int_value(expression));
    case Kind::FloatImm: {
      Value v;
      v.real = true;
      v.one_real = float_value(expression);
      return v;
    }
    case Kind::Var: {
      Value v;
      v.many = env.find(expression);
      v.uniform = v.many == nullptr;
      return v;
    }
    case Kind::Not: {
      Value a = evaluate(child(expression, Field::a), env), out;
      int64_t* to = out.claim(env.n);
      for (int64_t i = 0; i < env.n; ++i) to[i] = !a.truth(i);
      return out;
    }
    case Kind::Cast:
    case Kind::Broadcast: return evaluate(child(expression, Field::value), env);
    case Kind::Ramp: return evaluate(child(expression, Field::base), env);
    case Kind::Select:
      return choose(evaluate(child(expression, Field::condition), env),
                    evaluate(child(expression, Field::true_value), env),
                    evaluate(child(expression, Field::false_value), env), env.n);
    case Kind::Call: return evaluate_call(expression, env);
    default: return Value::of(0);
  }
}

}  // namespace cdmpp
