// The answers of a network for a few programs, side by side without padding.
#pragma once

#include <algorithm>
#include <limits>

#include "network.h"

// Programs as flat tables, `ProgramTensors` of Python.
struct Programs {
    const float* leaves;         // (leaves, leaf_width)
    const int32_t* leaf_places;  // (leaves, 3): position, serial position, kernel
    const int64_t *leaf_starts, *leaf_counts;
    const float* kernels;  // (kernels, kernel_width)
    const int64_t *kernel_starts, *kernel_counts;
    const int64_t *kinds, *devices;
    const float* codes;  // (codes, code.width), NaN where there is none
    const int64_t* code_rows;
    const float* numbers;   // (devices, 2, number::COUNT)
    const float* contexts;  // (devices, width)
    const float* own;       // (devices, amounts + 2) costs of a CPU's code
};

struct Answers {
    double* log_latency;       // (n,)
    float* hidden;             // (n, hidden)
    float *largest, *smallest;  // (n, leaf_width + kernel_width)
};

// Memory of one thread, kept from chunk to chunk.
struct Scratch {
    std::vector<float> rows, first, kernels, leaves, to_leaf, tokens, normed, wide, attended, scores, priors, joined, own;
    std::vector<int64_t> starts;

    static float* sized(std::vector<float>& of, int64_t n) {
        if (static_cast<int64_t>(of.size()) < n) of.resize(n);
        return of.data();
    }
};

INLINE float add_exponentials(const float* x, int64_t n) {
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < n; ++i) most = std::fmax(most, x[i]);
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i] - most));
    return static_cast<float>(most + std::log(sum));
}

// What the fitted priors make of a program: a row of inputs for each kernel, and its log-seconds.
INLINE void read_kernels(const Network& net, const Programs& p, int64_t row, float* inputs, float* priors) {
    const Shape& s = net.shape;
    const CodeLayout& c = net.code;
    const int64_t n = p.kernel_counts[row], kind = p.kinds[row], device = p.devices[row];
    const float* numbers = p.numbers + (device * 2 + kind) * number::COUNT;
    float memory_s[16] = {}, work = 0.0f, shared_work = 0.0f;
    for (int64_t k = 0; k < n; ++k) {
        const float* features = p.kernels + (p.kernel_starts[row] + k) * s.kernel_width;
        float* to = inputs + k * s.input_width;
        std::copy(features, features + s.kernel_width, to);
        to += s.kernel_width;
        const Quantities q(features, numbers, net.layout);
        float parts[N_PARTS] = {}, bounds[N_BOUNDS];
        if (kind == 0) cpu_parts(q, parts, to + N_BOUNDS);
        else gpu_parts(q, parts + N_CPU_PARTS, to + N_BOUNDS);
        net.prior.times(parts, bounds);
        for (int b = 0; b < N_BOUNDS; ++b) to[b] = std::log(bounds[b]);
        priors[k] = net.prior.log_seconds(bounds, static_cast<int>(kind));
        for (int i = 0; i < c.n_memory; ++i) memory_s[i] += parts[c.memory[i]];
        const float iterations = q[quantity::iterations] + 1.0f;
        work += iterations, shared_work += iterations / q.parallel_cores();
    }
    if (c.kind < 0) return;
    const int64_t behind = s.kernel_width + N_BOUNDS + N_STATES, width = s.input_width - behind;
    float* read = inputs + behind;
    std::fill(read, read + width, 0.0f);
    const float* code = p.codes + p.code_rows[row] * c.width;
    if (!std::isnan(code[0])) {
        float logs[16];
        const float analytic = add_exponentials(priors, n);
        const float by_code =
            c.kind == 0 ? cpu_code_time(c, code, memory_s, numbers, work / shared_work,
                                        p.own + device * (c.n_amounts + c.n_memory + 2), logs)
                        : gpu_code_time(c, code, memory_s[0] + memory_s[1], numbers, logs);
        const float ahead = (by_code - analytic) * c.fitted;
        read[0] = 1.0f;
        std::copy(code, code + c.width, read + 1);
        float* to = read + 1 + c.width;
        *to = code[c.simulated] * 0.693147180559945309f - std::log(1e6f * numbers[number::clock_mhz]);
        to[1] = to[0] - analytic;
        to[2] = by_code * c.fitted;
        to[3] = ahead;
        for (int r = 0; r < c.n_resources; ++r) to[4 + r] = logs[r] * c.fitted;
        for (int64_t k = 0; k < n; ++k) priors[k] += ahead;  // the whole moves, how it is spread stays
    }
    for (int64_t k = 1; k < n; ++k) std::copy(read, read + width, read + k * s.input_width);
}

