// Numbers out of TVM index expressions, evaluated at many points of the loop space at once.
#pragma once

#include <memory>

#include "constants.h"
#include "value.h"

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
    std::string name(has_field(op, Field::name) ? text(op, Field::name) : "");
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
    for (Field field : children_of(expression)) {
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
  for (Field field : children_of(expression)) {
    Node below = child(expression, field);
    if (below != nullptr && has_load(below)) return true;
  }
  return false;
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

// The values of a block variable; null for others.
inline const int64_t* evaluate_bound(Node variable, const Env& env) {
  if (env.bindings == nullptr) return nullptr;
  for (size_t i = env.bindings->size(); i-- > 0;) {
    if ((*env.bindings)[i].first != variable) continue;
    Value value = evaluate((*env.bindings)[i].second, env);
    Vector<int64_t> numbers(env.n);
    for (int64_t p = 0; p < env.n; ++p) numbers[p] = value.integer(p);
    return (env.row(variable) = std::move(numbers)).data();
  }
  return nullptr;
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
      if (v.many == nullptr) v.many = evaluate_bound(expression, env);
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

// True where the value depends on loop variables only through selects of constants.
inline bool is_constant(Node e) {
  switch (kind_of(e)) {
    case Kind::FloatImm:
    case Kind::IntImm: return true;
    case Kind::Select:
      return !has_load(child(e, Field::condition)) && is_constant(child(e, Field::true_value)) &&
             is_constant(child(e, Field::false_value));
    case Kind::Cast:
    case Kind::Broadcast: return is_constant(child(e, Field::value));
    case Kind::Mul:
    case Kind::Add:
    case Kind::Sub: return is_constant(child(e, Field::a)) && is_constant(child(e, Field::b));
    default: return false;
  }
}

inline bool is_table(Node e) {
  Kind kind = kind_of(e);
  return kind != Kind::FloatImm && kind != Kind::IntImm && is_constant(e);
}

}  // namespace cdmpp
