// The answers of a network for a few programs.
#pragma once

#include "encode.h"

struct Answers {
    double* log_latency;       // (n,)
    float* hidden;             // (n, hidden)
    float *largest, *smallest;  // (n, leaf_width + kernel_width)
};

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
INLINE void answer(const Network& net, const Programs& p, const int64_t* rows, int64_t n, Tape& m, Answers to) {
    const Shape& s = net.shape;
    count(p, rows, n, m);
    float* priors = Tape::sized(m.priors, m.n_kernels);
    float* inputs = Tape::sized(m.inputs, m.n_kernels * s.input_width);
    for (int64_t i = 0, k = 0; i < n; k += p.kernel_counts[rows[i]], ++i)
        read_kernels(net, p, rows[i], inputs + k * s.input_width, priors + k);
    encode<LANES>(net, p, rows, n, m);
    add_up(net, p, rows, n, m, to.log_latency, to.hidden);
    const int64_t facts = s.leaf_width + s.kernel_width;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t row = rows[i];
        extremes<LANES>(p.leaves + p.leaf_starts[row] * s.leaf_width, p.leaf_counts[row], s.leaf_width,
                        to.largest + i * facts, to.smallest + i * facts);
        extremes<LANES>(p.kernels + p.kernel_starts[row] * s.kernel_width, p.kernel_counts[row], s.kernel_width,
                        to.largest + i * facts + s.leaf_width, to.smallest + i * facts + s.leaf_width);
    }
}
