// Gradients of all weights of a network, by what a `Tape` kept of a few programs.
#pragma once

#include <initializer_list>
#include <memory>

#include "encode.h"

// What the fitted priors say of all programs, `PriorTable` of Python: no step of a training changes it.
struct PriorTables {
    const float* kernels;  // (kernels, N_BOUNDS + N_STATES + 1), log-seconds in the last column
    const int64_t* kernel_starts;
    const float* codes;        // (n, code_width)
    int64_t code_width;
};

// Where the gradient of each weight lies in a flat array; those of dense layers, which are made from `Tape::dense`, have
// no place there.
struct Slots {
    std::vector<int64_t> starts;

    explicit Slots(const Network& net, int64_t devices) {
        const Shape& s = net.shape;
        const int64_t w = s.width, h = s.hidden, f = s.feedforward;
        std::vector<int64_t> sizes{0, w, 0, w, 0, w, 0, w, 0, 2 * w, s.ordinals * w, w, w, 0, h, 0, h, h, 1};
        for (int64_t b = 0; b < s.blocks; ++b)
            for (const int64_t size : std::initializer_list<int64_t>{w, w, 0, 3 * w, 0, w, w, w, 0, f, 0, w}) sizes.push_back(size);
        sizes.push_back(devices * w);  // of the contexts
        starts.push_back(0);
        for (const int64_t size : sizes) starts.push_back(starts.back() + size);
    }
    int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
    int64_t size(int64_t i) const { return starts[i + 1] - starts[i]; }
};

// Memory of one thread, kept from chunk to chunk.
struct Spare {
    Floats last, between, joined, tokens, added, normed, wide, up, attended, kernels, leaves, panel, scores, slopes;
};

INLINE void read_known(const Network& net, const Programs& p, const PriorTables& known, int64_t row, bool is_hidden,
                       float* inputs, float* priors) {
    const Shape& s = net.shape;
    const int64_t n = p.kernel_counts[row], read = N_BOUNDS + N_STATES, code_width = net.code.width;
    const float* code = p.codes + p.code_rows[row] * code_width;
    const float* of_code = known.codes + row * known.code_width;
    const bool is_coded = net.code.kind >= 0 && !is_hidden && !std::isnan(code[0]);
    for (int64_t k = 0; k < n; ++k) {
        float* to = inputs + k * s.input_width;
        const float* features = p.kernels + (p.kernel_starts[row] + k) * s.kernel_width;
        const float* told = known.kernels + (known.kernel_starts[row] + k) * (read + 1);
        to = std::copy(features, features + s.kernel_width, to);
        to = std::copy(told, told + read, to);
        priors[k] = told[read];
        if (is_coded) {
            *to++ = 1.0f;
            to = std::copy(code, code + code_width, to);
            std::copy(of_code, of_code + known.code_width, to);
            priors[k] += of_code[3];  // the whole moves, how it is spread stays
        } else {
            std::fill(to, inputs + (k + 1) * s.input_width, 0.0f);
        }
    }
}

