// Gradients of the members of a `Ranker` in training: ListNet's loss of tasks, through perceptrons with dropout.
#pragma once

#include "gradient.h"
#include "ranker.h"

// A member's weights as torch has them, and where their gradients go: first, second and last layer, each with its bias.
struct Member {
    const float* weights[6];
    float* gradients[6];
};

// What a step of a member reads: programs `rows` (n,), task after task; `starts` (tasks + 1,) are places in `rows`.
struct RankedTasks {
    const float* inputs;  // (programs, in) of all programs, scaled
    const float* goal;    // (programs,)
    const int64_t *rows, *starts;
    int64_t in, tasks, width;
    uint64_t seed;  // of dropout
    float dropout;
};

// Sets a share of `x` (n,) to zero and scales the others; the same draws with the same seed.
INLINE void drop(float* x, int64_t n, uint64_t seed, float share) {
    const uint32_t below = static_cast<uint32_t>(share * 65536.0f + 0.5f);
    const float scale = 1.0f / (1.0f - share);
    for (int64_t i = 0; i < n; ++i) {
        uint32_t x32 = static_cast<uint32_t>(i) * 0x9E3779B1u + static_cast<uint32_t>(seed);
        x32 = (x32 ^ (x32 >> 16)) * 0x85EBCA6Bu + static_cast<uint32_t>(seed >> 32);
        x32 = (x32 ^ (x32 >> 13)) * 0xC2B2AE35u;
        x[i] = (x32 >> 16) < below ? 0.0f : x[i] * scale;
    }
}

// (n,) scores of all rows -> their slopes: softmax of the scores less that of the goals, in each task.
INLINE void listwise_slopes(const RankedTasks& of, float* scores) {
    auto softmax = [](float* x, int64_t n) __attribute__((always_inline)) {
        float most = -std::numeric_limits<float>::infinity(), sum = 0.0f;
        for (int64_t i = 0; i < n; ++i) most = std::fmax(most, x[i]);
        for (int64_t i = 0; i < n; ++i) sum += x[i] = exponential(x[i] - most);
        for (int64_t i = 0; i < n; ++i) x[i] /= sum;
    };
    std::vector<float> wanted;
    for (int64_t t = 0; t < of.tasks; ++t) {
        const int64_t from = of.starts[t], n = of.starts[t + 1] - from;
        wanted.resize(n);
        for (int64_t i = 0; i < n; ++i) wanted[i] = of.goal[of.rows[from + i]];
        softmax(wanted.data(), n), softmax(scores + from, n);
        for (int64_t i = 0; i < n; ++i) scores[from + i] = (scores[from + i] - wanted[i]) / static_cast<float>(of.tasks);
    }
}

template <int LANES>
INLINE void ranker_gradient(const RankedTasks& of, const Member& member) {
    const int64_t n = of.starts[of.tasks], in = of.in, width = of.width;
    std::vector<float> x(n * in), up(n * width), active, next(n * width), last, slopes(n), to(n * width);
    Linear first, second;
    first.read(member.weights[0], member.weights[1], width, in, 2 * LANES);
    second.read(member.weights[2], member.weights[3], width, width, 2 * LANES);
    for (int64_t i = 0; i < n; ++i) std::copy_n(of.inputs + of.rows[i] * in, in, x.data() + i * in);
    auto through = [&](std::vector<float>& from, std::vector<float>& dropped, uint64_t layer) __attribute__((always_inline)) {
        dropped = from;
        gelu(dropped.data(), n * width);
        drop(dropped.data(), n * width, of.seed + layer, of.dropout);
    };
    multiply<LANES>(first, x.data(), in, n, up.data(), width);
    through(up, active, 0);
    multiply<LANES>(second, active.data(), width, n, next.data(), width);
    through(next, last, 1);
    for (int64_t i = 0; i < n; ++i)
        slopes[i] = product_of<LANES>(last.data() + i * width, member.weights[4], width) + *member.weights[5];
    listwise_slopes(of, slopes.data());

    for (int i : {1, 3, 4}) std::fill_n(member.gradients[i], width, 0.0f);
    *member.gradients[5] = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        *member.gradients[5] += slopes[i];
        for (int64_t d = 0; d < width; ++d) {
            member.gradients[4][d] += slopes[i] * last[i * width + d];
            to[i * width + d] = slopes[i] * member.weights[4][d];
        }
    }
    Floats spare;
    auto back = [&](const std::vector<float>& from, std::vector<float>& of_active, uint64_t layer) __attribute__((always_inline)) {
        drop(of_active.data(), n * width, of.seed + layer, of.dropout);
        gelu_slope(from.data(), of_active.data(), n * width);
    };
    auto of_weight = [&](const std::vector<float>& slopes_of, const std::vector<float>& read, int64_t in_, int64_t i) __attribute__((always_inline)) {
        product<LANES>(slopes_of.data(), 1, width, width, read.data(), in_, n, in_, member.gradients[i], in_, spare);
        add_rows(slopes_of.data(), n, width, member.gradients[i + 1]);
    };
    back(next, to, 1);
    of_weight(to, active, width, 2);
    product<LANES>(to.data(), width, 1, n, member.weights[2], width, width, width, last.data(), width, spare);
    back(up, last, 0);
    of_weight(last, x, in, 0);
}
