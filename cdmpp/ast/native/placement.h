// Where a scheduled program's own buffers are allocated, and how much of each is: TVM's PlanAndUpdateBufferAllocation-
// Location and CompactBufferAllocation, as far as features see them.
#pragma once

#include <unordered_set>

#include "sums.h"

namespace cdmpp {

// Of one buffer.
struct Placement {
  Node site = nullptr;  // variable of the loop inside which it is allocated; null: around all kernels
  bool shared = false;  // the threads around it share it
  std::vector<int64_t> low, extents;  // of each dimension, in the first trip of the loops around it
  std::vector<std::vector<Node>> moving;  // of each dimension: loops around it that every access moves with
};

// One pass over a scheduled function, before the walk.
class Surveyor {
 public:
  Placements run(Node function) {
    visit(child(function, Field::body));
    Placements found;
    for (const Touch& touch : touches_) {
      auto [it, first] = shared_path_.emplace(touch.buffer, touch.path);
      if (first) continue;
      auto& path = it->second;
      size_t same = 0;
      while (same < std::min(path.size(), touch.path.size()) && path[same] == touch.path[same]) ++same;
      path.resize(same);
    }
    for (bool guarded : {false, true}) {
      for (const Touch& touch : touches_) {
        if (touch.guarded == guarded && (!guarded || whole_.count(touch.buffer) == 0)) place(found[touch.buffer], touch);
      }
    }
    for (auto& [buffer, placement] : found) {
      for (size_t k = 0; k < placement.extents.size(); ++k) placement.extents[k] -= placement.low[k] - 1;
    }
    return found;
  }

 private:
  struct Around {
    Node variable;
    Range range;
    int tag;
  };

  struct Touch {
    Node buffer;
    const ffi::ArrayObj* indices;
    std::vector<Node> path;  // variables of the loops that its buffer may be allocated in
    std::vector<Around> loops;
    Bindings bindings;
    bool guarded;  // by a condition that keeps it within what other accesses need
  };

  void visit(Node node) {
    switch (kind_of(node)) {
      case Kind::SBlockRealize: return block(node);
      case Kind::For: {
        Node start = child(node, Field::min);
        int64_t first = kind_of(start) == Kind::IntImm ? int_value(start) : 0;
        int64_t extent = integer(child(node, Field::extent), "the extent of a loop");
        int tag = NO_TAG;
        if (Node thread = child(node, Field::thread_binding)) tag = thread_tag(text(thread, Field::thread_tag)).first;
        loops_.push_back({child(node, Field::loop_var), {first, first + extent - 1}, tag});
        visit(child(node, Field::body));
        loops_.pop_back();
        return;
      }
      case Kind::SeqStmt: {
        const auto* seq = list(node, Field::seq);
        for (size_t i = 0; i < seq->size(); ++i) visit(item(seq, i));
        return;
      }
      case Kind::BufferStore:
        touch(child(node, Field::buffer), list(node, Field::indices), true);
        return expression(child(node, Field::value));
      case Kind::IfThenElse:
        expression(child(node, Field::condition));
        visit(child(node, Field::then_case));
        if (Node other = child(node, Field::else_case)) visit(other);
        return;
      case Kind::Evaluate: return expression(child(node, Field::value));
      case Kind::AllocBuffer:
      case Kind::DeclBuffer:
      case Kind::Bind:
      case Kind::While: throw Unsupported("a statement that schedules do not hold");
      default: {
        Node body = node == nullptr ? nullptr : child(node, Field::body);
        if (body != nullptr) visit(body);
      }
    }
  }

  void block(Node realize) {
    Node block = child(realize, Field::block);
    if (child(block, Field::init) != nullptr) throw Unsupported("a block with an initial value");
    if (const auto* notes = static_cast<const ffi::MapObj*>(child(block, Field::annotations)); notes->size() > 0) {
      for (const auto& note : read(block, Field::annotations).cast<ffi::Map<ffi::Any, ffi::Any>>()) {
        if (note.first.cast<ffi::String>() == REWRITE) throw Unsupported("a block that stands for a rewritten layout");
      }
    }
    if (list(block, Field::match_buffers)->size() > 0) throw Unsupported("a block that matches buffers");
    size_t before = bindings_.size(), limit = limit_;
    bind(bindings_, realize);
    const auto* variables = list(block, Field::iter_vars);
    const auto* values = list(realize, Field::iter_values);
    Sums sums(ranges(), bindings_);
    bool guarded = guarded_;
    Node predicate = child(realize, Field::predicate);
    guarded_ = guarded_ || sums.decided(predicate) != true;
    for (size_t i = 0; i < variables->size(); ++i) {
      if (read(item(variables, i), Field::iter_type).cast<int64_t>() != REDUCTION) continue;
      sums.variables(item(values, i), [&](Node variable) {  // an accumulator outlives the loops it sums over
        for (size_t k = 0; k < loops_.size(); ++k) {
          if (loops_[k].variable == variable) limit_ = std::min(limit_, k);
        }
      });
    }
    const auto* own = list(block, Field::alloc_buffers);
    for (size_t i = 0; i < own->size(); ++i) allocated_.push_back(item(own, i));
    visit(child(block, Field::body));
    bindings_.resize(before);
    limit_ = limit;
    guarded_ = guarded;
  }