template <int LANES>
INLINE void known_answer(const Network& net, const Programs& p, const PriorTables& known, const uint8_t* is_hidden,
                         const int64_t* rows, int64_t n, Tape& m, double* log_latency, float* hidden) {
    m.keeps = true;
    count(p, rows, n, m);
    float* priors = Tape::sized(m.priors, m.n_kernels);
    float* inputs = Tape::sized(m.inputs, m.n_kernels * net.shape.input_width);
    for (int64_t i = 0, k = 0; i < n; k += p.kernel_counts[rows[i]], ++i)
        read_known(net, p, known, rows[i], is_hidden[i], inputs + k * net.shape.input_width, priors + k);
    const Shape& s = net.shape;
    const int64_t width = s.width, used = static_cast<int64_t>(net.kernels.used.size()), kernel_in = net.embed_kernel.in;
    float* dense = Tape::sized(m.kernel_rows, m.n_kernels * kernel_in);
    for (int64_t k = 0; k < m.n_kernels; ++k) net.read_columns(inputs + k * s.input_width, 0, used, dense + k * kernel_in);
    multiply<LANES>(net.embed_kernel, dense, kernel_in, m.n_kernels, Tape::sized(m.kernel_up, m.n_kernels * width), width);
    encode<LANES>(net, p, rows, n, m);
    float* joined = Tape::sized(m.joined, m.n_kernels * 4 * width);
    float* counts = Tape::sized(m.counts, m.n_kernels);  // leaves of each kernel
    for (int64_t i = 0, t = 0, k = 0; i < n; ++i) {
        const int64_t own_kernels = p.kernel_counts[rows[i]];
        const float *tokens = m.normed.data() + t * width, *context = p.contexts + p.devices[rows[i]] * width;
        float* mine = joined + k * 4 * width;
        mean_leaves(p, rows[i], width, tokens + own_kernels * width, 4 * width, counts + k, mine + width, mine + 2 * width);
        for (int64_t j = 0; j < own_kernels; ++j, mine += 4 * width, tokens += width) {
            std::copy(tokens, tokens + width, mine);
            if (j) std::copy(mine - 2 * width, mine - width, mine + 2 * width);
            std::copy(context, context + width, mine + 3 * width);
        }
        k += own_kernels, t += own_kernels + p.leaf_counts[rows[i]];
    }
    multiply<LANES>(net.regressor, joined, 4 * width, m.n_kernels, Tape::sized(m.between_up, m.n_kernels * s.hidden), s.hidden);
    regress<LANES>(net, m);
    add_up(net, p, rows, n, m, log_latency, hidden);
}

INLINE void add_rows(const float* rows, int64_t n, int64_t width, float* __restrict to) {
    for (int64_t row = 0; row < n; ++row, rows += width)
        for (int64_t d = 0; d < width; ++d) to[d] += rows[d];
}

// Through a dense layer with inputs `x` (n, in) and slopes (n, out): the slopes of its bias, and where `to` is given those
// of the inputs, (n, in). `kept` has what its weight needs.
template <int LANES>
INLINE void layer_back(const float* weight, const float* x, int64_t in, const float* slopes, int64_t out, int64_t n,
                       Dense& kept, float* of_bias, float* to, Spare& m) {
    kept.x = x, kept.in = in, kept.out = out, kept.n = n;
    std::copy(slopes, slopes + n * out, Tape::sized(kept.slopes, n * out));
    if (of_bias) add_rows(slopes, n, out, of_bias);
    if (to) product<LANES>(slopes, out, 1, n, weight, in, out, in, to, in, m.panel);
}

// `LANES` x 2 columns, from `first` on, of the gradient of weight `i` (out, in), by all chunks: `to` (out, LANES x 2).
template <int LANES>
INLINE void weight_panel(const std::vector<std::unique_ptr<Tape>>& chunks, int64_t i, int64_t first, float* to,
                         Floats& spare) {
    constexpr int64_t panel = 2 * LANES;
    const int64_t in = chunks[0]->dense[i].in, out = chunks[0]->dense[i].out, width = std::min(panel, in - first);
    std::fill(to, to + out * panel, 0.0f);
    for (const auto& chunk : chunks) {
        const Dense& own = chunk->dense[i];
        float* packed = Tape::sized(spare, own.n * panel);
        if (width < panel) std::fill(packed, packed + own.n * panel, 0.0f);
        for (int64_t k = 0; k < own.n; ++k)
            std::copy(own.x + k * in + first, own.x + k * in + first + width, packed + k * panel);
        product_panel<LANES>(own.slopes.data(), 1, out, out, packed, own.n, nullptr, to, panel, panel, true);
    }
}

