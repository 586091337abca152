// Lowered PrimFunc -> loop nests, every store with its loops, guards and place in the walk.
#pragma once

#include "placement.h"

namespace cdmpp {

// One depth-first pass. Nodes are loops, attributes, branches and stores; node 0 is the root.
class Walker {
 public:
  // `survey`: of a program that TVM has not lowered; null else.
  explicit Walker(const Survey* survey = nullptr)
      : survey_(survey), placements_(survey == nullptr ? nullptr : &survey->placements) {}

  Tree run(Node function) {
    const auto* params = list(function, Field::params);
    for (size_t i = 0; i < params->size(); ++i) {
      Node parameter = item(params, i);
      if (kind_of(child(parameter, Field::ty)) == Kind::BufferType) elements(parameter);
    }
    if (placements_ != nullptr) allocate_placed(nullptr);
    top_level(child(function, Field::body));
    return std::move(tree_);
  }

 private:
  using Annotations = Vector<std::pair<std::string, ffi::Any>>;

  // (steps, normal loop depth, unroll depth) the way TVM's UnrollLoop counts them.
  struct Cost {
    double steps = 0;
    int normal = 0;
    int unrolled = 0;
    void join(const Cost& other) {
      steps += other.steps;
      normal = std::max(normal, other.normal);
      unrolled = std::max(unrolled, other.unrolled);
    }
  };

  struct Arm {
    Node condition;
    bool positive;
    Node body;
  };

  // A program's kernels are its top-level loop nests: launches on a GPU, passes over memory on a CPU.
  void top_level(Node node) {
    Kind kind = kind_of(node);
    if (kind == Kind::SBlockRealize || kind == Kind::SBlock) {
      if (placements_ != nullptr && kind == Kind::SBlockRealize) bind(bindings_, node);
      if (placements_ == nullptr && kind == Kind::SBlock) allocate_all(list(node, Field::alloc_buffers));
      path_.emplace_back(node, true);
      top_level(child(node, kind == Kind::SBlock ? Field::body : Field::block));
      path_.pop_back();
      return;
    }
    if (kind == Kind::SeqStmt) {
      const auto* seq = list(node, Field::seq);
      for (size_t i = 0; i < seq->size(); ++i) top_level(item(seq, i));
      return;
    }
    if (kind == Kind::AllocBuffer) return allocate(child(node, Field::buffer));
    if (kind == Kind::DeclBuffer) return;
    if (kind == Kind::AttrStmt) {
      std::string_view key = text(node, Field::attr_key);
      if (key != "thread_extent" && key != "virtual_thread" && !key.starts_with("pragma_")) {
        return top_level(child(node, Field::body));
      }
    }
    nest(node);
  }

  void nest(Node node) {
    tree_.kernels.emplace_back();
    inside_ = true;
    size_t before = tree_.leaves.size();
    kernel().code_steps = visit(node).steps;
    if (tree_.leaves.size() == before) tree_.kernels.pop_back();
    inside_ = false;
  }

  Kernel& kernel() { return tree_.kernels.back(); }

  void allocate_all(const ffi::ArrayObj* buffers) {
    for (size_t i = 0; i < buffers->size(); ++i) allocate(item(buffers, i));
  }

  // Buffers whose place is inside the loop of `variable`.
  void allocate_placed(Node variable) {
    for (const auto& [buffer, placement] : *placements_) {
      if (placement.site == variable) allocate(buffer);
    }
  }

  void allocate(Node buffer) {
    int scope = scope_of(buffer);
    int64_t count = 1, copies = 1;
    if (placements_ == nullptr) {
      count = elements(buffer);
    } else {
      for (int64_t extent : placements_->at(buffer).extents) count *= extent;
    }
    for (const auto& loop : loops_) {
      if (scope == SHARED) {
        copies = std::max(copies, loop->stages);
      } else if (scope == LOCAL && loop->tag == VTHREAD_TAG) {
        copies *= loop->extent;  // every virtual thread of a thread keeps its own registers
      }
    }
    Allocation allocation{scope, count * copies, static_cast<int64_t>(count * copies * element_bytes(buffer))};
    (inside_ ? kernel().allocations : tree_.function_allocations).push_back(allocation);
  }

