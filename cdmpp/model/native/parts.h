// Seconds that each resource of a device would take for a kernel, and how a launch fills it. Constants are architectural.
#pragma once

#include "quantities.h"

constexpr int N_CPU_PARTS = 19, N_GPU_PARTS = 31, N_PARTS = N_CPU_PARTS + N_GPU_PARTS, N_STATES = 5;

INLINE void cpu_parts(const Quantities& c, float* parts, float* states) {
    using namespace quantity;
    const float cycle = 1.0f / (c.of_device(number::clock_mhz) * 1e6f);
    const float cores = c.parallel_cores(), lanes = least(c.of_device(number::simd_bits) / 32.0f, 1.0f);
    // The features take vectors to be 64 bytes wide: narrower ones are so many times the instructions.
    const float wanted = least(c[iterations] - c[scalar_iterations], 0.0f) / least(c[vector_iterations], 1.0f);
    const float narrower = least(wanted / lanes, 1.0f) / least(wanted / 16.0f, 1.0f);
    const float vector_share = c[vector_iterations] / least(c[vector_iterations] + c[scalar_iterations], 1.0f);
    const float split = 1.0f + vector_share * (narrower - 1.0f);
    // What one core gets from memory, however many channels its socket has: its outstanding misses limit it.
    const float bandwidth =
        1e9f * std::fmin(c.of_device(number::bandwidth_gbps) / cores, c.of_device(number::core_gbps));
    const Layout& l = c.layout;
    const float l1_kib = c.of_device(number::l1_kb_per_core);
    const float l1 = c.curve(l.misses, l.misses_kib, l.n_misses, l1_kib);
    const float l2 = c.curve(l.misses, l.misses_kib, l.n_misses, c.of_device(number::l2_kb));
    const float l3 = c.curve(l.misses, l.misses_kib, l.n_misses, c.of_device(number::l3_kb));
    const float conflicts = least(c.curve(l.crowded, l.crowded_kib, l.n_crowded, l1_kib) - l1, 0.0f);
    const float l2_rate = c.of_device(number::l2_bytes_per_cycle), l3_rate = c.of_device(number::l3_bytes_per_cycle);
    float* p = parts;
    *p++ = c[flops] / c.of_device(number::flops_per_cycle) * cycle;
    *p++ = 20.0f * c[special_iterations] / lanes * cycle;
    *p++ = 8.0f * c[intdiv_iterations] / lanes * cycle;
    *p++ = c[scalar_iterations] / 4.0f * cycle;
    *p++ = c[vector_iterations] * narrower / 4.0f * cycle;
    *p++ = 0.05f * c[iterations] / 4.0f * cycle;
    *p++ = c[load_instructions] * split / 2.0f * cycle;
    *p++ = c[store_instructions] * split * cycle;
    *p++ = c[gather_iterations] * cycle;
    *p++ = 0.25f * c[odd_vector_iterations] * cycle;
    *p++ = l1 / l2_rate * cycle;
    *p++ = conflicts / l2_rate * cycle;
    *p++ = l2 / l3_rate * cycle;
    *p++ = 7.0f * c[page_misses_64] * cycle;
    *p++ = 30.0f * c[page_misses_1536] * cycle;
    *p++ = l3 / bandwidth;
    *p++ = 4.0f * c[chain_iterations] * cycle;
    for (float* shared = parts; shared < p; ++shared) *shared /= cores;
    *p++ = 0.01f * c[allocated_bytes] * cycle;  // these two only one of the cores takes
    *p++ = 2e-7f;
    const float own[] = {cores, c[parallel_extent] / cores, c[code_steps], c[local_memory_trips], c[leaves]};
    for (int i = 0; i < N_STATES; ++i) states[i] = std::log2(1.0f + least(own[i], 0.0f));
}

// Features are logarithms in single precision: 216 blocks come back as 216.0001 and must not start another round.
INLINE float whole_below(float x) { return std::floor(x * (1.0f + 1e-5f)); }
INLINE float whole_above(float x) { return std::ceil(x * (1.0f - 1e-5f)); }

