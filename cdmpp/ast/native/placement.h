// Where a scheduled program's own buffers are allocated, and how much of each is: TVM's PlanAndUpdateBufferAllocation-
// Location and CompactBufferAllocation, as far as features see them.
#pragma once

#include "sums.h"

namespace cdmpp {

// Of one buffer.
struct Placement {
  Node site = nullptr;  // variable of the loop inside which it is allocated; null: around all kernels
  bool shared = false;  // the threads around it share it
  Vector<int64_t> low, extents;  // of each dimension, in the first trip of the loops around it
  Vector<Vector<Node>> moving;  // of each dimension: loops around it that every access moves with
};

struct Survey {
  Placements placements;
  Map<Node, std::shared_ptr<const Sums>> sums;  // of each store
};

// One pass over a scheduled function, before the walk.
class Surveyor {
 public:
  Survey run(Node function) {
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
        if (touch.guarded == guarded && (!guarded || !is_whole(touch.buffer))) place(found[touch.buffer], touch);
      }
    }
    if (exactly) doubt_conditional(found);
    for (auto& [buffer, placement] : found) {
      for (size_t k = 0; k < placement.extents.size(); ++k) placement.extents[k] -= placement.low[k] - 1;
    }
    return {std::move(found), std::move(sums_)};
  }

 private:
  struct Around {
    Node variable;
    Range range;
    int tag;
  };

  // Loops and blocks around some accesses.
  struct Scene {
    Scene(Vector<Around> around, const Bindings& bound)
        : loops(std::move(around)), bindings(bound), sums(ranges_of(loops, 0, false), bindings) {}

    // The sums where the loops around the place of a buffer stand still: the first `depth`, threads not if they share it.
    const Sums& standing(size_t depth, bool shared) const {
      for (const auto& one : standing_) {
        if (one.depth == depth && one.shared == shared) return one.sums;
      }
      return standing_.emplace_back(depth, shared, Sums(ranges_of(loops, depth, shared), bindings)).sums;
    }

    Vector<Around> loops;
    Bindings bindings;
    Sums sums;

   private:
    struct Standing {
      size_t depth;
      bool shared;
      Sums sums;
      Standing(size_t depth, bool shared, Sums sums) : depth(depth), shared(shared), sums(std::move(sums)) {}
    };
    mutable Deque<Standing> standing_;
  };

  struct Touch {
    Node buffer;
    const ffi::ArrayObj* indices;
    Vector<Node> path;  // variables of the loops that its buffer may be allocated in
    std::shared_ptr<const Scene> scene;
    bool guarded;  // by a condition that keeps it within what other accesses need
    bool conditional;  // in an arm of a choice
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
        scene_ = nullptr;
        visit(child(node, Field::body));
        loops_.pop_back();
        scene_ = nullptr;
        return;
      }
      case Kind::SeqStmt: {
        const auto* seq = list(node, Field::seq);
        for (size_t i = 0; i < seq->size(); ++i) visit(item(seq, i));
        return;
      }
      case Kind::BufferStore:
        sums_.emplace(node, std::shared_ptr<const Sums>(scene(), &scene()->sums));
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
    scene_ = nullptr;
    const auto* variables = list(block, Field::iter_vars);
    const auto* values = list(realize, Field::iter_values);
    const Sums& sums = scene()->sums;
    bool guarded = guarded_;
    Node predicate = child(realize, Field::predicate);
    guarded_ = guarded_ || sums.decided(predicate) != true;
    for (size_t i = 0; i < variables->size(); ++i) {
      if (enumerated(item(variables, i), Field::iter_type) != REDUCTION) continue;
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
    scene_ = nullptr;
    limit_ = limit;
    guarded_ = guarded;
  }

  void expression(Node e) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || kind == Kind::Var) return;
    if (kind == Kind::TensorLoad) touch(child(e, Field::source), list(e, Field::indices), false);
    bool outside = conditional_;
    conditional_ |= kind == Kind::Select || (kind == Kind::Call && call_name(e) == "if_then_else");
    if (kind == Kind::TensorLoad || kind == Kind::Call) {
      const auto* parts = list(e, kind == Kind::Call ? Field::args : Field::indices);
      for (size_t i = 0; i < parts->size(); ++i) {
        if (Node part = item(parts, i)) expression(part);
      }
    } else {
      for (Field field : children_of(e)) {
        if (Node part = child(e, field)) expression(part);
      }
    }
    conditional_ = outside;
  }

  void touch(Node buffer, const ffi::ArrayObj* indices, bool store) {
    if (std::find(allocated_.begin(), allocated_.end(), buffer) == allocated_.end()) return;
    Vector<Node> path;
    for (size_t i = 0; i < loops_.size() && (!store || i < limit_); ++i) path.push_back(loops_[i].variable);
    touches_.push_back({buffer, indices, std::move(path), scene(), guarded_, conditional_});
    if (!guarded_ && !(exactly && conditional_)) whole_.push_back(buffer);
  }

  bool is_whole(Node buffer) const { return std::find(whole_.begin(), whole_.end(), buffer) != whole_.end(); }

  static bool divides(Node e) {
    Kind kind = kind_of(e);
    if (is_immediate(kind) || kind == Kind::Var) return false;
    bool found = is_division(kind);
    Sums::below(e, kind, [&](Node part) { found = found || divides(part); });
    return found;
  }

  const std::shared_ptr<const Scene>& scene() {
    if (scene_ == nullptr) scene_ = make_pooled<const Scene>(loops_, bindings_);
    return scene_;
  }

  // Variables of all loops that an index depends on.
  static Vector<Node> moving_with(Node index, const Touch& touch) {
    Vector<Node> found;
    touch.scene->sums.variables(index, [&](Node variable) { found.push_back(variable); });
    return found;
  }

  // Whether a loop is around the place of a buffer, and moves what it holds.
  static bool is_around(const Around& loop, size_t place, size_t depth, bool shared) {
    return place < depth && !(shared && (loop.tag == THREAD_TAG || loop.tag == VTHREAD_TAG));
  }

  // Of all loops; those around the first `depth` loops stand still at their start.
  static Vector<std::pair<Node, Range>> ranges_of(const Vector<Around>& loops, size_t depth, bool shared) {
    Vector<std::pair<Node, Range>> found;
    for (size_t i = 0; i < loops.size(); ++i) {
      const Range& range = loops[i].range;
      found.emplace_back(loops[i].variable, is_around(loops[i], i, depth, shared) ? Range{range.low, range.low} : range);
    }
    return found;
  }

  // What is kept of a dimension of a buffer, where that can be proven.
  struct Kept {
    bool sure = false;
    int64_t low = 0, high = 0;
  };

  const Vector<Kept>& kept_of(Node buffer) {
    auto [it, first] = kept_.emplace(buffer, Vector<Kept>());
    if (!first) return it->second;
    const auto* shape = list(buffer_type(buffer), Field::shape);
    for (size_t k = 0; k < shape->size(); ++k) it->second.push_back(kept(buffer, k, dimension(shape, k, buffer)));
    return it->second;
  }

  // TVM's region holds what accesses reach that nothing guards, and lies within what interval arithmetic gives of all: where
  // both are the same it is that. It is cut to the buffer, so that one that reaches both ends stays whole. Loops around
  // have to move all accesses by the same, apart from all else: their part is then one symbol to that arithmetic.
  Kept kept(Node buffer, size_t k, int64_t extent) const {
    size_t depth = shared_path_.at(buffer).size();
    bool shared = scope_of(buffer) == SHARED;
    std::optional<Sum> moved;
    Range reached{FAR_AWAY, -FAR_AWAY}, bounds{FAR_AWAY, -FAR_AWAY};
    bool known = true, beyond = false;
    for (const Touch& touch : touches_) {
      if (touch.buffer != buffer) continue;
      Softly doubts;
      const Node index = item(touch.indices, k);
      const Sums& all = touch.scene->sums;
      const Sum& whole = all.of(index);
      if (has_load(index) || !only_loops(whole)) return {};
      auto stands = [&](Node variable) {
        const Vector<Around>& loops = touch.scene->loops;
        for (size_t i = 0; i < loops.size(); ++i) {
          if (loops[i].variable == variable) return is_around(loops[i], i, depth, shared);
        }
        return false;
      };
      Sum around_it;
      for (const auto& [atom, factor] : whole.terms) {
        bool some = false, every = true;
        all.variables(atom, [&](Node variable) { (stands(variable) ? some : every) = stands(variable); });
        if (some && !every) return {};
        if (some) around_it.terms.emplace_back(atom, factor);
      }
      Range range = range_of(whole), start = range_of(around_it);
      if (start.low != 0) return {};
      beyond |= range.low < 0 || range.high >= extent;
      if (!moved) moved = around_it;
      add(around_it, *moved, -1);
      if (!around_it.terms.empty()) return {};
      const Sums& still = touch.scene->standing(depth, shared);
      if (!touch.guarded && !touch.conditional && doubts.why == nullptr) {
        const Sum& inside = still.of(index);
        if (doubts.why == nullptr && attained(inside, still)) join(reached, range_of(inside));
      }
      auto bound = bound_of(index, touch, depth, stands);
      known = known && bound;
      if (bound) join(bounds, *bound);
    }
    if (moved && moved->terms.empty() && reached.low <= 0 && reached.high >= extent - 1) return {true, 0, extent - 1};
    bool same = known && !beyond && reached.low == bounds.low && reached.high == bounds.high;
    return {same, reached.low, reached.high};
  }

  static void join(Range& range, Range other) {
    range = {std::min(range.low, other.low), std::max(range.high, other.high)};
  }

  // Whether a sum has its smallest value where all loops begin and its largest where all end.
  static bool rises(const Sum& sum) {
    return std::all_of(sum.terms.begin(), sum.terms.end(), [](const auto& term) { return term.second > 0 && rises(term.first); });
  }

  static bool rises(const Atom& atom) {
    if (atom.variable != nullptr) return true;
    if (atom.inside == nullptr || !rises(*atom.inside)) return false;
    Range range = range_of(*atom.inside);
    return atom.division == Kind::FloorDiv || (floor_mod(range.low, atom.divisor) == atom.range.low &&
                                               floor_mod(range.high, atom.divisor) == atom.range.high);
  }

  // Whether some iteration has the smallest value that is said of a sum, and some the largest.
  static bool attained(const Sum& sum, const Sums& sums) {
    return std::all_of(sum.terms.begin(), sum.terms.end(), [&](const auto& term) {
      const Atom& atom = term.first;
      if (term.second <= 0) return false;
      if (rises(atom)) return true;
      // All remainders of a variable that is nowhere else.
      if (atom.division != Kind::FloorMod || !only_variables(*atom.inside) || atom.inside->terms.size() != 1) return false;
      const auto& [inside, factor] = atom.inside->terms[0];
      if (factor != 1 || atom.inside->constant != 0 || inside.range.low != 0 || inside.range.high < atom.divisor - 1) return false;
      int64_t uses = 0;
      sums.variables(sum, [&](Node variable) { uses += variable == inside.variable; });
      return uses == 1;
    });
  }

  // Interval arithmetic on an index as it is written. Loops around stand still, and may be divided only by themselves.
  template <typename Stands>
  std::optional<Range> bound_of(Node e, const Touch& touch, size_t depth, const Stands& stands) const {
    Kind kind = kind_of(e);
    if (kind == Kind::IntImm) return Range{int_value(e), int_value(e)};
    if (kind == Kind::Var) {
      for (const Around& loop : touch.scene->loops) {
        if (loop.variable == e) return stands(e) ? Range{loop.range.low, loop.range.low} : loop.range;
      }
      const Bindings& bindings = touch.scene->bindings;
      for (size_t i = bindings.size(); i-- > 0;) {
        if (bindings[i].first == e) return bound_of(bindings[i].second, touch, depth, stands);
      }
      return std::nullopt;
    }
    if (kind < Kind::Add || kind > Kind::FloorMod || is_float(e)) return std::nullopt;
    auto a = bound_of(child(e, Field::a), touch, depth, stands), b = bound_of(child(e, Field::b), touch, depth, stands);
    if (!a || !b) return std::nullopt;
    if (kind == Kind::Add) return Range{a->low + b->low, a->high + b->high};
    if (kind == Kind::Sub) return Range{a->low - b->high, a->high - b->low};
    if (kind == Kind::Mul) {
      if (kind_of(child(e, Field::b)) != Kind::IntImm || b->low < 0) return std::nullopt;
      return Range{a->low * b->low, a->high * b->low};
    }
    if ((kind != Kind::FloorDiv && kind != Kind::FloorMod) || kind_of(child(e, Field::b)) != Kind::IntImm || b->low <= 0) {
      return std::nullopt;
    }
    bool some = false, every = true;
    touch.scene->sums.variables(child(e, Field::a), [&](Node variable) { (stands(variable) ? some : every) = stands(variable); });
    if (some && !every) return std::nullopt;
    if (some) return Range{0, 0};
    if (kind == Kind::FloorMod) return Range{0, b->low - 1};
    return Range{floor_div(a->low, b->low), floor_div(a->high, b->low)};
  }

  // Of an index, where the loops around the place of a buffer stand still.
  static Range standing_range(const Touch& touch, size_t depth, bool shared, Node index) {
    const Scene& scene = *touch.scene;
    const Sum* whole = exactly ? nullptr : &scene.sums.of(index);
    if (whole == nullptr || !only_variables(*whole)) return range_of(scene.standing(depth, shared).of(index));
    Sum still = *whole;
    for (auto& term : still.terms) {
      for (size_t i = 0; i < scene.loops.size(); ++i) {
        bool stands = scene.loops[i].variable == term.first.variable && is_around(scene.loops[i], i, depth, shared);
        if (stands) term.first.range.high = term.first.range.low;
      }
    }
    return range_of(still);
  }

  void place(Placement& placement, const Touch& touch) {
    const auto& path = shared_path_.at(touch.buffer);
    placement.site = path.empty() ? nullptr : path.back();
    placement.shared = scope_of(touch.buffer) == SHARED;
    const auto* shape = list(buffer_type(touch.buffer), Field::shape);
    if (shape->size() != touch.indices->size()) throw Unsupported("an access has fewer or more indices than dimensions");
    for (size_t k = 0; k < shape->size(); ++k) {
      int64_t whole = dimension(shape, k, touch.buffer);
      Softly doubts;
      Range range = standing_range(touch, path.size(), placement.shared, item(touch.indices, k));
      if (exactly) doubt_mixed(touch, path.size(), item(touch.indices, k), whole);
      Vector<Node> mentioned = moving_with(item(touch.indices, k), touch);
      range = {std::clamp<int64_t>(range.low, 0, whole - 1), std::clamp<int64_t>(range.high, 0, whole - 1)};
      if (doubts.why != nullptr) {
        Softly surely(nullptr);
        const Kept& kept = kept_of(touch.buffer)[k];
        if (!kept.sure) doubt(doubts.why);
        if (kept.sure) range = {kept.low, kept.high};
      }
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

  // A quotient of loops both around and inside the place of a buffer, or an index beyond it: TVM bounds where it begins.
  static void doubt_mixed(const Touch& touch, size_t depth, Node index, int64_t extent) {
    if (divides(index)) doubt("a buffer of the program's own at a quotient of a block's variable");
    const Vector<Around>& loops = touch.scene->loops;
    const Sums sums(ranges_of(loops, 0, false), touch.scene->bindings);  // it asks whether this index alone is nested
    const Sum& whole = sums.of(index);
    Vector<Node> divided;
    Range range = range_of(whole);
    if (!touch.conditional && (range.low < 0 || range.high >= extent)) doubt("an access beyond a buffer");
    for (const auto& term : whole.terms) {
      if (term.first.inside == nullptr) continue;
      bool around = false, inside = false;
      sums.variables(term.first, [&](Node variable) {
        bool again = std::find(divided.begin(), divided.end(), variable) != divided.end();
        if (again && sums.nested()) doubt("a sum of quotients that was a quotient");
        divided.push_back(variable);
        for (size_t i = 0; i < loops.size(); ++i) {
          if (loops[i].variable == variable) (i < depth ? around : inside) = true;
        }
      });
      if (around && inside) doubt("a quotient of loops around and inside a buffer");
    }
  }

  // TVM reads conditions when it looks for the region of a buffer that is needed: only a whole one is sure.
  void doubt_conditional(const Placements& found) {
    Placements sure;
    for (const Touch& touch : touches_) {
      if (!touch.conditional) place(sure[touch.buffer], touch);
    }
    for (const Touch& touch : touches_) {
      if (touch.guarded && !is_whole(touch.buffer)) doubt("a buffer that is only reached behind a condition");
      if (!touch.conditional) continue;
      const Vector<Kept>& kept = kept_of(touch.buffer);
      if (std::all_of(kept.begin(), kept.end(), [](const Kept& one) { return one.sure; })) continue;
      const Placement& placement = found.at(touch.buffer);
      auto it = sure.find(touch.buffer);
      if (placement.site != nullptr || it == sure.end()) doubt("a choice that reads a part of a buffer");
      const auto* shape = list(buffer_type(touch.buffer), Field::shape);
      for (size_t k = 0; k < shape->size(); ++k) {
        bool whole = it->second.low[k] == 0 && it->second.extents[k] == dimension(shape, k, touch.buffer) - 1;
        if (!whole) doubt("a choice that reads a part of a buffer");
      }
    }
  }

  static constexpr const char* REWRITE = "meta_schedule.layout_rewrite_preproc";
  static constexpr int64_t REDUCTION = 2;  // tirx.IterVar.CommReduce
  Vector<Around> loops_;
  Bindings bindings_;
  std::shared_ptr<const Scene> scene_;  // of these; null where nothing asked for it yet
  Vector<Node> allocated_;
  Vector<Touch> touches_;
  Map<Node, std::shared_ptr<const Sums>> sums_;
  Map<Node, Vector<Node>> shared_path_;
  Map<Node, Vector<Kept>> kept_;
  Vector<Node> whole_;  // buffers with an access that nothing guards
  size_t limit_ = SIZE_MAX;
  bool guarded_ = false;
  bool conditional_ = false;
};

// Of a buffer of the program's own; null for its inputs and outputs, and in a lowered program.
inline const Placement* placement_of(const Leaf& leaf, Node buffer) {
  if (leaf.placements == nullptr) return nullptr;
  auto it = leaf.placements->find(buffer);
  return it == leaf.placements->end() ? nullptr : &it->second;
}

// Loops of `leaf` around the allocation that move dimension k of what it holds, not where in it an access goes.
inline Vector<char> loops_around(const Leaf& leaf, const Placement& placement, size_t k) {
  size_t n = leaf.loops.size(), first = 0;
  while (placement.site != nullptr && first < n && leaf.loops[first]->handle != placement.site) ++first;
  Vector<char> around(n, 0);
  for (size_t i = 0; placement.site != nullptr && i <= first && i < n; ++i) {
    const Loop& loop = *leaf.loops[i];
    bool threads = placement.shared && (loop.tag == THREAD_TAG || loop.tag == VTHREAD_TAG);
    const auto& moving = placement.moving[k];
    around[i] = !threads && std::find(moving.begin(), moving.end(), loop.handle) != moving.end();
  }
  return around;
}

}  // namespace cdmpp
