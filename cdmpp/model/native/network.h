// A trained `CdmppModel`: its weights, as they are read.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "functions.h"
#include "linear.h"
#include "prior.h"

struct Array {
    const float* data;
    int64_t size;
};

struct Scaler {
    std::vector<float> shift, factor;
    std::vector<int32_t> used;  // columns that varied in training; the others are zero whatever they hold
    std::vector<float> used_shift, used_factor;
    float clip = 0;

    Scaler() = default;
    Scaler(const Array& shift_, const Array& factor_, float clip_)
        : shift(shift_.data, shift_.data + shift_.size), factor(factor_.data, factor_.data + factor_.size), clip(clip_) {
        for (int64_t i = 0; i < factor_.size; ++i)
            if (factor[i] != 0.0f)
                used.push_back(static_cast<int32_t>(i)), used_shift.push_back(shift[i]), used_factor.push_back(factor[i]);
    }
    // The used columns from the `first` up to the `end`, which is not among them.
    INLINE void read(const float* row, int64_t first, int64_t end, float* __restrict to) const {
        const int32_t* __restrict at = used.data() + first;
        const float* __restrict shifts = used_shift.data() + first;
        const float* __restrict factors = used_factor.data() + first;
        const float most = clip;
        for (int64_t i = 0; i < end - first; ++i) {
            const float x = (row[at[i]] - shifts[i]) * factors[i];
            to[i] = x < -most ? -most : x > most ? most : x;
        }
    }
    INLINE float operator()(const float* row, int32_t column) const {
        const float x = (row[column] - shift[column]) * factor[column];
        return x < -clip ? -clip : x > clip ? clip : x;
    }
};

struct Block {
    Norm norm_attention, norm_feedforward;
    Linear qkv, out, up, down;
};

// Sizes and numbers of a network, as Python hands them over.
struct Shape {
    int64_t leaf_width, kernel_width, input_width, width, heads, feedforward, bins, hidden, blocks, ordinals;
    int64_t has_prior;
    double clip, log_scale, log_mean;
};

// Weights that are trained, in the order in which Python hands them over; each block has `BLOCK_WEIGHTS` more behind.
enum Weight : int {
    LEAF_UP, LEAF_UP_BIAS, LEAF_OUT, LEAF_OUT_BIAS, KERNEL_UP, KERNEL_UP_BIAS, KERNEL_OUT, KERNEL_OUT_BIAS, TO_LEAF,
    TOKEN_TYPE, ORDINAL, NORM, NORM_BIAS, REGRESSOR, REGRESSOR_BIAS, REGRESSOR_OUT, REGRESSOR_OUT_BIAS, LAST, LAST_BIAS,
    BLOCKS
};
enum BlockWeight : int {
    ATTENTION_NORM, ATTENTION_NORM_BIAS, QKV, QKV_BIAS, PROJECTION, PROJECTION_BIAS, FEEDFORWARD_NORM,
    FEEDFORWARD_NORM_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS, BLOCK_WEIGHTS
};

struct Network {
    Shape shape;
    Scaler leaves, kernels;
    std::vector<int32_t> kernel_columns;  // of the first layer of kernels that are read, then their bins
    std::vector<float> bin_low, bin_factor, bin_mean;  // (input_width, bins)
    Linear embed_leaf, leaf_out, embed_kernel, kernel_out, kernel_to_leaf, regressor, regressor_out;
    std::vector<float> token_type, ordinal, out_weight;
    float out_bias;
    std::vector<Block> layers;
    Norm norm;
    AnalyticPrior prior;
    CodeLayout code;
    Layout layout;
    int64_t panel;
    std::vector<float> positions;  // (POSITIONS, width)
    static constexpr int64_t POSITIONS = 256;
    static constexpr int FITTED = 9;  // arrays before those that are trained

    Network(const Shape& shape_, const Array* next, const Layout& layout_, const CodeLayout& code_, const int32_t* bound,
            int64_t panel_)
        : shape(shape_), code(code_), layout(layout_), panel(panel_) {
        auto list = [&] { const Array a = *next++; return std::vector<float>(a.data, a.data + a.size); };
        leaves = Scaler(next[0], next[1], static_cast<float>(shape.clip));
        kernels = Scaler(next[2], next[3], static_cast<float>(shape.clip));
        next += 4;
        bin_low = list(), bin_factor = list(), bin_mean = list();
        kernel_columns = columns_of(0, static_cast<int64_t>(kernels.used.size()));
        const std::vector<float> log_factor = list(), sharpness = list();
        for (int p = 0; p < N_PARTS; ++p) prior.bound[p] = bound[p], prior.factor[p] = std::exp(log_factor[p]);
        for (int kind = 0; kind < 2; ++kind) prior.power[kind] = 1.0f + std::exp(sharpness[kind]);
        positions.resize(POSITIONS * shape.width);
        for (int64_t p = 0; p < POSITIONS; ++p) place(static_cast<float>(p), positions.data() + p * shape.width);
        layers.resize(shape.blocks);
        read(next);
    }