  void refuse_deep() const {
    if (loops_.size() + guards_.size() > MOST_NESTED) {
      throw Unsupported("the loops and branches of the program are nested too deep to walk");
    }
  }

  int32_t enter() {
    ++serial_length_;
    return next_id_++;
  }

  void leave() { ++serial_length_; }

  Cost visit(Node node) {
    Kind kind = kind_of(node);
    if (placements_ == nullptr || kind == Kind::IfThenElse || kind == Kind::BufferStore) return visit(node, kind);
    path_.emplace_back(node, true);
    Cost found = visit(node, kind);
    path_.pop_back();
    return found;
  }

  Cost visit(Node node, Kind kind) {
    switch (kind) {
      case Kind::For: return visit_for(node);
      case Kind::SeqStmt: {
        Cost total;
        const auto* seq = list(node, Field::seq);
        for (size_t i = 0; i < seq->size(); ++i) total.join(visit(item(seq, i)));
        return total;
      }
      case Kind::SBlockRealize: {
        Node predicate = child(node, Field::predicate), block = child(node, Field::block);
        size_t before = bindings_.size();
        if (placements_ != nullptr) bind(bindings_, node);
        bool outside = doubtful_;
        bool holds = kind_of(predicate) == Kind::IntImm || decided(predicate) == true;
        Cost found = holds ? visit(block) : branch({{predicate, true, block}});
        bindings_.resize(before);
        doubtful_ = outside;
        return found;
      }
      case Kind::SBlock:
        if (placements_ == nullptr) allocate_all(list(node, Field::alloc_buffers));
        return visit(child(node, Field::body));
      case Kind::IfThenElse: {
        Node condition = child(node, Field::condition), other = child(node, Field::else_case);
        bool outside = doubtful_;
        auto holds = decided(condition);
        Vector<Arm> arms = {{condition, true, child(node, Field::then_case)}};
        if (other != nullptr) arms.push_back({condition, false, other});
        if (holds) {
          if (doubtful_ && (!*holds || other != nullptr)) doubt("a branch that may be left out");
          std::erase_if(arms, [&](const Arm& arm) { return arm.positive != *holds; });
        }
        ++branches_;
        Cost found = holds && arms.empty() ? Cost{} : holds ? below(node, *holds, arms[0].body) : branch(arms, node);
        --branches_;
        doubtful_ = outside;
        return found;
      }
      case Kind::AttrStmt: return visit_attribute(node);
      case Kind::BufferStore: return visit_store(node);
      case Kind::Evaluate: {
        Node value = child(node, Field::value);
        if (kind_of(value) == Kind::Call && call_name(value) == "tvm_thread_allreduce" && inside_) {
          double trips = 1.0;
          for (const auto& loop : loops_) {
            if (loop->tag == NO_TAG) trips *= loop->extent;
          }
          kernel().cross_thread_reductions += trips;
        }
        return {1, 0, 0};
      }
      case Kind::AllocBuffer: allocate(child(node, Field::buffer)); return {};
      case Kind::Bind:
      case Kind::DeclBuffer:
      case Kind::AssertStmt: return {};
      case Kind::While: 
        throw Unsupported("the program holds a while loop: its trip count, and so latency, is unknown");
      default: {
        Node body = node == nullptr ? nullptr : child(node, Field::body);
        if (body == nullptr) {
          throw Unsupported("the program holds a " + kind_name(node) + " statement, which the extractor does not know");
        }
        return visit(body);
      }
    }
  }