// Adds to `to` (n, width) the slopes of what was normalised.
template <int LANES>
INLINE void norm_back(const float* weight, const float* units, const float* scales, const float* slopes, int64_t n,
                      int64_t width, float* __restrict of_weight, float* __restrict of_bias, float* __restrict to,
                      Spare& m) {
    float* __restrict own = Tape::sized(m.slopes, width);
    for (int64_t row = 0; row < n; ++row, units += width, slopes += width, to += width) {
        for (int64_t d = 0; d < width; ++d) {
            of_weight[d] += slopes[d] * units[d];
            of_bias[d] += slopes[d];
            own[d] = slopes[d] * weight[d];
        }
        const float mean = sum_of<LANES>(own, width) / width, along = product_of<LANES>(own, units, width) / width;
        for (int64_t d = 0; d < width; ++d) to[d] += scales[row] * (own[d] - mean - along * units[d]);
    }
}

// Through `attend` of one program.
template <int LANES>
INLINE void attend_back(const float* qkv, const float* slopes, int64_t n, int64_t width, int64_t heads, float* scores,
                        float* to) {
    const int64_t each = width / heads, row = 3 * width;
    const float scale = 1.0f / std::sqrt(static_cast<float>(each));
    float* share_slopes = scores + n;
    std::fill(to, to + n * row, 0.0f);
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t i = 0; i < n; ++i) {
            const float* query = qkv + i * row + head * each;
            const float* slope = slopes + i * width + head * each;
            float most = -std::numeric_limits<float>::infinity(), sum = 0.0f, along = 0.0f;
            for (int64_t j = 0; j < n; ++j) {
                scores[j] = scale * product_of<LANES>(query, qkv + j * row + width + head * each, each);
                most = scores[j] > most ? scores[j] : most;
            }
            for (int64_t j = 0; j < n; ++j) sum += scores[j] = exponential(scores[j] - most);
            for (int64_t j = 0; j < n; ++j) {
                scores[j] /= sum;
                share_slopes[j] = product_of<LANES>(slope, qkv + j * row + 2 * width + head * each, each);
                along += scores[j] * share_slopes[j];
            }
            float* __restrict of_query = to + i * row + head * each;
            for (int64_t j = 0; j < n; ++j) {
                const float* key = qkv + j * row + width + head * each;
                float* __restrict of_key = to + j * row + width + head * each;
                float* __restrict of_value = of_key + width;
                const float share = scores[j], of_score = scale * share * (share_slopes[j] - along);
                for (int64_t d = 0; d < each; ++d) {
                    of_query[d] += of_score * key[d];
                    of_key[d] += of_score * query[d];
                    of_value[d] += share * slope[d];
                }
            }
        }
}

