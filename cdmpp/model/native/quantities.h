// What the features of a kernel say in physical units, and the device numbers that go with them, each by its name.
#pragma once

#include <cmath>
#include <cstdint>

#include "linear.h"

#define QUANTITIES(Q)                                                                                                 \
    Q(iterations) Q(scalar_iterations) Q(vector_iterations) Q(flops) Q(special_iterations) Q(intdiv_iterations)       \
    Q(load_instructions) Q(store_instructions) Q(gather_iterations) Q(odd_vector_iterations) Q(page_misses_64)        \
    Q(page_misses_1536) Q(chain_iterations) Q(allocated_bytes) Q(parallel_extent) Q(code_steps)                       \
    Q(local_memory_trips) Q(leaves) Q(warps_per_block) Q(register_elements) Q(shared_bytes) Q(blocks)                 \
    Q(fp_per_thread) Q(special_per_thread) Q(int_per_thread) Q(select_per_thread) Q(branch_per_thread)                \
    Q(shared_loads_region_per_thread) Q(shared_stores_per_thread) Q(global_loads_region_per_thread)                   \
    Q(global_stores_per_thread) Q(shared_load_wavefronts_per_warp) Q(shared_store_wavefronts_per_warp)                \
    Q(global_load_sectors_per_warp) Q(global_store_sectors_per_warp) Q(global_read_bytes) Q(global_write_bytes)       \
    Q(refill_rounds) Q(cross_thread_reductions)

#define NUMBERS(D)                                                                                                    \
    D(clock_mhz) D(core_count) D(bandwidth_gbps) D(shared_kb_per_core) D(l1_kb_per_core) D(l2_kb) D(l3_kb)            \
    D(registers_per_core) D(max_threads_per_core) D(simd_bits) D(issue_width) D(gather_cycles_per_lane)               \
    D(l2_bytes_per_cycle) D(l3_bytes_per_cycle) D(core_gbps) D(flops_per_cycle)

#define NAME(x) x,
#define TEXT(x) #x ","
namespace quantity {
enum : int32_t { QUANTITIES(NAME) COUNT };
}
namespace number {
enum : int32_t { NUMBERS(NAME) COUNT };
}

// Where the quantities stand in a kernel vector.
struct Layout {
    int32_t column[quantity::COUNT];
    int32_t plain[quantity::COUNT];  // 0: the column holds log2(1 + quantity)
    int32_t n_misses, n_crowded;     // points of the miss curves
    int32_t misses[32], crowded[32];
    float misses_kib[32], crowded_kib[32];
};

INLINE float least(float x, float low) { return x < low ? low : x; }  // clamp_min

struct Quantities {
    float all[quantity::COUNT];
    const float* features;
    const float* device;  // (number::COUNT,)
    const Layout& layout;

    INLINE Quantities(const float* features_, const float* device_, const Layout& layout_)
        : features(features_), device(device_), layout(layout_) {
        for (int i = 0; i < quantity::COUNT; ++i) {
            const float column = features[layout.column[i]];
            all[i] = layout.plain[i] ? column : std::exp2(column) - 1.0f;
        }
    }
    INLINE float operator[](int name) const { return all[name]; }
    INLINE float of_device(int name) const { return device[name]; }
    INLINE float parallel_cores() const {
        return std::fmin(device[number::core_count], least(all[quantity::parallel_extent], 1.0f));
    }
    // A curve of bytes missed by capacity, read at one: linear in the log of both.
    INLINE float curve(const int32_t* columns, const float* sampled_kib, int32_t n, float capacity_kib) const {
        const float low = std::log2(sampled_kib[0]), high = std::log2(sampled_kib[n - 1]);
        const float x = std::fmin(std::fmax(std::log2(least(capacity_kib, 1.0f)), low), high);
        int32_t right = 0;
        while (right < n && std::log2(sampled_kib[right]) < x) ++right;
        right = right < 1 ? 1 : right > n - 1 ? n - 1 : right;
        const float left_kib = std::log2(sampled_kib[right - 1]), right_kib = std::log2(sampled_kib[right]);
        const float share = (x - left_kib) / (right_kib - left_kib);
        const float before = std::log2(1.0f + (std::exp2(features[columns[right - 1]]) - 1.0f));
        const float after = std::log2(1.0f + (std::exp2(features[columns[right]]) - 1.0f));
        return std::exp2(before + share * (after - before)) - 1.0f;
    }
};