  Cost visit_store(Node node) {
    int32_t position = enter();
    int32_t serial = serial_length_ - 1;
    leave();
    Node buffer = child(node, Field::buffer);
    bool constant = is_constant(child(node, Field::value));
    for (const auto& loop : loops_) {
      loop->written.push_back(buffer);
      if (constant) loop->started.push_back(buffer);
    }
    int64_t lanes = 1;
    const auto* indices = list(node, Field::indices);
    for (size_t i = 0; i < indices->size(); ++i) {
      Node index = item(indices, i);
      if (kind_of(index) == Kind::Ramp) lanes = std::max(lanes, integer(child(index, Field::lanes), "a vector width"));
    }
    tree_.leaves.push_back({node, loops_, guards_, position, serial, static_cast<int32_t>(tree_.kernels.size()) - 1,
                            unroll_limit_, explicit_, lanes});
    if (placements_ != nullptr) {
      Leaf& leaf = tree_.leaves.back();
      leaf.bindings = bindings_;
      leaf.path = path_;
      leaf.doubtful = doubtful_;
      auto seen = survey_->sums.find(node);
      bool same = seen != survey_->sums.end() && seen->second->below(ranges(), bindings_);
      leaf.sums = same ? seen->second : make_pooled<const Sums>(ranges(), bindings_);
      leaf.placements = placements_;
    }
    return {1, 0, 0};
  }

  // `node`: the statement that branches, where it is none of those that `visit` notes.
  Cost branch(const Vector<Arm>& arms, Node node = nullptr) {
    refuse_deep();
    enter();
    Cost total;
    for (const Arm& arm : arms) {
      guards_.emplace_back(arm.condition, arm.positive);
      total.join(node == nullptr ? visit(arm.body) : below(node, arm.positive, arm.body));
      guards_.pop_back();
    }
    leave();
    return total;
  }

  Cost below(Node node, bool positive, Node body) {
    path_.emplace_back(node, positive);
    Cost found = visit(body);
    path_.pop_back();
    return found;
  }

  Cost visit_attribute(Node node) {
    std::string_view key = text(node, Field::attr_key);
    if (key == "thread_extent" || key == "virtual_thread") {
      Loop loop;
      loop.extent = integer(child(node, Field::value), "a thread extent");
      loop.kind = THREAD;
      Node iteration = child(node, Field::node);
      std::tie(loop.tag, loop.axis) = thread_tag(text(iteration, Field::thread_tag));
      loop.handle = child(iteration, Field::var);
      return in_loop(std::move(loop), child(node, Field::body), {});
    }
    Annotations annotations;
    if (key.starts_with("pragma_")) annotations.emplace_back(key, read(node, Field::value));
    enter();
    auto saved = std::make_pair(unroll_limit_, explicit_);
    pragma(annotations);
    Cost found = visit(child(node, Field::body));
    std::tie(unroll_limit_, explicit_) = saved;
    leave();
    return found;
  }

  void pragma(const Annotations& annotations) {
    for (const auto& [key, value] : annotations) {
      if (key == "pragma_auto_unroll_max_step") {
        unroll_limit_ = std::max<int64_t>(0, any_integer(value));
        if (inside_) kernel().unroll_limit = std::max(kernel().unroll_limit, unroll_limit_);
      } else if (key == "pragma_unroll_explicit") {
        explicit_ = any_integer(value) != 0;
      }
    }
  }

  Cost visit_for(Node node) {
    Loop loop;
    loop.kind = enumerated(node, Field::kind);
    loop.extent = integer(child(node, Field::extent), "the extent of loop", child(node, Field::loop_var));
    if (loop.kind == THREAD) {
      std::tie(loop.tag, loop.axis) = thread_tag(text(child(node, Field::thread_binding), Field::thread_tag));
    }
    loop.handle = child(node, Field::loop_var);
    Node start = child(node, Field::min);
    loop.start = kind_of(start) == Kind::IntImm ? int_value(start) : 0;
    Annotations annotations;
    const auto* map = static_cast<const ffi::MapObj*>(child(node, Field::annotations));
    if (map != nullptr && map->size() > 0) {
      for (const auto& [key, value] : read(node, Field::annotations).cast<ffi::Map<ffi::Any, ffi::Any>>()) {
        annotations.emplace_back(std::string(key.cast<ffi::String>()), value);
      }
    }
    for (const auto& [key, value] : annotations) {
      if (key == "software_pipeline_stage") loop.stages = pipeline_depth(value);
    }
    if (inside_) kernel().stages = std::max(kernel().stages, loop.stages);
    return in_loop(std::move(loop), child(node, Field::body), annotations);
  }

