// Dense layers on packed rows: no library is needed, and the answer of a row does not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#define INLINE inline __attribute__((always_inline))

// A matrix of a trained layer, torch's (out, in), as panels of `lanes` x 2 columns that lie as they are read.
struct Linear {
    int64_t in = 0, out = 0, panel = 0;
    std::vector<float> packed, bias;

    // `columns` (in,): the columns of `weight` (out, stride) that are read; null: all of them.
    void read(const float* weight, const float* offset, int64_t out_, int64_t in_, int64_t panel_,
              const int32_t* columns = nullptr, int64_t stride = 0) {
        in = in_, out = out_, panel = panel_;
        const int64_t panels = (out + panel - 1) / panel;
        packed.resize(panels * in * panel);
        bias.assign(panels * panel, 0.0f);
        if (offset) std::copy(offset, offset + out, bias.begin());
        if (!columns) stride = in;
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t first = p * panel, width = std::min(panel, out - first);
            float* to = packed.data() + p * in * panel;
            if (width < panel) std::fill(to, to + in * panel, 0.0f);
            constexpr int64_t SOME = 64;  // of these rows of the panel stay in the first-level cache
            for (int64_t from = 0; from < in; from += SOME)
                for (int64_t n = 0; n < width; ++n) {
                    const float* row = weight + (first + n) * stride;
                    for (int64_t k = from; k < std::min(in, from + SOME); ++k) to[k * panel + n] = row[columns ? columns[k] : k];
                }
        }
    }
};

template <int LANES>
struct Vector {
    typedef float type __attribute__((vector_size(LANES * 4)));
    static INLINE type load(const float* from) {
        type value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    static INLINE void store(float* to, type value) { std::memcpy(to, &value, sizeof value); }
};

// `ROWS` rows by one panel: a(r, k) = a[r * row + k * step]. `bias` (panel,) is where sums begin; null: at 0.
template <int LANES, int ROWS>
INLINE void product_rows(const float* a, int64_t row, int64_t step, const float* panel, int64_t depth, const float* bias,
                         float* to, int64_t to_stride, int64_t columns) {
    using V = Vector<LANES>;
    typename V::type sums[ROWS][2] = {};
    if (bias)
        for (int r = 0; r < ROWS; ++r) sums[r][0] = V::load(bias), sums[r][1] = V::load(bias + LANES);
    for (int64_t k = 0; k < depth; ++k, panel += 2 * LANES) {
        const typename V::type left = V::load(panel), right = V::load(panel + LANES);
        for (int r = 0; r < ROWS; ++r) {
            const float x = a[r * row + k * step];
            sums[r][0] += x * left;
            sums[r][1] += x * right;
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        if (columns == 2 * LANES) {
            V::store(to + r * to_stride, sums[r][0]);
            V::store(to + r * to_stride + LANES, sums[r][1]);
        } else {
            float all[2 * LANES];
            V::store(all, sums[r][0]);
            V::store(all + LANES, sums[r][1]);
            std::copy(all, all + columns, to + r * to_stride);
        }
    }
}

// All rows by one panel; the sums of six rows fill the registers.
template <int LANES>
INLINE void product_panel(const float* a, int64_t row, int64_t step, int64_t rows, const float* panel, int64_t depth,
                          const float* bias, float* to, int64_t to_stride, int64_t columns) {
    int64_t r = 0;
    for (; r + 6 <= rows; r += 6)
        product_rows<LANES, 6>(a + r * row, row, step, panel, depth, bias, to + r * to_stride, to_stride, columns);
    for (; r + 2 <= rows; r += 2)
        product_rows<LANES, 2>(a + r * row, row, step, panel, depth, bias, to + r * to_stride, to_stride, columns);
    if (r < rows) product_rows<LANES, 1>(a + r * row, row, step, panel, depth, bias, to + r * to_stride, to_stride, columns);
}

// (rows, in) -> (rows, out), both with their strides.
template <int LANES>
INLINE void multiply(const Linear& layer, const float* a, int64_t stride, int64_t rows, float* to, int64_t to_stride) {
    constexpr int64_t panel = 2 * LANES;
    for (int64_t first = 0; first < layer.out; first += panel)
        product_panel<LANES>(a, stride, 1, rows, layer.packed.data() + first * layer.in, layer.in,
                             layer.bias.data() + first, to + first, to_stride, std::min(panel, layer.out - first));
}

// (rows, depth) x (depth, columns) -> (rows, columns); a(r, k) = a[r * row + k * step], so that it may be transposed.
template <int LANES>
INLINE void product(const float* a, int64_t row, int64_t step, int64_t rows, const float* b, int64_t b_stride,
                    int64_t depth, int64_t columns, float* to, int64_t to_stride, std::vector<float>& spare) {
    constexpr int64_t panel = 2 * LANES;
    if (static_cast<int64_t>(spare.size()) < depth * panel) spare.resize(depth * panel);
    for (int64_t first = 0; first < columns; first += panel) {
        const int64_t width = std::min(panel, columns - first);
        float* packed = spare.data();
        if (width < panel) std::fill(packed, packed + depth * panel, 0.0f);
        for (int64_t k = 0; k < depth; ++k) std::copy(b + k * b_stride + first, b + k * b_stride + first + width, packed + k * panel);
        product_panel<LANES>(a, row, step, rows, packed, depth, nullptr, to + first, to_stride, width);
    }
}
