// What is fitted before the network is trained: the analytic time of kernels, the time by machine code.
#pragma once

#include <limits>

#include "parts.h"

constexpr int N_BOUNDS = 8, N_OVERLAPPING = 6;

// The factors of `AnalyticalPrior`.
struct AnalyticPrior {
    int32_t bound[N_PARTS];
    float factor[N_PARTS];
    float power[2];  // by kind

    INLINE void times(const float* parts, float* bounds) const {
        for (int b = 0; b < N_BOUNDS; ++b) bounds[b] = 0.0f;
        for (int p = 0; p < N_PARTS; ++p) bounds[bound[p]] += parts[p] * factor[p];
        for (int b = 0; b < N_BOUNDS; ++b) bounds[b] = least(bounds[b], 1e-9f);
    }
    INLINE float seconds(const float* bounds, int kind) const {
        const float sharp = power[kind];
        float most = -std::numeric_limits<float>::infinity(), sum = 0.0f, logs[N_OVERLAPPING];
        for (int b = 0; b < N_OVERLAPPING; ++b) most = std::fmax(most, logs[b] = sharp * std::log(bounds[b]));
        for (int b = 0; b < N_OVERLAPPING; ++b) sum += std::exp(logs[b] - most);
        float seconds = std::exp((most + std::log(sum)) / sharp);
        for (int b = N_OVERLAPPING; b < N_BOUNDS; ++b) seconds += bounds[b];
        return seconds;
    }
    INLINE float log_seconds(const float* bounds, int kind) const { return std::log(seconds(bounds, kind)); }
};

struct CodeLayout {
    int32_t kind;  // of the devices whose code is read: 0 cpu, 1 gpu; negative: none is
    int32_t width, n_amounts, n_memory, n_resources, simulated, cycles, overlap;
    float fitted;
    const int32_t* columns;   // (n_amounts,) of a code vector behind its flag
    const int32_t* is_issued;  // (n_amounts,)
    const int32_t* is_gather;
    const int32_t* memory;    // (n_memory,) among the parts
    const float* cost;        // cpu: (n_resources, n_amounts + n_memory) factors
    float power, log_overhead;
    // gpu
    int32_t n_counted, n_variants, simulated_amount;
    float memory_cost, launch_cost, text_cost;
    const float* counted_cost;
    const float* variants;
};

// log-seconds of a CPU program and of each resource, by its code; `own`: factors of the amounts, then the logs of all
// cycles and of the overhead.
INLINE float cpu_code_time(const CodeLayout& c, const float* code, const float* memory_s, const float* device,
                           float cores, const float* own, float* logs) {
    constexpr int MOST = 512;
    float inputs[MOST];
    const float clock_hz = 1e6f * device[number::clock_mhz], slower = 5.0f / device[number::issue_width];
    for (int i = 0; i < c.n_amounts; ++i) {
        float amount = std::exp2(code[c.columns[i]]) - 1.0f;
        if (c.is_issued[i]) amount *= slower;
        if (c.is_gather[i]) amount *= device[number::gather_cycles_per_lane];
        inputs[i] = amount;
    }
    // Costs are never negative: what is saved of the simulated cycles enters as what is left.
    inputs[c.overlap] = least(inputs[c.cycles] - inputs[c.overlap], 0.0f);
    for (int i = 0; i < c.n_amounts; ++i) inputs[i] /= cores;
    for (int i = 0; i < c.n_memory; ++i) inputs[c.n_amounts + i] = memory_s[i] * clock_hz;
    const int n = c.n_amounts + c.n_memory;
    for (int i = 0; i < n; ++i) inputs[i] *= own[i];
    float most = -std::numeric_limits<float>::infinity();
    for (int r = 0; r < c.n_resources; ++r) {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += inputs[i] * c.cost[r * n + i];
        logs[r] = std::log(sum + 1e-3f);
        most = std::fmax(most, c.power * logs[r]);
    }
    float sum = 0.0f;
    for (int r = 0; r < c.n_resources; ++r) sum += std::exp(c.power * logs[r] - most);
    const float busiest = (most + std::log(sum)) / c.power, overhead = c.log_overhead + own[n + 1];
    const float high = std::fmax(busiest, overhead), low = std::fmin(busiest, overhead);
    const float total = high + std::log1p(std::exp(low - high)) + own[n];
    for (int r = 0; r < c.n_resources; ++r) logs[r] = logs[r] + own[n] - total;
    return total - std::log(clock_hz);
}

INLINE float gpu_code_time(const CodeLayout& c, const float* code, float memory_s, const float* device, float* logs) {
    const float clock_hz = 1e6f * device[number::clock_mhz];
    float amounts[128];
    for (int i = 0; i < c.n_amounts; ++i) amounts[i] = std::exp2(code[c.columns[i]]) - 1.0f;
    const int n = c.n_counted, last = n + c.n_variants;
    const float base = amounts[c.simulated_amount];
    float slower = 0.0f, multiprocessor = 0.0f;
    for (int i = n; i < last; ++i)
        slower += (std::log(least(amounts[i], 1.0f)) - std::log(least(base, 1.0f))) * c.variants[i - n];
    for (int i = 0; i < n; ++i) multiprocessor += amounts[i] * c.counted_cost[i];
    multiprocessor += base * (std::exp(slower) - 1.0f) * c.counted_cost[c.simulated_amount];
    const float starts = amounts[last], kernels = amounts[last + 1], text = amounts[last + 2];
    logs[0] = std::log(least(multiprocessor, 1.0f));
    logs[1] = std::log(least(memory_s * clock_hz * c.memory_cost, 1.0f));
    logs[2] = std::log(least(starts, 1.0f));
    float most = -std::numeric_limits<float>::infinity(), sum = 0.0f;
    for (int r = 0; r < 3; ++r) most = std::fmax(most, c.power * logs[r]);
    for (int r = 0; r < 3; ++r) sum += std::exp(c.power * logs[r] - most);
    const float cycles = std::exp((most + std::log(sum)) / c.power) + 1e-9f * clock_hz * kernels * c.launch_cost +
                         text * c.text_cost;
    const float total = std::log(cycles);
    for (int r = 0; r < 3; ++r) logs[r] -= total;
    return total - std::log(clock_hz);
}