template <int LANES>
INLINE void attend(const float* qkv, int64_t n, int64_t width, int64_t heads, float* scores, float* to) {
    const int64_t each = width / heads;
    const float scale = 1.0f / std::sqrt(static_cast<float>(each));
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t i = 0; i < n; ++i) {
            const float* query = qkv + i * 3 * width + head * each;
            float most = -std::numeric_limits<float>::infinity(), sum = 0.0f;
            for (int64_t j = 0; j < n; ++j) {
                scores[j] = scale * product_of<LANES>(query, qkv + j * 3 * width + width + head * each, each);
                most = scores[j] > most ? scores[j] : most;
            }
            for (int64_t j = 0; j < n; ++j) scores[j] = exponential(scores[j] - most);
            for (int64_t j = 0; j < n; ++j) sum += scores[j];
            float* own = to + i * width + head * each;
            std::fill(own, own + each, 0.0f);
            for (int64_t j = 0; j < n; ++j) {
                const float share = scores[j] / sum;
                const float* value = qkv + j * 3 * width + 2 * width + head * each;
                for (int64_t d = 0; d < each; ++d) own[d] += share * value[d];
            }
        }
}

template <int LANES>
INLINE void extremes(const float* rows, int64_t n, int64_t width, float* largest, float* smallest) {
    std::copy(rows, rows + width, largest);
    std::copy(rows, rows + width, smallest);
    for (int64_t row = 1; row < n; ++row) {
        rows += width;
        for (int64_t i = 0; i < width; ++i) {
            largest[i] = rows[i] > largest[i] ? rows[i] : largest[i];
            smallest[i] = rows[i] < smallest[i] ? rows[i] : smallest[i];
        }
    }
}

