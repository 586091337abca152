// Constants of the extractor, and the features that it fills, in the order in which leaf_features.py and
// kernel_features.py declare them with unit and meaning; tests/ast/test_features.py holds the two equal.
#pragma once

#include <array>
#include <string_view>

namespace cdmpp {

constexpr int UNROLL_MAX_DEPTH = 8;  // TVM's UnrollLoop stops nesting automatic unrolling here
constexpr int MOST_NESTED = 1000;    // loops and branches around a statement; the walk recurses over them
constexpr int WARP = 32;
constexpr int N_RANDOM = 64;
constexpr int SECTOR_BYTES = 32;
constexpr int BANKS = 32;
constexpr double LINE_BYTES = 64;
constexpr double WIDEST_ACCESS_BYTES = 16;
constexpr int MAX_ENUMERATED = 4096;
constexpr int SHORT_REGION_TRIPS = 32;  // such loop nests nvcc and LLVM unroll without being asked
constexpr int AUTO_LANES = 16;          // float32 lanes of the widest CPU vectors
constexpr int N_LOADS = 4;
constexpr int N_LOOPS = 6;
constexpr int SETS = 64;  // of a first-level cache with lines of 64 bytes
constexpr double PAGE_BYTES = 4096;
constexpr double CACHE_KIB[] = {16, 32, 256, 1024, 4096, 32768};
constexpr double CROWDED_KIB[] = {16, 32, 48};
constexpr double PAGE_ENTRIES[] = {64, 1536};

#define CDMPP_OPS(X) \
  X(fma) X(fadd) X(fmul) X(fdiv) X(fcompare) X(special) X(select) X(cast) X(int) X(intdiv) X(compare) X(bool)

#define CDMPP_CONTEXT(X)                                                                                            \
  X(iterations) X(blocks) X(threads) X(vthreads) X(serial_trips) X(parallel_extent) X(vector_lanes)                 \
  X(unrolled_trips) X(region_trips) X(reduction_trips) X(inner_reduction_trips) X(accumulator_tile) X(depth)        \
  X(loops) X(unroll_limit) X(explicit_unroll_flag) X(pipeline_stages) X(guards) X(active_fraction)                  \
  X(constant_store_flag) X(update_flag) X(copy_flag) X(indirect_flag) X(fold_fraction) X(refill_trips)              \
  X(flops_per_iteration) X(int_ops_per_iteration) X(loads_per_iteration) X(vector_iterations) X(scalar_flag)        \
  X(chain_trips) X(sync_flag) X(redundant_trips) X(auto_lanes) X(odd_lanes_flag)

#define CDMPP_ACCESS(X)                                                                                             \
  X(present_flag) X(global_flag) X(shared_flag) X(local_flag) X(written_before_flag) X(element_bytes)               \
  X(buffer_bytes) X(unique_bytes) X(requested_bytes) X(reuse) X(trips_ideal) X(trips_region) X(sectors_per_warp)    \
  X(sector_use_share) X(lanes_distinct) X(bank_wavefronts) X(access_bytes) X(moved_bytes_ideal)                     \
  X(moved_bytes_region) X(vector_stride_bytes) X(vector_contiguous_flag) X(inner_stride_bytes)                      \
  X(inner_dependent_flag) X(lines) X(line_use_share) X(block_unique_bytes) X(guarded_fraction)

#define CDMPP_LOOP(X)                                                                                               \
  X(extent) X(reduction_flag) X(unrolled_flag) X(vector_flag) X(store_stride_bytes) X(load0_stride_bytes)           \
  X(load1_stride_bytes)

#define CDMPP_KERNEL(X)                                                                                             \
  X(gpu_flag) X(blocks) X(block_threads) X(warps_per_block) X(vthreads) X(shared_bytes) X(local_bytes_per_thread)   \
  X(pipeline_stages) X(unroll_limit) X(leaves) X(flops) X(fma_per_thread) X(fp_per_thread) X(special_per_thread)    \
  X(int_per_thread) X(select_per_thread) X(branch_per_thread) X(shared_loads_per_thread)                            \
  X(shared_loads_region_per_thread) X(shared_load_wavefronts_per_warp) X(shared_load_wavefronts_region_per_warp)    \
  X(shared_stores_per_thread) X(shared_store_wavefronts_per_warp) X(global_loads_per_thread)                        \
  X(global_loads_region_per_thread) X(global_load_sectors_per_warp) X(global_load_sectors_region_per_warp)          \
  X(global_load_use_share) X(global_stores_per_thread) X(global_store_sectors_per_warp)                             \
  X(global_store_use_share) X(global_read_bytes) X(global_write_bytes) X(block_read_bytes) X(refill_rounds)         \
  X(cross_thread_reductions) X(code_steps) X(max_region_trips) X(register_elements) X(local_memory_trips)           \
  X(min_active_fraction) X(fma_per_shared_load) X(inner_body_trips) X(parallel_extent) X(iterations)                \
  X(vector_iterations) X(scalar_iterations) X(gather_iterations) X(odd_vector_iterations) X(chain_iterations)       \
  X(load_instructions) X(store_instructions) X(allocated_bytes) X(special_iterations) X(intdiv_iterations)          \
  X(heaviest_leaf_share) X(footprint_bytes)

// Stored as it is; every other feature is stored as slog of its quantity.
constexpr bool is_plain(std::string_view name) {
  return name.ends_with("_flag") || name.ends_with("_fraction") || name.ends_with("_share");
}

#define CDMPP_OP(name) OP_##name,
enum Op { CDMPP_OPS(CDMPP_OP) N_OPS };
#undef CDMPP_OP

// Fields in their order, which designated initialisers have to fill one by one.
#define CDMPP_FIELD(name) double name;
#define CDMPP_PLAIN(name) is_plain(#name),
#define CDMPP_STRUCT(name, FEATURES) \
  struct name { FEATURES(CDMPP_FIELD) static constexpr bool plain[] = {FEATURES(CDMPP_PLAIN)}; };
CDMPP_STRUCT(ContextFeatures, CDMPP_CONTEXT)
CDMPP_STRUCT(AccessFeatures, CDMPP_ACCESS)
CDMPP_STRUCT(LoopFeatures, CDMPP_LOOP)
CDMPP_STRUCT(KernelFeatures, CDMPP_KERNEL)
#undef CDMPP_STRUCT
#undef CDMPP_FIELD
#undef CDMPP_PLAIN

// A line for each group of features: its name and theirs.
#define CDMPP_NAME(name) " " #name
constexpr const char* FEATURE_NAMES =
    "OPS" CDMPP_OPS(CDMPP_NAME) "\nCONTEXT" CDMPP_CONTEXT(CDMPP_NAME) "\nACCESS" CDMPP_ACCESS(CDMPP_NAME)
    "\nLOOP" CDMPP_LOOP(CDMPP_NAME) "\nKERNEL" CDMPP_KERNEL(CDMPP_NAME);
#undef CDMPP_NAME

}  // namespace cdmpp
