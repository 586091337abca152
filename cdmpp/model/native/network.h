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
    float clip = 0;

    Scaler() = default;
    Scaler(const Array& shift_, const Array& factor_, float clip_)
        : shift(shift_.data, shift_.data + shift_.size), factor(factor_.data, factor_.data + factor_.size), clip(clip_) {
        for (int64_t i = 0; i < factor_.size; ++i)
            if (factor[i] != 0.0f) used.push_back(static_cast<int32_t>(i));
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

struct Network {
    Shape shape;
    Scaler leaves, kernels;
    std::vector<float> bin_low, bin_factor, bin_mean;  // (input_width, bins)
    Linear embed_leaf, leaf_out, embed_kernel, kernel_out, kernel_to_leaf, regressor, regressor_out;
    std::vector<float> token_type, ordinal, out_weight;
    float out_bias;
    std::vector<Block> layers;
    Norm norm;
    AnalyticPrior prior;
    CodeLayout code;
    Layout layout;
    std::vector<float> positions;  // (POSITIONS, width)
    static constexpr int64_t POSITIONS = 256;

    Network(const Shape& shape_, const Array* arrays, const Layout& layout_, const CodeLayout& code_, const int32_t* bound,
            int64_t panel)
        : shape(shape_), code(code_), layout(layout_) {
        const Array* next = arrays;
        auto list = [&] { const Array a = *next++; return std::vector<float>(a.data, a.data + a.size); };
        auto norm_of = [&] { Norm n; n.weight = list(); n.bias = list(); return n; };
        auto linear = [&](int64_t in, int64_t out) {
            const Array weight = *next++, bias = *next++;
            return Linear(weight.data, bias.data, out, in, panel);
        };
        const int64_t width = shape.width;
        leaves = Scaler(next[0], next[1], static_cast<float>(shape.clip));
        kernels = Scaler(next[2], next[3], static_cast<float>(shape.clip));
        next += 4;
        bin_low = list(), bin_factor = list(), bin_mean = list();
        embed_leaf = read_columns(next[0], next[1], leaves, shape.leaf_width, 0, panel);
        next += 2;
        leaf_out = linear(width, width);
        embed_kernel = read_columns(next[0], next[1], kernels, shape.input_width, shape.bins, panel);
        next += 2;
        kernel_out = linear(width, width);
        kernel_to_leaf = linear(width, width);
        token_type = list(), ordinal = list();
        norm = norm_of();
        regressor = linear(4 * width, shape.hidden);
        regressor_out = linear(shape.hidden, shape.hidden);
        out_weight = list();
        out_bias = *(next++)->data;
        const std::vector<float> log_factor = list(), sharpness = list();
        for (int p = 0; p < N_PARTS; ++p) prior.bound[p] = bound[p], prior.factor[p] = std::exp(log_factor[p]);
        for (int kind = 0; kind < 2; ++kind) prior.power[kind] = 1.0f + std::exp(sharpness[kind]);
        for (int64_t i = 0; i < shape.blocks; ++i) {
            Block block;
            block.norm_attention = norm_of();
            block.qkv = linear(width, 3 * width);
            block.out = linear(width, width);
            block.norm_feedforward = norm_of();
            block.up = linear(width, shape.feedforward);
            block.down = linear(shape.feedforward, width);
            layers.push_back(block);
        }
        positions.resize(POSITIONS * width);
        for (int64_t p = 0; p < POSITIONS; ++p) place(static_cast<float>(p), positions.data() + p * width);
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

private:
    // A first layer without the columns that are zero for all programs; their bins are numbers of the bias.
    Linear read_columns(const Array& weight, const Array& bias, const Scaler& scaler, int64_t in, int64_t n_bins,
                        int64_t panel) const {
        const int64_t out = bias.size, each = 1 + n_bins, all = in * each;
        const int64_t n = static_cast<int64_t>(scaler.used.size());
        std::vector<float> kept(out * n * each), offset(bias.data, bias.data + out);
        std::vector<bool> is_used(in, false);
        for (int32_t column : scaler.used) is_used[column] = true;
        for (int64_t o = 0; o < out; ++o) {
            const float* row = weight.data + o * all;
            for (int64_t j = 0; j < n; ++j) {
                kept[o * n * each + j] = row[scaler.used[j]];
                for (int64_t b = 0; b < n_bins; ++b)
                    kept[o * n * each + n + j * n_bins + b] = row[in + scaler.used[j] * n_bins + b];
            }
            double added = 0.0;
            for (int64_t column = 0; column < in; ++column)
                for (int64_t b = 0; b < n_bins && !is_used[column]; ++b)
                    added += static_cast<double>(bin(static_cast<int32_t>(column), b, 0.0f)) *
                             row[in + column * n_bins + b];
            offset[o] += static_cast<float>(added);
        }
        return Linear(kept.data(), offset.data(), out, n * each, panel);
    }
};