template <int LANES>
INLINE void answer(const Network& net, const Programs& p, const int64_t* rows, int64_t n, Scratch& m, Answers to) {
    const Shape& s = net.shape;
    const int64_t width = s.width;
    int64_t n_kernels = 0, n_leaves = 0;
    for (int64_t i = 0; i < n; ++i) n_kernels += p.kernel_counts[rows[i]], n_leaves += p.leaf_counts[rows[i]];
    const int64_t n_tokens = n_kernels + n_leaves;

    float* priors = Scratch::sized(m.priors, n_kernels);
    float* inputs = Scratch::sized(m.joined, n_kernels * std::max(s.input_width, 4 * width));
    for (int64_t i = 0, k = 0; i < n; k += p.kernel_counts[rows[i]], ++i)
        read_kernels(net, p, rows[i], inputs + k * s.input_width, priors + k);
    const int64_t used = static_cast<int64_t>(net.kernels.used.size());
    float* dense = Scratch::sized(m.rows, std::max(n_kernels * net.embed_kernel.in, n_leaves * net.embed_leaf.in));
    for (int64_t k = 0; k < n_kernels; ++k) {
        float* row = dense + k * net.embed_kernel.in;
        for (int64_t j = 0; j < used; ++j) {
            const int32_t column = net.kernels.used[j];
            const float x = row[j] = net.kernels(inputs + k * s.input_width, column);
            for (int64_t b = 0; b < s.bins; ++b) row[used + j * s.bins + b] = net.bin(column, b, x);
        }
    }
    float* first = Scratch::sized(m.first, n_tokens * width);
    float* kernels = Scratch::sized(m.kernels, n_kernels * width);
    multiply<LANES>(net.embed_kernel, dense, net.embed_kernel.in, n_kernels, first, width);
    gelu(first, n_kernels * width);
    multiply<LANES>(net.kernel_out, first, width, n_kernels, kernels, width);
    float* to_leaf = Scratch::sized(m.to_leaf, n_kernels * width);
    multiply<LANES>(net.kernel_to_leaf, kernels, width, n_kernels, to_leaf, width);

    const int64_t leaf_used = static_cast<int64_t>(net.leaves.used.size());
    for (int64_t i = 0, l = 0; i < n; ++i)
        for (int64_t j = 0; j < p.leaf_counts[rows[i]]; ++j, ++l) {
            const float* features = p.leaves + (p.leaf_starts[rows[i]] + j) * s.leaf_width;
            for (int64_t u = 0; u < leaf_used; ++u) dense[l * leaf_used + u] = net.leaves(features, net.leaves.used[u]);
        }
    float* leaves = Scratch::sized(m.leaves, n_leaves * width);
    multiply<LANES>(net.embed_leaf, dense, leaf_used, n_leaves, first, width);
    gelu(first, n_leaves * width);
    multiply<LANES>(net.leaf_out, first, width, n_leaves, leaves, width);

    float* tokens = Scratch::sized(m.tokens, n_tokens * width);
    float* place = Scratch::sized(m.own, std::max(width, s.hidden));
    for (int64_t i = 0, t = 0, k = 0, l = 0; i < n; ++i) {
        const int64_t row = rows[i], own_kernels = p.kernel_counts[row];
        const float* context = p.contexts + p.devices[row] * width;
        for (int64_t j = 0; j < own_kernels; ++j, ++t) {
            const float* ordinal = net.ordinal.data() + std::min(j, s.ordinals - 1) * width;
            for (int64_t d = 0; d < width; ++d)
                tokens[t * width + d] = kernels[(k + j) * width + d] + net.token_type[d] + ordinal[d] + context[d];
        }
        for (int64_t j = 0; j < p.leaf_counts[row]; ++j, ++t, ++l) {
            const int32_t* at = p.leaf_places + 3 * (p.leaf_starts[row] + j);
            const float* ordinal = net.ordinal.data() + std::min<int64_t>(at[2], s.ordinals - 1) * width;
            const float* position = net.positions.data() + at[0] * width;
            if (at[0] >= Network::POSITIONS) net.place(static_cast<float>(at[0]), place), position = place;
            for (int64_t d = 0; d < width; ++d)
                tokens[t * width + d] = leaves[l * width + d] + to_leaf[(k + at[2]) * width + d] + position[d] +
                                        net.token_type[width + d] + ordinal[d] + context[d];
        }
        k += own_kernels;
    }

    float* normed = Scratch::sized(m.normed, n_tokens * width);
    float* wide = Scratch::sized(m.wide, n_tokens * std::max({3 * width, s.feedforward, s.hidden}));
    float* attended = Scratch::sized(m.attended, n_tokens * width);
    float* scores = Scratch::sized(m.scores, n_tokens);
    for (const Block& block : net.layers) {
        normalise<LANES>(block.norm_attention, tokens, n_tokens, width, normed);
        multiply<LANES>(block.qkv, normed, width, n_tokens, wide, 3 * width);
        for (int64_t i = 0, t = 0; i < n; ++i) {
            const int64_t own = p.kernel_counts[rows[i]] + p.leaf_counts[rows[i]];
            attend<LANES>(wide + t * 3 * width, own, width, s.heads, scores, attended + t * width);
            t += own;
        }
        multiply<LANES>(block.out, attended, width, n_tokens, normed, width);
        for (int64_t d = 0; d < n_tokens * width; ++d) tokens[d] += normed[d];
        normalise<LANES>(block.norm_feedforward, tokens, n_tokens, width, normed);
        multiply<LANES>(block.up, normed, width, n_tokens, wide, s.feedforward);
        gelu(wide, n_tokens * s.feedforward);
        multiply<LANES>(block.down, wide, s.feedforward, n_tokens, normed, width);
        for (int64_t d = 0; d < n_tokens * width; ++d) tokens[d] += normed[d];
    }
    normalise<LANES>(net.norm, tokens, n_tokens, width, normed);

    float* joined = inputs;  // no longer needed
    std::fill(joined, joined + n_kernels * 4 * width, 0.0f);
    for (int64_t i = 0, t = 0, k = 0; i < n; ++i) {
        const int64_t row = rows[i], own_kernels = p.kernel_counts[row], own_leaves = p.leaf_counts[row];
        const float* context = p.contexts + p.devices[row] * width;
        float* counts = Scratch::sized(m.scores, own_kernels);
        std::fill(counts, counts + own_kernels, 0.0f);
        float* mine = joined + k * 4 * width;
        for (int64_t j = 0; j < own_leaves; ++j) {
            const float* leaf = normed + (t + own_kernels + j) * width;
            const int32_t kernel = p.leaf_places[3 * (p.leaf_starts[row] + j) + 2];
            counts[kernel] += 1.0f;
            for (int64_t d = 0; d < width; ++d) {
                mine[kernel * 4 * width + width + d] += leaf[d];
                mine[2 * width + d] += leaf[d];
            }
        }
        const float share = 1.0f / static_cast<float>(std::max<int64_t>(own_leaves, 1));
        for (int64_t d = 0; d < width; ++d) mine[2 * width + d] *= share;
        for (int64_t j = own_kernels - 1; j >= 0; --j) {
            float* to_kernel = mine + j * 4 * width;
            const float own_share = 1.0f / std::fmax(counts[j], 1.0f);
            std::copy(normed + (t + j) * width, normed + (t + j + 1) * width, to_kernel);
            for (int64_t d = 0; d < width; ++d) to_kernel[width + d] *= own_share;
            if (j) std::copy(mine + 2 * width, mine + 3 * width, to_kernel + 2 * width);
            std::copy(context, context + width, to_kernel + 3 * width);
        }
        k += own_kernels, t += own_kernels + own_leaves;
    }
    float* between = Scratch::sized(m.rows, n_kernels * s.hidden);
    multiply<LANES>(net.regressor, joined, 4 * width, n_kernels, between, s.hidden);
    gelu(between, n_kernels * s.hidden);
    multiply<LANES>(net.regressor_out, between, s.hidden, n_kernels, wide, s.hidden);
    gelu(wide, n_kernels * s.hidden);
    const float log_scale = static_cast<float>(s.log_scale), log_mean = static_cast<float>(s.log_mean);
    for (int64_t i = 0, k = 0; i < n; ++i) {
        const int64_t row = rows[i], own = p.kernel_counts[row];
        float* hidden = to.hidden + i * s.hidden;
        std::fill(hidden, hidden + s.hidden, 0.0f);
        for (int64_t j = k; j < k + own; ++j) {
            const float* of = wide + j * s.hidden;
            for (int64_t d = 0; d < s.hidden; ++d) hidden[d] += of[d];
            const float corrected = product_of<LANES>(of, net.out_weight.data(), s.hidden) + net.out_bias;
            priors[j] = corrected * log_scale + (s.has_prior ? priors[j] : log_mean);
        }
        for (int64_t d = 0; d < s.hidden; ++d) hidden[d] /= static_cast<float>(own);
        to.log_latency[i] = add_exponentials(priors + k, own);
        k += own;
        const int64_t facts = s.leaf_width + s.kernel_width;
        extremes<LANES>(p.leaves + p.leaf_starts[row] * s.leaf_width, p.leaf_counts[row], s.leaf_width,
                        to.largest + i * facts, to.smallest + i * facts);
        extremes<LANES>(p.kernels + p.kernel_starts[row] * s.kernel_width, own, s.kernel_width,
                        to.largest + i * facts + s.leaf_width, to.smallest + i * facts + s.leaf_width);
    }
}