  void expression(Node e) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || kind == Kind::Var) return;
    if (kind == Kind::TensorLoad) touch(child(e, Field::source), list(e, Field::indices), false);
    if (kind == Kind::TensorLoad || kind == Kind::Call) {
      const auto* parts = list(e, kind == Kind::Call ? Field::args : Field::indices);
      for (size_t i = 0; i < parts->size(); ++i) {
        if (Node part = item(parts, i)) expression(part);
      }
      return;
    }
    for (Field field : CHILDREN) {
      if (Node part = child(e, field)) expression(part);
    }
  }

  void touch(Node buffer, const ffi::ArrayObj* indices, bool store) {
    if (std::find(allocated_.begin(), allocated_.end(), buffer) == allocated_.end()) return;
    std::vector<Node> path;
    for (size_t i = 0; i < loops_.size() && (!store || i < limit_); ++i) path.push_back(loops_[i].variable);
    touches_.push_back({buffer, indices, std::move(path), loops_, bindings_, guarded_});
    if (!guarded_) whole_.insert(buffer);
  }

  std::vector<std::pair<Node, Range>> ranges() const {
    std::vector<std::pair<Node, Range>> found;
    for (const Around& loop : loops_) found.emplace_back(loop.variable, loop.range);
    return found;
  }

  // Variables of all loops that an index depends on.
  static std::vector<Node> moving_with(Node index, const Touch& touch) {
    std::vector<std::pair<Node, Range>> ranges;
    for (const Around& loop : touch.loops) ranges.emplace_back(loop.variable, loop.range);
    std::vector<Node> found;
    Sums(std::move(ranges), touch.bindings).variables(index, [&](Node variable) { found.push_back(variable); });
    return found;
  }

  void place(Placement& placement, const Touch& touch) {
    const auto& path = shared_path_.at(touch.buffer);
    placement.site = path.empty() ? nullptr : path.back();
    placement.shared = scope_of(touch.buffer) == SHARED;
    std::vector<std::pair<Node, Range>> ranges;
    for (size_t i = 0; i < touch.loops.size(); ++i) {
      const Around& loop = touch.loops[i];
      bool relaxed = placement.shared && (loop.tag == THREAD_TAG || loop.tag == VTHREAD_TAG);
      bool around = i < path.size() && !relaxed;
      ranges.emplace_back(loop.variable, around ? Range{loop.range.low, loop.range.low} : loop.range);
    }
    Sums sums(std::move(ranges), touch.bindings);
    const auto* shape = list(buffer_type(touch.buffer), Field::shape);
    if (shape->size() != touch.indices->size()) throw Unsupported("an access has fewer or more indices than dimensions");
    for (size_t k = 0; k < shape->size(); ++k) {
      int64_t whole = dimension(shape, k, touch.buffer);
      Range range = range_of(sums.of(item(touch.indices, k)));
      std::vector<Node> mentioned = moving_with(item(touch.indices, k), touch);
      range = {std::clamp<int64_t>(range.low, 0, whole - 1), std::clamp<int64_t>(range.high, 0, whole - 1)};
      if (placement.low.size() <= k) {
        placement.low.push_back(range.low);
        placement.extents.push_back(range.high);  // the last element until all are known
        placement.moving.push_back(std::move(mentioned));
      } else {
        std::erase_if(placement.moving[k], [&](Node variable) {
          return std::find(mentioned.begin(), mentioned.end(), variable) == mentioned.end();
        });
        placement.low[k] = std::min(placement.low[k], range.low);
        placement.extents[k] = std::max(placement.extents[k], range.high);
      }
    }
  }

  static constexpr const char* REWRITE = "meta_schedule.layout_rewrite_preproc";
  static constexpr int64_t REDUCTION = 2;  // tirx.IterVar.CommReduce
  std::vector<Around> loops_;
  Bindings bindings_;
  std::vector<Node> allocated_;
  std::vector<Touch> touches_;
  std::unordered_map<Node, std::vector<Node>> shared_path_;
  std::unordered_set<Node> whole_;  // buffers with an access that nothing guards
  size_t limit_ = SIZE_MAX;
  bool guarded_ = false;
};

// Of a buffer of the program's own; null for its inputs and outputs, and in a lowered program.
inline const Placement* placement_of(const Leaf& leaf, Node buffer) {
  if (leaf.placements == nullptr) return nullptr;
  auto it = leaf.placements->find(buffer);
  return it == leaf.placements->end() ? nullptr : &it->second;
}

// Loops of `leaf` around the allocation that move dimension k of what it holds, not where in it an access goes.
inline std::vector<char> loops_around(const Leaf& leaf, const Placement& placement, size_t k) {
  size_t n = leaf.loops.size(), first = 0;
  while (placement.site != nullptr && first < n && leaf.loops[first]->handle != placement.site) ++first;
  std::vector<char> around(n, 0);
  for (size_t i = 0; placement.site != nullptr && i <= first && i < n; ++i) {
    const Loop& loop = *leaf.loops[i];
    bool threads = placement.shared && (loop.tag == THREAD_TAG || loop.tag == VTHREAD_TAG);
    const auto& moving = placement.moving[k];
    around[i] = !threads && std::find(moving.begin(), moving.end(), loop.handle) != moving.end();
  }
  return around;
}

}  // namespace cdmpp
