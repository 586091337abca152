// The points of a store's loop space at which index expressions are evaluated.
#pragma once

#include "walk.h"

namespace cdmpp {

using Loops = Vector<std::shared_ptr<Loop>>;

inline uint32_t scramble(uint32_t sample, uint32_t loop) {
  uint32_t h = ((sample + 1u) * 2654435761u) ^ ((loop + 1u) * 2246822519u);
  h = (h ^ (h >> 15)) * 2246822519u;
  return h ^ (h >> 13);
}

// Calls visit(Node variable) for every loop variable that an expression in the store of a leaf depends on.
template <typename Visit>
void loop_variables(Node expression, const Leaf& leaf, const Visit& visit) {
  if (leaf.sums == nullptr || leaf.simplified) {
    free_variables(expression, visit);
  } else {
    leaf.sums->variables(expression, visit);
  }
}

inline int64_t remainder(uint32_t h, int64_t extent) {
  return extent <= UINT32_MAX ? h % static_cast<uint32_t>(extent) : h;
}

// Point 0 is the first iteration; then one step along each loop; the end of each loop; the lanes of the first warp;
// pseudo-random iterations. Without threads there are no lanes.
class Points {
 public:
  int64_t n_loops, n_lanes, lane0, random0, count;

  explicit Points(const Leaf& leaf) : leaf_(leaf) {
    for (const auto& loop : leaf.loops) {
      if (loop->tag == THREAD_TAG) threads_.push_back(loop.get());
    }
    std::stable_sort(threads_.begin(), threads_.end(), [](auto* x, auto* y) { return x->axis < y->axis; });
    int64_t n_threads = 1;
    for (const Loop* loop : threads_) n_threads *= loop->extent;
    n_loops = static_cast<int64_t>(leaf.loops.size());
    n_lanes = std::min<int64_t>(WARP, n_threads);
    lane0 = 1 + 2 * n_loops;
    random0 = lane0 + (threads_.empty() ? 0 : WARP);
    count = random0 + N_RANDOM;
  }

  // Made where something asks: most accesses of scheduled programs are sums of loop variables, which need none.
  const Env& env() const {
    if (env_.n == 0) fill();
    return env_;
  }

  // Share of the pseudo-random iterations at which a condition holds.
  double share(const Vector<char>& holds) const {
    int64_t sum = 0;
    for (int64_t i = random0; i < count; ++i) sum += holds[i] != 0;
    return static_cast<double>(sum) / N_RANDOM;
  }

 private:
  void fill() const {
    const Loops& loops = leaf_.loops;
    int64_t n = n_loops;
    env_ = Env(count, leaf_.bindings);
    for (int64_t i = 0; i < n; ++i) {
      const Loop& loop = *loops[i];
      auto& values = env_.row(loop.handle);
      values.assign(count, loop.start);
      if (loop.extent > 1) {
        values[1 + i] = loop.start + 1;
        values[1 + n + i] = loop.start + loop.extent - 1;
      }
      for (int64_t s = 0; s < N_RANDOM; ++s) {
        uint32_t h = scramble(static_cast<uint32_t>(s), static_cast<uint32_t>(i));
        values[random0 + s] = loop.start + remainder(h, loop.extent);
      }
    }
    int64_t stride = 1;
    for (const Loop* loop : threads_) {
      auto& values = env_.row(loop->handle);
      for (int64_t lane = 0; lane < WARP; ++lane) values[lane0 + lane] = loop->start + (lane / stride) % loop->extent;
      stride *= loop->extent;
    }
  }

  const Leaf& leaf_;
  Vector<const Loop*> threads_;
  mutable Env env_;
};

// holds[i] &= (condition is true at point i) == positive
inline void restrict_to(Vector<char>& holds, Node condition, bool positive, const Env& env) {
  Value value = evaluate(condition, env);
  for (size_t i = 0; i < holds.size(); ++i) holds[i] &= value.truth(static_cast<int64_t>(i)) == positive;
}

}  // namespace cdmpp
