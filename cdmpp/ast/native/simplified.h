// Stores that are in doubt, as TVM's own simplifier leaves them: it runs over them alone, below their loops and branches.
#pragma once

#include "arithmetic.h"

namespace cdmpp {

// As `hide` in constant_tables.py knows them, which the simplifier is to see as one call.
inline bool holds_long_table(Node e, int links = 0) {
  constexpr int SHORTEST = 4;
  Kind kind = kind_of(e);
  if (is_immediate(kind) || kind == Kind::Var) return false;
  bool link = kind == Kind::Select && is_immediate(kind_of(child(e, Field::true_value)));
  if (link && links + 1 >= SHORTEST) return true;
  bool found = false;
  Sums::below(e, kind, [&](Node part) {
    found = found || holds_long_table(part, link && part == child(e, Field::false_value) ? links + 1 : 0);
  });
  return found;
}

class Simplifier {
 public:
  // `passes`: TVM's that put the values of block variables in, and simplify.
  Simplifier(Node module, Node function, const ffi::ObjectRef& passes, bool gpu)
      : module_(module), function_(function), passes_(passes), gpu_(gpu) {}

  // Put the simplified store into each of these leaves. The result keeps them alive.
  ffi::ObjectRef run(const Vector<Leaf*>& leaves) {
    ffi::Array<ffi::ObjectRef> nests;
    for (const Leaf* leaf : leaves) nests.push_back(nest(*leaf));
    ffi::ObjectRef body = nests.size() == 1 ? nests[0] : made("tirx.SeqStmt", nests, nullptr);
    ffi::ObjectRef function = made("tirx.PrimFunc", read(function_, Field::params), body, read(function_, Field::ret_type),
                                   read(function_, Field::attrs), nullptr);
    const auto* functions = static_cast<const ffi::MapObj*>(child(module_, Field::functions));
    ffi::Map<ffi::Any, ffi::Any> only{{(*functions->begin()).first, function}};
    ffi::ObjectRef module = made("ir.IRModule", only, read(module_, Field::attrs), ffi::Map<ffi::Any, ffi::Any>());
    static const ffi::Function run = ffi::Function::GetGlobalRequired("transform.RunPass");
    ffi::ObjectRef simple = run(passes_, module).cast<ffi::ObjectRef>();
    const auto* found = static_cast<const ffi::MapObj*>(child(simple.get(), Field::functions));
    collect(child((*found->begin()).second.as<ffi::Object>(), Field::body), 0);
    if (stores_.size() != leaves.size()) doubt("a store that TVM's simplifier leaves out");
    for (size_t i = 0; i < leaves.size(); ++i) {
      auto [store, guards] = stores_[i];
      if (child(store, Field::buffer) != child(leaves[i]->store, Field::buffer) || guards != leaves[i]->guards.size()) {
        doubt("a condition of which TVM's simplifier knows more or less");
      }
      if (is_constant(child(store, Field::value)) != is_constant(child(leaves[i]->store, Field::value))) {
        doubt("a value that becomes constant");
      }
      leaves[i]->store = store;
      leaves[i]->simplified = true;
    }
    return simple;
  }

 private:
  template <typename... Args>
  static ffi::ObjectRef made(const char* what, Args&&... args) {
    thread_local std::unordered_map<std::string_view, ffi::Function> makers;
    auto it = makers.find(what);
    if (it == makers.end()) it = makers.emplace(what, ffi::Function::GetGlobalRequired(what)).first;
    return it->second(std::forward<Args>(args)...).template cast<ffi::ObjectRef>();
  }

  ffi::ObjectRef nest(const Leaf& leaf) const {
    if (holds_long_table(child(leaf.store, Field::value))) doubt("a table of constants beside what is in doubt");
    auto inside = ffi::GetRef<ffi::ObjectRef>(leaf.store);
    const ffi::Array<ffi::ObjectRef> none;
    const ffi::Map<ffi::Any, ffi::Any> no_notes;
    for (size_t i = leaf.path.size(); i-- > 0;) {
      auto [node, positive] = leaf.path[i];
      switch (kind_of(node)) {
        case Kind::For: {
          ffi::Any thread = read(node, Field::thread_binding);
          if (thread != nullptr && !gpu_) doubt("a store in doubt below a thread of a CPU");
          inside = made("tirx.For", read(node, Field::loop_var), read(node, Field::min), read(node, Field::extent),
                        read(node, Field::kind), inside, thread, no_notes, nullptr, nullptr);
          break;
        }
        case Kind::SBlock:
          inside = made("s_tir.SBlock", read(node, Field::iter_vars), none, none, "b", inside, nullptr, none, none,
                        no_notes, nullptr);
          break;
        case Kind::SBlockRealize:
          inside = made("s_tir.SBlockRealize", read(node, Field::iter_values), read(node, Field::predicate), inside, nullptr);
          break;
        case Kind::IfThenElse: {
          ffi::Any condition = read(node, Field::condition);
          if (positive) {
            inside = made("tirx.IfThenElse", condition, inside, nullptr, nullptr);
          } else {
            inside = made("tirx.IfThenElse", condition, made("tirx.Evaluate", 0, nullptr), inside, nullptr);
          }
          break;
        }
        case Kind::AttrStmt: {
          std::string key(text(node, Field::attr_key));
          if (key != "thread_extent" && key != "virtual_thread") break;
          inside = made("tirx.AttrStmt", read(node, Field::node), key, read(node, Field::value), inside, nullptr);
          break;
        }
        case Kind::SeqStmt: break;
        default: doubt("a store in doubt below a statement of another kind");
      }
    }
    return inside;
  }

  void collect(Node node, size_t guards) {
    switch (kind_of(node)) {
      case Kind::BufferStore: stores_.emplace_back(node, guards); return;
      case Kind::SeqStmt: {
        const auto* seq = list(node, Field::seq);
        for (size_t i = 0; i < seq->size(); ++i) collect(item(seq, i), guards);
        return;
      }
      case Kind::IfThenElse:
        collect(child(node, Field::then_case), guards + 1);
        if (Node other = child(node, Field::else_case)) collect(other, guards + 1);
        return;
      case Kind::SBlockRealize:
        return collect(child(child(node, Field::block), Field::body),
                       guards + (kind_of(child(node, Field::predicate)) != Kind::IntImm));
      case Kind::Evaluate: return;
      default: collect(child(node, Field::body), guards);
    }
  }

  Node module_, function_;
  const ffi::ObjectRef& passes_;
  bool gpu_;
  Vector<std::pair<Node, size_t>> stores_;
};

}  // namespace cdmpp
