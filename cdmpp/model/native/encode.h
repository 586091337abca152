// What a network makes of a few programs, side by side without padding: the log-seconds of their kernels.
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

using Floats = std::vector<float>;

// What the gradient of a dense layer's weight is made of: inputs (n, in), and the slopes (n, out) of what it computed.
struct Dense {
    const float* x = nullptr;
    int64_t in = 0, out = 0, n = 0;
    Floats slopes;
};

// What is computed of a few programs, kept from chunk to chunk; of one that `keeps` all that gradients need is left.
struct Tape {
    struct Layer {
        Floats units, scales, normed, qkv, attended, mid_units, mid_scales, mid_normed, up, active;
    };
    bool keeps = false;
    int64_t n_kernels = 0, n_leaves = 0;
    Floats inputs, priors;  // (n_kernels, input_width) and (n_kernels,), read before; priors become log-seconds
    Floats kernel_rows, kernel_up, kernel_active, kernels, to_leaf, leaf_rows, leaf_up, leaf_active, leaves;
    Floats tokens, scores, place, units, scales, normed, joined, counts, between_up, between, last_up, last;
    std::vector<double> log_seconds;  // (n_kernels,)
    std::vector<Layer> layers;
    std::vector<Dense> dense;  // of each weight; without slopes where it is no dense layer's

    static float* sized(Floats& of, int64_t n) {
        if (static_cast<int64_t>(of.size()) < n) of.resize(n);
        return of.data();
    }
    // `x` through `gelu`; what it was is kept.
    float* active(Floats& x, Floats& to, int64_t n) {
        if (!keeps) return gelu(x.data(), n), x.data();
        std::copy(x.data(), x.data() + n, sized(to, n));
        gelu(to.data(), n);
        return to.data();
    }
    float* kept(Floats& of, int64_t n) { return keeps ? sized(of, n) : nullptr; }
};

template <class Number>
INLINE Number add_exponentials(const Number* x, int64_t n) {
    if (n == 1) return x[0];
    Number most = -std::numeric_limits<Number>::infinity();
    for (int64_t i = 0; i < n; ++i) most = std::fmax(most, x[i]);
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i] - most));
    return static_cast<Number>(most + std::log(sum));
}

// `scores`: spare room, for `SCORES` numbers or one for each token.
constexpr int64_t SCORES = 2048;

template <int LANES>
INLINE void attend(const float* qkv, int64_t n, int64_t width, int64_t heads, float* __restrict scores, float* to) {
    using V = Vector<LANES>;
    const int64_t each = width / heads, row = 3 * width, queries = heads * n;
    const int64_t at_once = std::max<int64_t>(1, (SCORES - LANES) / n);  // queries, so that long vectors are exponentiated
    const float scale = 1.0f / std::sqrt(static_cast<float>(each));
    for (int64_t from = 0; from < queries; from += at_once) {
        const int64_t end = std::min(queries, from + at_once);
        float* own = scores;
        for (int64_t q = from; q < end; ++q, own += n) {
            const int64_t head = q / n, at = head * each;
            const float* query = qkv + (q - head * n) * row + at;
            float most = -std::numeric_limits<float>::infinity();
            for (int64_t j = 0; j < n; ++j) {
                own[j] = scale * product_of<LANES>(query, qkv + j * row + width + at, each);
                most = own[j] > most ? own[j] : most;
            }
            for (int64_t j = 0; j < n; ++j) own[j] -= most;
        }
        const int64_t all = at_once == 1 ? n : ((end - from) * n + LANES - 1) / LANES * LANES;
        for (int64_t i = 0; i < all; ++i) scores[i] = exponential(scores[i]);
        own = scores;
        for (int64_t q = from; q < end; ++q, own += n) {
            const int64_t head = q / n, at = head * each;
            const float* values = qkv + 2 * width + at;
            float* mean = to + (q - head * n) * width + at;
            float sum = 0.0f;
            for (int64_t j = 0; j < n; ++j) sum += own[j];
            const float share = 1.0f / sum;
            int64_t d = 0;
            for (; d + LANES <= each; d += LANES) {
                typename V::type total = {};
                for (int64_t j = 0; j < n; ++j) total += own[j] * V::load(values + j * row + d);
                V::store(mean + d, total * share);
            }
            for (; d < each; ++d) {
                float total = 0.0f;
                for (int64_t j = 0; j < n; ++j) total += own[j] * values[j * row + d];
                mean[d] = total * share;
            }
        }
    }
}

