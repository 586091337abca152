// The answers of a network for a few programs.
#pragma once

#include <memory>
#include <mutex>

#include "encode.h"

// A network with its first layers in parts, so that nothing is computed for a kernel that its program or its device has in
// common. Tapes wait in it for the next call.
struct Answering {
    Network net;
    int64_t own, used;       // columns of kernels that are used: those of the kernel itself, then of its program's code
    Linear own_up, code_up;  // parts of `embed_kernel`
    Floats uncoded;          // (width,) what `code_up` makes of a program without code
    Linear of_kernel, of_program, of_device;  // parts of `regressor`
    std::mutex lock;
    std::vector<std::unique_ptr<Tape>> tapes;

    // `arrays` as at `Network`.
    Answering(const Shape& shape, const Array* arrays, const Layout& layout, const CodeLayout& code, const int32_t* bound,
              int64_t panel)
        : net(shape, arrays, layout, code, bound, panel), used(static_cast<int64_t>(net.kernels.used.size())) {
        const int64_t width = shape.width, behind = shape.kernel_width + N_BOUNDS + N_STATES;
        own = std::lower_bound(net.kernels.used.begin(), net.kernels.used.end(), behind) - net.kernels.used.begin();
        const Array* weights = arrays + Network::FITTED;
        auto part = [&](Linear& to, int weight, const float* bias, int64_t out, const std::vector<int32_t>& columns) {
            const int64_t stride = weights[weight].size / out, n = static_cast<int64_t>(columns.size());
            to.read(weights[weight].data, bias, out, n, panel, columns.data(), stride);
        };
        part(own_up, KERNEL_UP, net.embed_kernel.bias.data(), width, net.columns_of(0, own));
        const std::vector<int32_t> of_code = net.columns_of(own, used);
        part(code_up, KERNEL_UP, nullptr, width, of_code);
        Floats nothing(shape.input_width, 0.0f), row(of_code.size());
        net.read_columns(nothing.data(), own, used, row.data());
        for (int64_t o = 0; o < width; ++o) {
            double sum = 0.0;
            const float* weight = weights[KERNEL_UP].data + o * shape.input_width * (1 + shape.bins);
            for (size_t i = 0; i < row.size(); ++i) sum += static_cast<double>(row[i]) * weight[of_code[i]];
            uncoded.push_back(static_cast<float>(sum));
        }
        auto columns = [&](int64_t first, int64_t n) {
            std::vector<int32_t> found(n * width);
            for (size_t i = 0; i < found.size(); ++i) found[i] = static_cast<int32_t>(first * width + i);
            return found;
        };
        part(of_kernel, REGRESSOR, nullptr, shape.hidden, columns(0, 2));
        part(of_program, REGRESSOR, nullptr, shape.hidden, columns(2, 1));
        part(of_device, REGRESSOR, weights[REGRESSOR_BIAS].data, shape.hidden, columns(3, 1));
    }

    std::unique_ptr<Tape> tape() {
        const std::lock_guard<std::mutex> held(lock);
        if (tapes.empty()) return std::make_unique<Tape>();
        std::unique_ptr<Tape> found = std::move(tapes.back());
        tapes.pop_back();
        return found;
    }
    void give_back(std::unique_ptr<Tape> tape) {
        const std::lock_guard<std::mutex> held(lock);
        tapes.push_back(std::move(tape));
    }
};

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
INLINE void answer(const Answering& a, const Programs& p, const int64_t* rows, int64_t n, Tape& m, Answers to) {
    const Network& net = a.net;
    const Shape& s = net.shape;
    const int64_t width = s.width;
    count(p, rows, n, m);
    float* priors = Tape::sized(m.priors, m.n_kernels);
    float* inputs = Tape::sized(m.inputs, m.n_kernels * s.input_width);
    float* up = Tape::sized(m.kernel_up, m.n_kernels * width);
    float* own_rows = Tape::sized(m.kernel_rows, m.n_kernels * a.own_up.in);
    float* code_row = Tape::sized(m.place, a.code_up.in);
    for (int64_t i = 0, k = 0; i < n; ++i) {
        const int64_t row = rows[i], own = p.kernel_counts[row];
        const bool is_coded = net.code.kind >= 0 && !std::isnan(p.codes[p.code_rows[row] * net.code.width]);
        read_kernels(net, p, row, inputs + k * s.input_width, priors + k);
        if (is_coded) {
            net.read_columns(inputs + k * s.input_width, a.own, a.used, code_row);
            multiply<LANES>(a.code_up, code_row, a.code_up.in, 1, up + k * width, width);
        }
        const float* common = is_coded ? up + k * width : a.uncoded.data();
        for (int64_t j = is_coded ? 1 : 0; j < own; ++j) std::copy(common, common + width, up + (k + j) * width);
        for (int64_t j = 0; j < own; ++j)
            net.read_columns(inputs + (k + j) * s.input_width, 0, a.own, own_rows + (k + j) * a.own_up.in);
        k += own;
    }
    multiply<LANES>(a.own_up, own_rows, a.own_up.in, m.n_kernels, up, width, true);
    encode<LANES>(net, p, rows, n, m);

    float* pairs = Tape::sized(m.joined, m.n_kernels * 2 * width);  // of each kernel its token and the mean of its leaves
    float* means = Tape::sized(m.leaves, n * width);
    float* counts = Tape::sized(m.counts, m.n_kernels);
    float* of_device = Tape::sized(m.place, s.hidden);
    float* between = Tape::sized(m.between_up, m.n_kernels * s.hidden);
    for (int64_t i = 0, t = 0, k = 0; i < n; ++i) {
        const int64_t own_kernels = p.kernel_counts[rows[i]];
        const float* tokens = m.normed.data() + t * width;
        for (int64_t j = 0; j < own_kernels; ++j)
            std::copy(tokens + j * width, tokens + (j + 1) * width, pairs + (k + j) * 2 * width);
        mean_leaves(p, rows[i], width, tokens + own_kernels * width, 2 * width, counts + k, pairs + (2 * k + 1) * width,
                    means + i * width);
        k += own_kernels, t += own_kernels + p.leaf_counts[rows[i]];
    }
    float* of_programs = Tape::sized(m.between, n * s.hidden);
    multiply<LANES>(a.of_program, means, width, n, of_programs, s.hidden);
    for (int64_t i = 0, k = 0, device = -1; i < n; ++i) {
        if (p.devices[rows[i]] != device) {
            device = p.devices[rows[i]];
            multiply<LANES>(a.of_device, p.contexts + device * width, width, 1, of_device, s.hidden);
        }
        for (const int64_t end = k + p.kernel_counts[rows[i]]; k < end; ++k)
            for (int64_t d = 0; d < s.hidden; ++d) between[k * s.hidden + d] = of_programs[i * s.hidden + d] + of_device[d];
    }
    multiply<LANES>(a.of_kernel, pairs, 2 * width, m.n_kernels, between, s.hidden, true);
    regress<LANES>(net, m);
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
