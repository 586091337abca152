// Loops, leaves, allocations and kernels, and what is read off a buffer.
#pragma once

#include "expression.h"

namespace cdmpp {

enum LoopKind { SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD };
enum Tag { NO_TAG, BLOCK_TAG, THREAD_TAG, VTHREAD_TAG };
enum Scope { GLOBAL, SHARED, LOCAL };

struct Loop {
  Node handle = nullptr;
  int64_t start = 0;
  int64_t extent = 0;
  int64_t kind = SERIAL;
  int tag = NO_TAG;
  int axis = 0;
  bool branches = false;
  bool unrolled = false;
  int64_t stages = 1;
  // Buffers stored to inside; those of them that get a constant: accumulators that start afresh in every trip.
  Vector<Node> written, started;
};

// Statements around a store, the outermost first; of a branch, whether its condition holds.
using Path = Vector<std::pair<Node, bool>>;

class Sums;
struct Placement;
using Placements = Map<Node, Placement>;

struct Leaf {
  Node store;
  // Shared with the walk: a loop learns whether it is unrolled only after its body was seen.
  Vector<std::shared_ptr<Loop>> loops;
  Vector<std::pair<Node, bool>> guards;
  int32_t position;
  int32_t serial_position;
  int32_t kernel;
  int64_t unroll_limit;
  bool explicit_unroll;
  int64_t lanes = 1;
  // Of a program that is read before TVM lowers it; null else.
  Bindings bindings = {};
  Path path = {};
  bool doubtful = false;   // whether all its guards are left by TVM's simplifier, and no others
  bool simplified = false;  // its store is what TVM's simplifier leaves of it: bindings are gone from that
  std::shared_ptr<const Sums> sums = nullptr;
  const Placements* placements = nullptr;
};

struct Allocation {
  int scope;
  int64_t elements;
  int64_t bytes;
};

struct Kernel {
  Vector<Allocation> allocations;
  double code_steps = 0;
  double cross_thread_reductions = 0.0;
  int64_t unroll_limit = 0;
  int64_t stages = 1;
};

struct Tree {
  Vector<Leaf> leaves;
  Vector<Kernel> kernels;
  Vector<Allocation> function_allocations;
};

inline std::string name_of(Node node) {
  return std::string(node != nullptr && has_field(node, Field::name) ? text(node, Field::name) : "an expression");
}

// The number that a constant is; `what` it is a number of, and the object `of` that has a name.
inline int64_t integer(Node value, const char* what, Node of = nullptr) {
  if (kind_of(value) == Kind::IntImm) return int_value(value);
  throw Unsupported(what + (of == nullptr ? "" : " " + name_of(of)) + " is symbolic (" + name_of(value) +
                    "); bind every shape to a number before predicting");
}

inline int64_t dimension(const ffi::ArrayObj* shape, size_t i, Node buffer) {
  const ffi::Any& any = (*shape)[static_cast<int64_t>(i)];
  if (auto number = any.as<int64_t>()) return *number;
  return integer(any.as<ffi::Object>(), "a dimension of buffer", buffer);
}

inline Node buffer_type(Node buffer) {
  Node type = child(buffer, Field::ty);
  if (kind_of(type) != Kind::BufferType) throw Unsupported("a buffer has no buffer type");
  return type;
}

inline int scope_of(Node buffer) {
  std::string_view scope = text(buffer_type(buffer), Field::storage_scope);
  if (scope.starts_with("shared")) return SHARED;
  return scope.empty() || scope == "global" ? GLOBAL : LOCAL;
}

inline double element_bytes(Node buffer) {
  DLDataType type = data_type(child(buffer_type(buffer), Field::dtype));
  if (type.code == kDLBool || type.code == kDLOpaqueHandle) return 1.0;
  return std::max(1.0, type.bits / 8.0);
}

inline int64_t elements(Node buffer) {
  const auto* shape = list(buffer_type(buffer), Field::shape);
  int64_t count = 1;
  for (size_t i = 0; i < shape->size(); ++i) {
    count *= std::max<int64_t>(1, dimension(shape, i, buffer));
  }
  return count;
}

inline bool holds_statement(Node node) {
  Kind kind = kind_of(node);
  return kind != Kind::AllocBuffer && kind != Kind::DeclBuffer && kind != Kind::Bind && kind != Kind::AssertStmt;
}

inline void bind(Bindings& bindings, Node realize) {
  const auto* variables = list(child(realize, Field::block), Field::iter_vars);
  const auto* values = list(realize, Field::iter_values);
  for (size_t i = 0; i < variables->size(); ++i) {
    bindings.emplace_back(child(item(variables, i), Field::var), item(values, i));
  }
}

inline std::pair<int, int> thread_tag(std::string_view tag) {
  std::string_view last = tag.substr(tag.rfind('.') + 1);  // all of it where there is no dot
  int axis = last == "y" ? 1 : last == "z" ? 2 : 0;
  if (tag.starts_with("blockIdx")) return {BLOCK_TAG, axis};
  if (tag.starts_with("threadIdx")) return {THREAD_TAG, axis};
  return {VTHREAD_TAG, axis};
}

}  // namespace cdmpp