INLINE void gpu_parts(const Quantities& g, float* parts, float* states) {
    using namespace quantity;
    constexpr float WARP = 32.0f;
    const float cores = g.of_device(number::core_count), registers_all = g.of_device(number::registers_per_core);
    const float warps = least(g[warps_per_block], 1.0f), needed = 24.0f + 1.2f * g[register_elements];
    // The compiler knows the block's size and leaves each thread no more than lets one block run.
    const float limit = std::fmin(registers_all / (warps * WARP), 255.0f);
    const float registers = least(std::fmin(needed, limit), 16.0f);
    float resident = whole_below(g.of_device(number::max_threads_per_core) / (warps * WARP));
    resident = std::fmin(
        resident, whole_below(g.of_device(number::shared_kb_per_core) * 1024.0f / (g[shared_bytes] + 1024.0f)));
    resident = std::fmin(resident, whole_below(registers_all / (registers * warps * WARP)));
    resident = least(std::fmin(resident, 32.0f), 1.0f);
    const float each = whole_above(g[blocks] / cores);
    const float active_blocks = least(std::fmin(each, resident), 1.0f), active_warps = active_blocks * warps;
    const float total_warps = least(each, 1.0f) * warps;
    const float rounds = least(whole_above(g[blocks] / (cores * active_blocks)), 1.0f);
    const float cycle = 1.0f / (g.of_device(number::clock_mhz) * 1e6f);
    const float bandwidth = 1e9f * g.of_device(number::bandwidth_gbps);
    const float lanes = least(g.of_device(number::flops_per_cycle) / 2.0f, WARP);
    // One warp by itself issues an instruction every two cycles at best; enough warps fill the pipes. A pipe is busy for
    // every warp that a multiprocessor ever gets, however they fall into rounds.
    const float alone = 2.0f * rounds, pipe = cycle * std::fmax(alone, total_warps * WARP / lanes);
    const float slot = cycle * std::fmax(alone, total_warps / 4.0f);
    const float warp = cycle * total_warps, round = cycle * rounds;
    const float l2 = g[blocks] * warps * 32.0f / (2.6f * bandwidth);
    // Thread-local arrays that do not fit, or are not indexed by constants, live in memory: a round trip each use.
    const float round_trip = round * least(active_warps, 35.0f);
    const float spilled = least(1.0f - limit / needed, 0.0f) * 2.0f * g[fp_per_thread];
    const float threads = least(g[blocks] * warps * WARP, 1.0f);
    const float refill = round * g[refill_rounds] * 700.0f;
    float* p = parts;
    *p++ = pipe * g[fp_per_thread];
    *p++ = pipe * 4.0f * g[special_per_thread];
    *p++ = slot * g[fp_per_thread];
    *p++ = slot * g[special_per_thread];
    *p++ = slot * 0.3f * g[int_per_thread];
    *p++ = slot * 4.0f * g[intdiv_iterations] / threads;
    *p++ = slot * 0.5f * g[select_per_thread];
    *p++ = slot * 0.5f * g[branch_per_thread];
    *p++ = slot * g[shared_loads_region_per_thread];
    *p++ = slot * g[shared_stores_per_thread];
    *p++ = slot * g[global_loads_region_per_thread];
    *p++ = slot * g[global_stores_per_thread];
    *p++ = warp * g[shared_load_wavefronts_per_warp];
    *p++ = warp * g[shared_store_wavefronts_per_warp];
    *p++ = warp * 0.5f * spilled;
    *p++ = warp * g[global_load_sectors_per_warp] / 2.0f;
    *p++ = warp * g[global_store_sectors_per_warp] / 2.0f;
    *p++ = l2 * g[global_load_sectors_per_warp];
    *p++ = l2 * g[global_store_sectors_per_warp];
    *p++ = g[global_read_bytes] / bandwidth;
    *p++ = g[global_write_bytes] / bandwidth;
    *p++ = 0.5f * refill;
    *p++ = 0.5f * refill / active_blocks;  // blocks that share a multiprocessor wait for memory while others compute
    *p++ = round * 500.0f;
    // What a warp waits for its loads where too few others are there to fill the time.
    *p++ = round * g[shared_loads_region_per_thread] * 5.0f;
    *p++ = round * g[global_loads_region_per_thread] * 20.0f;
    *p++ = round_trip * g[local_memory_trips];
    *p++ = round_trip * spilled;
    *p++ = round * g[refill_rounds] * warps * 10.0f;
    *p++ = round * g[cross_thread_reductions] * 50.0f;
    *p++ = 1.5e-6f;
    const float own[] = {active_warps, g[blocks] / (cores * resident), rounds, resident, registers};
    for (int i = 0; i < N_STATES; ++i) states[i] = std::log2(1.0f + least(own[i], 0.0f));
}