// `weights` as at `Weight`. `of_latency` (n,) and `of_hidden` (n, hidden): slopes of the answers; `to`: see `Slots`.
template <int LANES>
INLINE void gradients(const Network& net, const Array* weights, const Slots& slots, const Programs& p, const int64_t* rows,
                      int64_t n, Tape& m, const double* log_latency, const float* of_latency, const float* of_hidden,
                      Spare& x, float* to) {
    const Shape& s = net.shape;
    const int64_t width = s.width, n_kernels = m.n_kernels, n_leaves = m.n_leaves, n_tokens = n_kernels + n_leaves;
    auto weight = [&](int64_t i) { return weights[i].data; };
    auto grad = [&](int64_t i) { return to + slots.starts[i]; };
    std::fill(to, to + slots.starts.back(), 0.0f);
    m.dense.resize(slots.count());
    float* of_contexts = grad(slots.count() - 1);

    float* last = Tape::sized(x.last, n_kernels * s.hidden);
    for (int64_t i = 0, k = 0; i < n; ++i) {
        const int64_t own = p.kernel_counts[rows[i]];
        for (int64_t j = k; j < k + own; ++j) {
            const float share = exponential(m.priors[j] - static_cast<float>(log_latency[i]));
            const float slope = of_latency[i] * share * static_cast<float>(s.log_scale);
            const float* active = m.last.data() + j * s.hidden;
            float *__restrict of_last = grad(LAST), *__restrict to_last = last + j * s.hidden;
            *grad(LAST_BIAS) += slope;
            for (int64_t d = 0; d < s.hidden; ++d) {
                of_last[d] += slope * active[d];
                to_last[d] = slope * net.out_weight[d] + of_hidden[i * s.hidden + d] / static_cast<float>(own);
            }
        }
        k += own;
    }
    gelu_slope(m.last_up.data(), last, n_kernels * s.hidden);
    float* between = Tape::sized(x.between, n_kernels * s.hidden);
    layer_back<LANES>(weight(REGRESSOR_OUT), m.between.data(), s.hidden, last, s.hidden, n_kernels, m.dense[REGRESSOR_OUT],
                      grad(REGRESSOR_OUT_BIAS), between, x);
    gelu_slope(m.between_up.data(), between, n_kernels * s.hidden);
    float* joined = Tape::sized(x.joined, n_kernels * 4 * width);
    layer_back<LANES>(weight(REGRESSOR), m.joined.data(), 4 * width, between, s.hidden, n_kernels, m.dense[REGRESSOR],
                      grad(REGRESSOR_BIAS), joined, x);

    float* normed = Tape::sized(x.normed, n_tokens * width);
    for (int64_t i = 0, t = 0, k = 0; i < n; ++i) {
        const int64_t row = rows[i], own_kernels = p.kernel_counts[row], own_leaves = p.leaf_counts[row];
        float *mine = joined + k * 4 * width, *context = of_contexts + p.devices[row] * width;
        for (int64_t j = 0; j < own_kernels; ++j) {
            const float* of = mine + j * 4 * width;
            std::copy(of, of + width, normed + (t + j) * width);
            for (int64_t d = 0; d < width; ++d) context[d] += of[3 * width + d];
            if (j)
                for (int64_t d = 2 * width; d < 3 * width; ++d) mine[d] += of[d];
        }
        const float share = 1.0f / static_cast<float>(std::max<int64_t>(own_leaves, 1));
        for (int64_t j = 0; j < own_leaves; ++j) {
            const int32_t kernel = p.leaf_places[3 * (p.leaf_starts[row] + j) + 2];
            const float* of = mine + kernel * 4 * width + width;
            const float own_share = 1.0f / m.counts[k + kernel];
            float* leaf = normed + (t + own_kernels + j) * width;
            for (int64_t d = 0; d < width; ++d) leaf[d] = own_share * of[d] + share * mine[2 * width + d];
        }
        k += own_kernels, t += own_kernels + own_leaves;
    }
    float* tokens = Tape::sized(x.tokens, n_tokens * width);
    std::fill(tokens, tokens + n_tokens * width, 0.0f);
    norm_back<LANES>(weight(NORM), m.units.data(), m.scales.data(), normed, n_tokens, width, grad(NORM), grad(NORM_BIAS),
                     tokens, x);

    float* up = Tape::sized(x.up, n_tokens * s.feedforward);
    float* wide = Tape::sized(x.wide, n_tokens * 3 * width);
    float* attended = Tape::sized(x.attended, n_tokens * width);
    float* scores = Tape::sized(x.scores, 2 * n_tokens);
    for (int64_t b = s.blocks - 1; b >= 0; --b) {
        const Tape::Layer& own = m.layers[b];
        const int64_t at = BLOCKS + b * BLOCK_WEIGHTS;
        layer_back<LANES>(weight(at + DOWN), own.active.data(), s.feedforward, tokens, width, n_tokens, m.dense[at + DOWN],
                          grad(at + DOWN_BIAS), up, x);
        gelu_slope(own.up.data(), up, n_tokens * s.feedforward);
        layer_back<LANES>(weight(at + UP), own.mid_normed.data(), width, up, s.feedforward, n_tokens, m.dense[at + UP],
                          grad(at + UP_BIAS), normed, x);
        norm_back<LANES>(weight(at + FEEDFORWARD_NORM), own.mid_units.data(), own.mid_scales.data(), normed, n_tokens,
                         width, grad(at + FEEDFORWARD_NORM), grad(at + FEEDFORWARD_NORM_BIAS), tokens, x);
        layer_back<LANES>(weight(at + PROJECTION), own.attended.data(), width, tokens, width, n_tokens,
                          m.dense[at + PROJECTION], grad(at + PROJECTION_BIAS), attended, x);
        for (int64_t i = 0, t = 0; i < n; ++i) {
            const int64_t of_program = p.kernel_counts[rows[i]] + p.leaf_counts[rows[i]];
            attend_back<LANES>(own.qkv.data() + t * 3 * width, attended + t * width, of_program, width, s.heads, scores,
                               wide + t * 3 * width);
            t += of_program;
        }
        layer_back<LANES>(weight(at + QKV), own.normed.data(), width, wide, 3 * width, n_tokens, m.dense[at + QKV],
                          grad(at + QKV_BIAS), normed, x);
        norm_back<LANES>(weight(at + ATTENTION_NORM), own.units.data(), own.scales.data(), normed, n_tokens, width,
                         grad(at + ATTENTION_NORM), grad(at + ATTENTION_NORM_BIAS), tokens, x);
    }

    float* kernels = Tape::sized(x.kernels, n_kernels * width);
    float* leaves = Tape::sized(x.leaves, n_leaves * width);
    float* to_leaf = Tape::sized(x.joined, n_kernels * width);
    std::fill(to_leaf, to_leaf + n_kernels * width, 0.0f);
    for (int64_t i = 0, t = 0, k = 0, l = 0; i < n; ++i) {
        const int64_t row = rows[i], own_kernels = p.kernel_counts[row];
        float* __restrict context = of_contexts + p.devices[row] * width;
        auto add = [&](const float* token, int64_t type, int64_t ordinal) {
            float* __restrict of_type = grad(TOKEN_TYPE) + type * width;
            float* __restrict of_ordinal = grad(ORDINAL) + ordinal * width;
            for (int64_t d = 0; d < width; ++d) context[d] += token[d], of_type[d] += token[d], of_ordinal[d] += token[d];
        };
        for (int64_t j = 0; j < own_kernels; ++j, ++t) {
            const float* token = tokens + t * width;
            std::copy(token, token + width, kernels + (k + j) * width);
            add(token, 0, std::min(j, s.ordinals - 1));
        }
        for (int64_t j = 0; j < p.leaf_counts[row]; ++j, ++t, ++l) {
            const float* token = tokens + t * width;
            const int64_t kernel = p.leaf_places[3 * (p.leaf_starts[row] + j) + 2];
            std::copy(token, token + width, leaves + l * width);
            for (int64_t d = 0; d < width; ++d) to_leaf[(k + kernel) * width + d] += token[d];
            add(token, 1, std::min(kernel, s.ordinals - 1));
        }
        k += own_kernels;
    }
    float* added = Tape::sized(x.added, n_tokens * width);
    layer_back<LANES>(weight(TO_LEAF), m.kernels.data(), width, to_leaf, width, n_kernels, m.dense[TO_LEAF], nullptr, added, x);
    for (int64_t d = 0; d < n_kernels * width; ++d) kernels[d] += added[d];
    layer_back<LANES>(weight(KERNEL_OUT), m.kernel_active.data(), width, kernels, width, n_kernels, m.dense[KERNEL_OUT],
                      grad(KERNEL_OUT_BIAS), added, x);
    gelu_slope(m.kernel_up.data(), added, n_kernels * width);
    layer_back<LANES>(nullptr, m.kernel_rows.data(), net.embed_kernel.in, added, width, n_kernels, m.dense[KERNEL_UP],
                      grad(KERNEL_UP_BIAS), nullptr, x);
    layer_back<LANES>(weight(LEAF_OUT), m.leaf_active.data(), width, leaves, width, n_leaves, m.dense[LEAF_OUT],
                      grad(LEAF_OUT_BIAS), added, x);
    gelu_slope(m.leaf_up.data(), added, n_leaves * width);
    layer_back<LANES>(nullptr, m.leaf_rows.data(), net.embed_leaf.in, added, width, n_leaves, m.dense[LEAF_UP],
                      grad(LEAF_UP_BIAS), nullptr, x);
}
