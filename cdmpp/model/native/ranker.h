// The scores of a `Ranker`: small perceptrons, their first layers as one.
#pragma once

#include "functions.h"
#include "linear.h"

struct Ranker {
    static constexpr int64_t TOGETHER = 48;  // rows whose inputs stay in the first-level caches
    std::vector<int32_t> used;  // inputs that varied in training
    std::vector<float> mean, scale;
    int64_t inputs, width, members;
    float clip;
    Linear first;
    std::vector<Linear> second, last;

    // `arrays`: mean, scale, then weight and bias of the first layers of all members, of their second, of their last.
    Ranker(const float* const* arrays, int64_t inputs_, int64_t width_, int64_t members_, float clip_, int64_t panel)
        : inputs(inputs_), width(width_), members(members_), clip(clip_), second(members_), last(members_) {
        for (int32_t i = 0; i < inputs; ++i)
            if (arrays[1][i] != 0.0f) used.push_back(i), mean.push_back(arrays[0][i]), scale.push_back(arrays[1][i]);
        first.read(arrays[2], arrays[3], members * width, static_cast<int64_t>(used.size()), panel, used.data(), inputs);
        for (int64_t m = 0; m < members; ++m) {
            second[m].read(arrays[4] + m * width * width, arrays[5] + m * width, width, width, panel);
            last[m].read(arrays[6] + m * width, arrays[7] + m, 1, width, panel);
        }
    }
};

// (n, inputs) -> (n,)
template <int LANES>
INLINE void ranker_scores(const Ranker& r, const float* rows, int64_t n, float* to) {
    const int64_t in = r.first.in, width = r.width, wide = r.members * width;
    std::vector<float> scaled(Ranker::TOGETHER * in), up(Ranker::TOGETHER * wide), next(Ranker::TOGETHER * width);
    float score[Ranker::TOGETHER];
    for (int64_t from = 0; from < n; from += Ranker::TOGETHER) {
        const int64_t some = std::min(Ranker::TOGETHER, n - from);
        for (int64_t i = 0; i < some; ++i)
            for (int64_t k = 0; k < in; ++k) {
                const float x = (rows[(from + i) * r.inputs + r.used[k]] - r.mean[k]) * r.scale[k];
                scaled[i * in + k] = x < -r.clip ? -r.clip : x > r.clip ? r.clip : x;
            }
        multiply<LANES>(r.first, scaled.data(), in, some, up.data(), wide);
        gelu(up.data(), some * wide);
        std::fill(to + from, to + from + some, 0.0f);
        for (int64_t m = 0; m < r.members; ++m) {
            multiply<LANES>(r.second[m], up.data() + m * width, wide, some, next.data(), width);
            gelu(next.data(), some * width);
            multiply<LANES>(r.last[m], next.data(), width, some, score, 1);
            for (int64_t i = 0; i < some; ++i) to[from + i] += score[i] / static_cast<float>(r.members);
        }
    }
}