// From what the first layer makes of their kernels, `kernel_up`, to the tokens of programs `rows` (n,), `normed`.
template <int LANES>
INLINE void encode(const Network& net, const Programs& p, const int64_t* rows, int64_t n, Tape& m) {
    const Shape& s = net.shape;
    const int64_t width = s.width, n_kernels = m.n_kernels, n_leaves = m.n_leaves, n_tokens = n_kernels + n_leaves;

    const float* kernel_active = m.active(m.kernel_up, m.kernel_active, n_kernels * width);
    float* kernels = Tape::sized(m.kernels, n_kernels * width);
    multiply<LANES>(net.kernel_out, kernel_active, width, n_kernels, kernels, width);
    float* to_leaf = Tape::sized(m.to_leaf, n_kernels * width);
    multiply<LANES>(net.kernel_to_leaf, kernels, width, n_kernels, to_leaf, width);

    const int64_t leaf_in = net.embed_leaf.in;
    float* leaf_rows = Tape::sized(m.leaf_rows, n_leaves * leaf_in);
    for (int64_t i = 0, l = 0; i < n; ++i)
        for (int64_t j = 0; j < p.leaf_counts[rows[i]]; ++j, ++l) {
            const float* features = p.leaves + (p.leaf_starts[rows[i]] + j) * s.leaf_width;
            net.leaves.read(features, 0, leaf_in, leaf_rows + l * leaf_in);
        }
    multiply<LANES>(net.embed_leaf, leaf_rows, leaf_in, n_leaves, Tape::sized(m.leaf_up, n_leaves * width), width);
    const float* leaf_active = m.active(m.leaf_up, m.leaf_active, n_leaves * width);
    float* leaves = Tape::sized(m.leaves, n_leaves * width);
    multiply<LANES>(net.leaf_out, leaf_active, width, n_leaves, leaves, width);

    float* tokens = Tape::sized(m.tokens, n_tokens * width);
    float* place = Tape::sized(m.place, width);
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

    float* scores = Tape::sized(m.scores, std::max(SCORES, n_tokens));
    m.layers.resize(m.keeps ? net.layers.size() : 1);
    for (size_t b = 0; b < net.layers.size(); ++b) {
        const Block& block = net.layers[b];
        Tape::Layer& own = m.layers[m.keeps ? b : 0];
        float* normed = Tape::sized(own.normed, n_tokens * width);
        normalise<LANES>(block.norm_attention, tokens, n_tokens, width, normed, m.kept(own.units, n_tokens * width),
                         m.kept(own.scales, n_tokens));
        float* qkv = Tape::sized(own.qkv, n_tokens * 3 * width);
        multiply<LANES>(block.qkv, normed, width, n_tokens, qkv, 3 * width);
        float* attended = Tape::sized(own.attended, n_tokens * width);
        for (int64_t i = 0, t = 0; i < n; ++i) {
            const int64_t of_program = p.kernel_counts[rows[i]] + p.leaf_counts[rows[i]];
            attend<LANES>(qkv + t * 3 * width, of_program, width, s.heads, scores, attended + t * width);
            t += of_program;
        }
        multiply<LANES>(block.out, attended, width, n_tokens, tokens, width, true);
        normed = Tape::sized(m.keeps ? own.mid_normed : own.normed, n_tokens * width);
        normalise<LANES>(block.norm_feedforward, tokens, n_tokens, width, normed, m.kept(own.mid_units, n_tokens * width),
                         m.kept(own.mid_scales, n_tokens));
        multiply<LANES>(block.up, normed, width, n_tokens, Tape::sized(own.up, n_tokens * s.feedforward), s.feedforward);
        const float* active = m.active(own.up, own.active, n_tokens * s.feedforward);
        multiply<LANES>(block.down, active, s.feedforward, n_tokens, tokens, width, true);
    }
    float* normed = Tape::sized(m.normed, n_tokens * width);
    normalise<LANES>(net.norm, tokens, n_tokens, width, normed, m.kept(m.units, n_tokens * width),
                     m.kept(m.scales, n_tokens));
}

