// Dense layers on packed rows: no library is needed, and the answer of a row does not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

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
    static INLINE float sum(type value) {
        float x[LANES];
        store(x, value);
        if constexpr (LANES > 4) return Vector<LANES / 2>::sum(Vector<LANES / 2>::load(x) + Vector<LANES / 2>::load(x + LANES / 2));
        else return (x[0] + x[2]) + (x[1] + x[3]);
    }
};

// `ROWS` rows by one panel: a(r, k) = a[r * row + k * step]. Sums begin at `bias` (panel,), null: at 0; and where it `adds`
// at what `to` holds.
template <int LANES, int ROWS>
INLINE void product_rows(const float* a, int64_t row, int64_t step, const float* panel, int64_t depth, const float* bias,
                         float* to, int64_t to_stride, int64_t columns, bool adds) {
    using V = Vector<LANES>;
    typename V::type sums[ROWS][2] = {};
    if (bias)
        for (int r = 0; r < ROWS; ++r) sums[r][0] = V::load(bias), sums[r][1] = V::load(bias + LANES);
    for (int64_t k = 0; k < depth; ++k, a += step, panel += 2 * LANES) {
        const typename V::type left = V::load(panel), right = V::load(panel + LANES);
        for (int r = 0; r < ROWS; ++r) {
            const float x = a[r * row];
            sums[r][0] += x * left;
            sums[r][1] += x * right;
        }
    }
    for (int r = 0; r < ROWS; ++r, to += to_stride) {
        if (columns == 2 * LANES) {
            if (adds) sums[r][0] += V::load(to), sums[r][1] += V::load(to + LANES);
            V::store(to, sums[r][0]);
            V::store(to + LANES, sums[r][1]);
        } else {
            float all[2 * LANES];
            V::store(all, sums[r][0]);
            V::store(all + LANES, sums[r][1]);
            for (int64_t i = 0; i < columns; ++i) to[i] = adds ? to[i] + all[i] : all[i];
        }
    }
}

// All rows by one panel; the sums of six rows fill the registers. Few rows take as long as many where sums are fewer.
template <int LANES>
INLINE void product_all(const float* a, int64_t row, int64_t step, int64_t rows, const float* panel, int64_t depth,
                        const float* bias, float* to, int64_t to_stride, int64_t columns, bool adds) {
    auto next = [&](auto count) INLINE_LAMBDA {
        product_rows<LANES, count()>(a, row, step, panel, depth, bias, to, to_stride, columns, adds);
        a += count() * row, to += count() * to_stride, rows -= count();
    };
    while (rows > 7 || rows == 6) next(std::integral_constant<int, 6>());
    switch (rows) {
        case 7: next(std::integral_constant<int, 4>()); [[fallthrough]];
        case 3: next(std::integral_constant<int, 3>()); break;
        case 5: next(std::integral_constant<int, 5>()); break;
        case 4: next(std::integral_constant<int, 4>()); break;
        case 2: next(std::integral_constant<int, 2>()); break;
        case 1: next(std::integral_constant<int, 1>()); break;
    }
}

// The same, compiled once for each width of vectors: see `CODE`.
template <int LANES>
void product_panel(const float* a, int64_t row, int64_t step, int64_t rows, const float* panel, int64_t depth,
                   const float* bias, float* to, int64_t to_stride, int64_t columns, bool adds);

// (rows, in) -> (rows, out), both with their strides; `adds`: to what is there.
template <int LANES>
INLINE void multiply(const Linear& layer, const float* a, int64_t stride, int64_t rows, float* to, int64_t to_stride,
                     bool adds = false) {
    constexpr int64_t panel = 2 * LANES;
    for (int64_t first = 0; first < layer.out; first += panel)
        product_panel<LANES>(a, stride, 1, rows, layer.packed.data() + first * layer.in, layer.in,
                             layer.bias.data() + first, to + first, to_stride, std::min(panel, layer.out - first), adds);
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
        product_panel<LANES>(a, row, step, rows, packed, depth, nullptr, to + first, to_stride, width, false);
    }
}