    // The same of the first layer: which of its columns are read of used ones from the `first` up to the `end`.
    std::vector<int32_t> columns_of(int64_t first, int64_t end) const {
        std::vector<int32_t> columns(kernels.used.begin() + first, kernels.used.begin() + end);
        for (int64_t i = first; i < end; ++i)
            for (int64_t b = 0; b < shape.bins; ++b)
                columns.push_back(static_cast<int32_t>(shape.input_width + kernels.used[i] * shape.bins + b));
        return columns;
    }

    // Take over the weights that are trained.
    void read(const Array* from) {
        auto list = [&](std::vector<float>& to, int i) { to.assign(from[i].data, from[i].data + from[i].size); };
        auto norm_of = [&](Norm& to, int i) { list(to.weight, i), list(to.bias, i + 1); };
        auto linear = [&](Linear& to, int i, int64_t in, int64_t out, bool has_bias = true) {
            to.read(from[i].data, has_bias ? from[i + 1].data : nullptr, out, in, panel);
        };
        const int64_t width = shape.width;
        // First layers without the columns that are zero for all programs; their bins are numbers of the bias.
        embed_leaf.read(from[LEAF_UP].data, from[LEAF_UP_BIAS].data, width, static_cast<int64_t>(leaves.used.size()), panel,
                        leaves.used.data(), shape.leaf_width);
        const int64_t kernel_row = shape.input_width * (1 + shape.bins);
        embed_kernel.read(from[KERNEL_UP].data, from[KERNEL_UP_BIAS].data, width,
                          static_cast<int64_t>(kernel_columns.size()), panel, kernel_columns.data(), kernel_row);
        std::vector<bool> is_used(shape.input_width, false);
        for (const int32_t column : kernels.used) is_used[column] = true;
        for (int32_t column = 0; column < shape.input_width; ++column)
            for (int64_t b = 0; b < shape.bins && !is_used[column]; ++b)
                if (const float x = bin(column, b, 0.0f); x != 0.0f)
                    for (int64_t o = 0; o < width; ++o)
                        embed_kernel.bias[o] +=
                            x * from[KERNEL_UP].data[o * kernel_row + shape.input_width + column * shape.bins + b];
        linear(leaf_out, LEAF_OUT, width, width);
        linear(kernel_out, KERNEL_OUT, width, width);
        linear(kernel_to_leaf, TO_LEAF, width, width, false);
        list(token_type, TOKEN_TYPE), list(ordinal, ORDINAL), norm_of(norm, NORM);
        linear(regressor, REGRESSOR, 4 * width, shape.hidden);
        linear(regressor_out, REGRESSOR_OUT, shape.hidden, shape.hidden);
        list(out_weight, LAST);
        out_bias = *from[LAST_BIAS].data;
        from += BLOCKS;
        for (Block& block : layers) {
            norm_of(block.norm_attention, ATTENTION_NORM), norm_of(block.norm_feedforward, FEEDFORWARD_NORM);
            linear(block.qkv, QKV, width, 3 * width);
            linear(block.out, PROJECTION, width, width);
            linear(block.up, UP, width, shape.feedforward);
            linear(block.down, DOWN, shape.feedforward, width);
            from += BLOCK_WEIGHTS;
        }
    }

    void place(float position, float* to) const {
        const int64_t half = shape.width / 2;
        for (int64_t i = 0; i < half; ++i) {
            const float step = static_cast<float>(-std::log(10000.0) / half);
            const float angle = position * std::exp(static_cast<float>(i) * step);
            to[i] = std::sin(angle), to[half + i] = std::cos(angle);
        }
    }

    INLINE float bin(int32_t column, int64_t b, float x) const {
        const int64_t at = column * shape.bins + b;
        float place = (x - bin_low[at]) * bin_factor[at];
        place = place < 0.0f ? 0.0f : place > 1.0f ? 1.0f : place;
        return place - bin_mean[at];
    }

    // What the first layer reads of the used columns of a kernel from the `first` up to the `end`, then their bins.
    INLINE void read_columns(const float* row, int64_t first, int64_t end, float* __restrict to) const {
        kernels.read(row, first, end, to);
        float* __restrict places = to + (end - first);
        const int64_t bins = shape.bins;
        for (int64_t i = first; i < end; ++i, places += bins) {
            const int64_t at = kernels.used[i] * bins;
            const float* __restrict low = bin_low.data() + at;
            const float* __restrict factor = bin_factor.data() + at;
            const float* __restrict mean = bin_mean.data() + at;
            const float x = to[i - first];
            for (int64_t b = 0; b < bins; ++b) {
                const float place = (x - low[b]) * factor[b];
                places[b] = (place < 0.0f ? 0.0f : place > 1.0f ? 1.0f : place) - mean[b];
            }
        }
    }
};