// The means of the leaves of each kernel, (own_kernels, width) `stride` apart, and of all leaves of a program, whose first
// is at `leaves`.
INLINE void mean_leaves(const Programs& p, int64_t row, int64_t width, const float* leaves, int64_t stride, float* counts,
                        float* of_kernels, float* __restrict of_program) {
    const int64_t own_kernels = p.kernel_counts[row], own_leaves = p.leaf_counts[row];
    std::fill(counts, counts + own_kernels, 0.0f);
    std::fill(of_program, of_program + width, 0.0f);
    for (int64_t j = 0; j < own_kernels; ++j) std::fill(of_kernels + j * stride, of_kernels + j * stride + width, 0.0f);
    for (int64_t j = 0; j < own_leaves; ++j, leaves += width) {
        const int32_t kernel = p.leaf_places[3 * (p.leaf_starts[row] + j) + 2];
        float* __restrict mean = of_kernels + kernel * stride;
        counts[kernel] += 1.0f;
        for (int64_t d = 0; d < width; ++d) mean[d] += leaves[d], of_program[d] += leaves[d];
    }
    const float share = 1.0f / static_cast<float>(std::max<int64_t>(own_leaves, 1));
    for (int64_t d = 0; d < width; ++d) of_program[d] *= share;
    for (int64_t j = 0; j < own_kernels; ++j) {
        const float own_share = 1.0f / std::fmax(counts[j], 1.0f);
        for (int64_t d = 0; d < width; ++d) of_kernels[j * stride + d] *= own_share;
    }
}

// From what the first layer of the regressor makes of kernels, `between_up`, to their log-seconds.
template <int LANES>
INLINE void regress(const Network& net, Tape& m) {
    const Shape& s = net.shape;
    const int64_t n_kernels = m.n_kernels, n_hidden = n_kernels * s.hidden;
    const float* between = m.active(m.between_up, m.between, n_hidden);
    multiply<LANES>(net.regressor_out, between, s.hidden, n_kernels, Tape::sized(m.last_up, n_hidden), s.hidden);
    const float* last = m.active(m.last_up, m.last, n_hidden);
    m.log_seconds.resize(std::max<size_t>(m.log_seconds.size(), n_kernels));
    for (int64_t k = 0; k < n_kernels; ++k) {
        const float corrected = product_of<LANES>(last + k * s.hidden, net.out_weight.data(), s.hidden) + net.out_bias;
        // The last digit of a logarithm in float32 is a millionth of the seconds.
        m.log_seconds[k] = corrected * s.log_scale + (s.has_prior ? m.priors[k] : s.log_mean);
        m.priors[k] = static_cast<float>(m.log_seconds[k]);
    }
}

// Each program's log-seconds, and the mean of the last hidden vectors of its kernels.
INLINE void add_up(const Network& net, const Programs& p, const int64_t* rows, int64_t n, const Tape& m,
                   double* log_latency, float* hidden) {
    const int64_t width = net.shape.hidden;
    const float* last = (m.keeps ? m.last : m.last_up).data();
    for (int64_t i = 0, k = 0; i < n; ++i, hidden += width) {
        const int64_t own = p.kernel_counts[rows[i]];
        std::fill(hidden, hidden + width, 0.0f);
        for (int64_t j = k; j < k + own; ++j)
            for (int64_t d = 0; d < width; ++d) hidden[d] += last[j * width + d];
        for (int64_t d = 0; d < width; ++d) hidden[d] /= static_cast<float>(own);
        log_latency[i] = add_exponentials(m.log_seconds.data() + k, own);
        k += own;
    }
}

// How many kernels and leaves programs have.
INLINE void count(const Programs& p, const int64_t* rows, int64_t n, Tape& m) {
    m.n_kernels = m.n_leaves = 0;
    for (int64_t i = 0; i < n; ++i) m.n_kernels += p.kernel_counts[rows[i]], m.n_leaves += p.leaf_counts[rows[i]];
}