  static int64_t pipeline_depth(const ffi::Any& stages) {
    auto numbers = stages.cast<ffi::Array<ffi::Any>>();
    if (numbers.empty()) return 1;
    int64_t low = any_integer(numbers[0]), high = low;
    for (const ffi::Any& number : numbers) {
      low = std::min(low, any_integer(number));
      high = std::max(high, any_integer(number));
    }
    return high - low + 1;
  }

  Cost in_loop(Loop described, Node body, const Annotations& annotations) {
    if (described.extent <= 0) return {};
    refuse_deep();
    auto loop = make_pooled<Loop>(std::move(described));
    enter();
    auto saved = std::make_pair(unroll_limit_, explicit_);
    pragma(annotations);
    loop->branches = several_statements(body);
    loops_.push_back(loop);
    if (placements_ != nullptr) allocate_placed(loop->handle);
    Cost found = visit(body);
    loops_.pop_back();
    double extent = static_cast<double>(loop->extent);
    if (loop->kind == VECTORIZED) {
      loop->unrolled = true;
    } else if (loop->kind == UNROLLED || (loop->kind == SERIAL && found.normal == 0 && found.unrolled <= UNROLL_MAX_DEPTH &&
                                          extent * found.steps <= static_cast<double>(unroll_limit_))) {
      loop->unrolled = true;
      found.steps *= extent;
      found.unrolled += 1;
    } else if (loop->tag == NO_TAG) {
      found.normal += 1;
    } else if (loop->tag == VTHREAD_TAG) {
      found.steps *= extent;
    }
    std::tie(unroll_limit_, explicit_) = saved;
    leave();
    return found;
  }

  static bool several_statements(Node inner) {
    for (Kind kind = kind_of(inner); kind == Kind::SBlockRealize || kind == Kind::SBlock || kind == Kind::AttrStmt;
         kind = kind_of(inner)) {
      inner = child(inner, kind == Kind::SBlockRealize ? Field::block : Field::body);
    }
    if (kind_of(inner) != Kind::SeqStmt) return false;
    const auto* seq = list(inner, Field::seq);
    int statements = 0;
    for (size_t i = 0; i < seq->size(); ++i) statements += holds_statement(item(seq, i));
    return statements > 1;
  }

  Vector<std::pair<Node, Range>> ranges() const {
    Vector<std::pair<Node, Range>> found;
    for (const auto& loop : loops_) found.push_back({loop->handle, {loop->start, loop->start + loop->extent - 1}});
    return found;
  }

  // Whether a condition always holds, or never; in a lowered program nothing is left to decide. Where TVM may know better,
  // what is below is doubtful.
  std::optional<bool> decided(Node condition) {
    if (placements_ == nullptr) return std::nullopt;
    Softly doubts;
    const Sums now(ranges(), bindings_);
    auto found = now.decided(condition);
    doubtful_ |= exactly && (branches_ > 0 || !now.plain(condition) || doubts.why != nullptr);
    return found;
  }

  const Survey* survey_;
  const Placements* placements_;
  Bindings bindings_;
  Tree tree_;
  int32_t next_id_ = 1;
  int32_t serial_length_ = 1;
  Vector<std::shared_ptr<Loop>> loops_;
  Vector<std::pair<Node, bool>> guards_;
  int64_t unroll_limit_ = 0;
  bool explicit_ = false;
  bool inside_ = false;
  Path path_;
  int branches_ = 0;  // around the current statement
  bool doubtful_ = false;
};

inline Tree walk(Node function, const Survey* survey = nullptr) {
  Tree tree = Walker(survey).run(function);
  if (tree.leaves.empty()) throw Unsupported("the program has no store: nothing is computed, so it has no latency");
  return tree;
}

}  // namespace cdmpp
