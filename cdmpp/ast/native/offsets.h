// Where in its buffer an access goes, in elements: indices that are sums of loop variables, quotients and remainders are
// computed where a step along a loop asks; others are evaluated at all points.
#pragma once

#include "points.h"

namespace cdmpp {

// Of a sum that loops alone give. at(i): the value of loop i.
template <typename At>
int64_t value_of(const Sum& sum, const Loops& loops, const At& at) {
  int64_t value = sum.constant;
  for (const auto& [atom, factor] : sum.terms) {
    if (atom.inside != nullptr) {
      int64_t inside = value_of(*atom.inside, loops, at);
      bool whole = atom.division == Kind::FloorDiv;
      value += factor * (whole ? floor_div(inside, atom.divisor) : floor_mod(inside, atom.divisor));
      continue;
    }
    size_t i = 0;
    while (loops[i]->handle != atom.variable) ++i;
    value += factor * at(i);
  }
  return value;
}

// One index of an access.
struct Part {
  const Sum* sum;  // null: it is more than a sum of what loops give
  int64_t low;     // what is kept of the buffer begins here
  int64_t weight;  // elements that a step of one is
  Vector<char> around;  // loops around the place of the buffer, which stand still
};

struct Offsets {
  Vector<Part> parts;
  Vector<int64_t> sampled;  // at the points; none where all parts are sums
  int64_t elements = 1;          // of the buffer
  Vector<char> depends;     // on each loop
  Vector<int64_t> strides, spans;  // how far a step along each loop goes, and all its steps

  template <typename At>
  int64_t of(const Loops& loops, const At& at) const {
    int64_t offset = 0;
    for (const Part& part : parts) {
      auto stood = [&](size_t i) { return !part.around.empty() && part.around[i] ? loops[i]->start : at(i); };
      offset += (value_of(*part.sum, loops, stood) - part.low) * part.weight;
    }
    return offset;
  }

  int64_t of_point(const Loops& loops, const Points& points, int64_t point) const {
    if (!sampled.empty()) return sampled[point];
    return of(loops, [&](size_t i) { return points.env().find(loops[i]->handle)[point]; });
  }
};

// The points as an allocation sees them: the loops around it stand still.
inline Env held_still(const Leaf& leaf, const Points& points, const Vector<char>& around) {
  Env env(points.count, leaf.bindings);
  for (size_t i = 0; i < leaf.loops.size(); ++i) {
    const Loop& loop = *leaf.loops[i];
    if (around[i]) {
      env.row(loop.handle).assign(points.count, loop.start);
    } else {
      const int64_t* values = points.env().find(loop.handle);
      env.row(loop.handle) = Vector<int64_t>(values, values + points.count);
    }
  }
  return env;
}

inline const Sum* sum_of_loops(Node index, const Leaf& leaf) {
  if (leaf.sums == nullptr || leaf.simplified) return nullptr;
  Kind kind = kind_of(index);
  bool sum = kind == Kind::Var || kind == Kind::IntImm || (kind >= Kind::Add && kind <= Kind::FloorMod && !is_float(index));
  if (!sum) return nullptr;
  const Sum& found = leaf.sums->of(index);
  return only_loops(found) ? &found : nullptr;
}

// Offsets at the points, in which loads count as 0.
inline Vector<int64_t> sampled_offsets(const Offsets& offsets, const ffi::ArrayObj* indices, const Points& points,
                                            const Leaf& leaf) {
  Vector<int64_t> sampled(points.count, 0);
  const Vector<char>* around = nullptr;
  std::optional<Env> own;
  for (size_t k = offsets.parts.size(); k-- > 0;) {
    const Part& part = offsets.parts[k];
    if (!part.around.empty() && (around == nullptr || *around != part.around)) own.emplace(held_still(leaf, points, part.around));
    if (!part.around.empty()) around = &part.around;
    Value value = evaluate(item(indices, k), own ? *own : points.env());
    for (int64_t p = 0; p < points.count; ++p) sampled[p] += (value.integer(p) - part.low) * part.weight;
  }
  return sampled;
}

// `sample`: at the points in any case, of which the lanes of a warp are some.
inline Offsets offsets_of(Node buffer, const ffi::ArrayObj* indices, const Points& points, const Leaf& leaf, bool sample) {
  const Loops& loops = leaf.loops;
  const Placement* placement = placement_of(leaf, buffer);
  const auto* shape = list(buffer_type(buffer), Field::shape);
  if (shape->size() != indices->size()) throw Unsupported("an access has fewer or more indices than dimensions");
  size_t n = loops.size();
  Offsets found;
  found.depends.assign(n, 0);
  found.parts.resize(shape->size());
  for (size_t k = shape->size(); k-- > 0;) {
    Node index = item(indices, k);
    Part& part = found.parts[k] = {sum_of_loops(index, leaf), placement == nullptr ? 0 : placement->low[k], found.elements, {}};
    if (placement != nullptr && placement->site != nullptr) part.around = loops_around(leaf, *placement, k);
    loop_variables(index, leaf, [&](Node variable) {
      for (size_t i = 0; i < n; ++i) found.depends[i] |= loops[i]->handle == variable && (part.around.empty() || !part.around[i]);
    });
    found.elements *= placement == nullptr ? dimension(shape, k, buffer) : placement->extents[k];
    sample |= part.sum == nullptr;
  }
  if (sample) found.sampled = sampled_offsets(found, indices, points, leaf);
  found.strides.assign(n, 0);
  found.spans.assign(n, 0);
  auto at_first = [&](size_t i) { return loops[i]->start; };
  int64_t first = sample ? found.sampled[0] : found.of(loops, at_first);
  for (size_t i = 0; i < n; ++i) {
    int64_t steps = loops[i]->extent - 1;
    if (steps == 0 || (!sample && !found.depends[i])) continue;
    auto after = [&](int64_t step) {
      if (sample) return found.sampled[step == 1 ? 1 + i : 1 + n + i];
      return found.of(loops, [&](size_t k) { return loops[k]->start + (k == i ? step : 0); });
    };
    int64_t stride = std::abs(after(1) - first);
    int64_t span = steps == 1 ? stride : std::abs(after(steps) - first);
    if (stride == 0 && span > 0) stride = std::max<int64_t>(1, span / steps);
    found.strides[i] = stride;
    found.spans[i] = span;
  }
  return found;
}

// Whether two accesses go to the same place at all points.
inline bool same_place(const Offsets& one, const Offsets& other, const Points& points, const Loops& loops) {
  if (!one.sampled.empty() && !other.sampled.empty()) return one.sampled == other.sampled;
  if (one.strides != other.strides || one.spans != other.spans) return false;
  auto same = [](const Part& a, const Part& b) {
    return a.sum != nullptr && b.sum != nullptr && a.low == b.low && a.weight == b.weight && a.around == b.around && equal(*a.sum, *b.sum);
  };
  if (std::equal(one.parts.begin(), one.parts.end(), other.parts.begin(), other.parts.end(), same)) return true;
  for (int64_t point = 0; point < points.count; ++point) {
    if (one.of_point(loops, points, point) != other.of_point(loops, points, point)) return false;
  }
  return true;
}

}  // namespace cdmpp
