// Programs as rows of fixed width, for a ranker and for trees: leaves and kernels pooled, times of kernels, nothing fitted.
#pragma once

#include "prior.h"

struct PooledTables {
    const float* leaves;  // (leaves, leaf_width)
    const int64_t* leaf_offsets;
    const float* kernels;  // (kernels, kernel_width)
    const int64_t* kernel_offsets;
    const uint8_t* kinds;
    const int64_t* devices;
    const float* numbers;  // (devices, 2, number::COUNT)
    const int32_t* work;   // (n_work,) columns of a leaf that add up to its operations
    int64_t leaf_width, kernel_width, n_work;
};

// Features are signed log2(1 + |x|); most of them are zero.
inline double expand(double x) {
    if (x == 0.0) return x;
    const double amount = std::exp2(std::fmin(std::fabs(x), 100.0)) - 1.0;
    return x < 0.0 ? -amount : amount;
}

inline double compress(double x) {
    if (x == 0.0) return x;
    return std::copysign(std::log2(1.0 + std::fabs(x)), x);
}

// Of the quantities of rows (n, width): the logarithm of each sum.
inline float* log_sums(const float* rows, int64_t n, int64_t width, float* to) {
    for (int64_t i = 0; i < width; ++i) {
        double sum = 0.0;
        for (int64_t row = 0; row < n; ++row) sum += expand(rows[row * width + i]);
        *to++ = static_cast<float>(compress(sum));
    }
    return to;
}

// `to` (width,); `rows`: spare room for kernels.
inline void pool(const PooledTables& p, const AnalyticPrior& prior, const Layout& layout, int64_t i, float* to,
                 std::vector<float>& rows) {
    const int64_t kind = p.kinds[i], n_leaves = p.leaf_offsets[i + 1] - p.leaf_offsets[i];
    const int64_t n = p.kernel_offsets[i + 1] - p.kernel_offsets[i], width = p.kernel_width + N_BOUNDS;
    const float* leaves = p.leaves + p.leaf_offsets[i] * p.leaf_width;
    to = log_sums(leaves, n_leaves, p.leaf_width, to);
    int64_t busiest = 0;
    double most = -1.0;
    for (int64_t leaf = 0; leaf < n_leaves; ++leaf) {
        double work = 0.0;
        for (int64_t k = 0; k < p.n_work; ++k) work += expand(leaves[leaf * p.leaf_width + p.work[k]]);
        if (work > most) most = work, busiest = leaf;
    }
    to = std::copy(leaves + busiest * p.leaf_width, leaves + (busiest + 1) * p.leaf_width, to);

    rows.resize(n * width);
    int64_t first = 0, second = -1;
    double total = 0.0;
    std::vector<float> seconds(n);
    for (int64_t k = 0; k < n; ++k) {
        const float* features = p.kernels + (p.kernel_offsets[i] + k) * p.kernel_width;
        float* row = std::copy(features, features + p.kernel_width, rows.data() + k * width);
        float parts[N_PARTS] = {}, bounds[N_BOUNDS], states[N_STATES];
        const Quantities q(features, p.numbers + (p.devices[i] * 2 + kind) * number::COUNT, layout);
        if (kind == 0) cpu_parts(q, parts, states);
        else gpu_parts(q, parts + N_CPU_PARTS, states);
        prior.times(parts, bounds);
        for (int b = 0; b < N_BOUNDS; ++b) row[b] = static_cast<float>(compress(bounds[b] * 1e9));
        total += seconds[k] = prior.seconds(bounds, static_cast<int>(kind));
        if (k == 0) continue;
        if (seconds[k] > seconds[first]) second = first, first = k;
        else if (second < 0 || seconds[k] > seconds[second]) second = k;
    }
    to = std::copy_n(rows.data() + first * width, width, to);
    if (n > 1) {  // of a single kernel these would only repeat it
        to = std::copy_n(rows.data() + second * width, width, to);
        to = log_sums(rows.data(), n, width, to);
    } else {
        to = std::fill_n(to, 2 * width, 0.0f);
    }
    *to++ = static_cast<float>(n_leaves), *to++ = static_cast<float>(n), *to++ = static_cast<float>(kind);
    *to = static_cast<float>(compress(total * 1e9));
}
