// Functions of whole rows, written so that a compiler makes vectors of their loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear.h"

// Relative error below 2e-7: Cephes' polynomial, range reduced by powers of two.
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float n = std::floor(x * 1.44269504088896341f + 0.5f);
    x = x - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

// Eigen's rational approximation (generic_fast_erf_float), a few units of the last place off.
INLINE float error_function(float x) {
    x = x < -4.0f ? -4.0f : x > 4.0f ? 4.0f : x;
    const float z = x * x;
    float p = -2.72614225801306e-10f;
    p = p * z + 2.77068142495902e-08f;
    p = p * z - 2.10102402082508e-06f;
    p = p * z - 5.69250639462346e-05f;
    p = p * z - 7.34990630326855e-04f;
    p = p * z - 2.95459980854025e-03f;
    p = p * z - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * z - 2.13374055278905e-04f;
    q = q * z - 1.68282697438203e-03f;
    q = q * z - 7.37332916720468e-03f;
    q = q * z - 1.42647390514189e-02f;
    return x * p / q;
}

INLINE void gelu(float* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + error_function(x[i] * 0.70710678118654752f));
}

// `slope` (n,) becomes that times the derivative of `gelu` at `x` (n,).
INLINE void gelu_slope(const float* x, float* slope, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float below = 0.5f * (1.0f + error_function(x[i] * 0.70710678118654752f));
        slope[i] *= below + x[i] * 0.39894228040143268f * exponential(-0.5f * x[i] * x[i]);
    }
}

struct Norm {
    std::vector<float> weight, bias;
};

template <int LANES>
INLINE float sum_of(const float* x, int64_t n) {
    using V = Vector<LANES>;
    typename V::type even = {}, odd = {};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) even += V::load(x + i), odd += V::load(x + i + LANES);
    float sum = V::sum(even + odd);
    for (; i < n; ++i) sum += x[i];
    return sum;
}

template <int LANES>
INLINE float product_of(const float* x, const float* y, int64_t n) {
    using V = Vector<LANES>;
    typename V::type even = {}, odd = {};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even += V::load(x + i) * V::load(y + i);
        odd += V::load(x + i + LANES) * V::load(y + i + LANES);
    }
    float sum = V::sum(even + odd);
    for (; i < n; ++i) sum += x[i] * y[i];
    return sum;
}

// Where wanted also `units` (rows, width), what is normalised before weight and bias, and `scales` (rows,), its factor.
template <int LANES>
INLINE void normalise(const Norm& norm, const float* x, int64_t rows, int64_t width, float* to, float* units = nullptr,
                      float* scales = nullptr) {
    const float* __restrict weight = norm.weight.data();
    const float* __restrict bias = norm.bias.data();
    for (int64_t row = 0; row < rows; ++row, x += width) {
        const float* __restrict from = x;
        float* __restrict own = to + row * width;
        const float mean = sum_of<LANES>(from, width) / width;
        for (int64_t i = 0; i < width; ++i) own[i] = from[i] - mean;
        const float scale = 1.0f / std::sqrt(product_of<LANES>(own, own, width) / width + 1e-5f);
        for (int64_t i = 0; i < width; ++i) own[i] *= scale;
        if (units) std::copy(own, own + width, units + row * width), scales[row] = scale;
        for (int64_t i = 0; i < width; ++i) own[i] = own[i] * weight[i] + bias[i];
    }
}
