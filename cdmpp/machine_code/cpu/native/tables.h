// Numbers and names that reading goes by. Features and operations stand in the order of code_features.py and operation.py,
// which say what each means; tests/machine_code/test_tables.py holds them equal.
#pragma once
#include "text.h"

namespace cdmpp {

struct Entry { Text name; int value; };

// What is added up. The last two tell the shares of the hottest code.
namespace feature {
enum : int {
    n_float_1, n_float_4, n_float_8, n_float_16, n_divide_1, n_divide_4, n_divide_8, n_divide_16, n_select_1,
    n_select_4, n_select_8, n_select_16, n_convert_1, n_convert_4, n_convert_8, n_convert_16, n_load_1, n_load_4,
    n_load_8, n_load_16, n_store_1, n_store_4, n_store_8, n_store_16,
    n_fused_lanes, n_load_int, n_store_int, n_gather, n_scatter, n_masked, n_shuffle, n_broadcast, n_insert,
    n_vector_int, n_scalar_int, n_extend, n_int_divide, n_address, n_branch, n_call, n_odd_vector, n_odd_wide_lanes,
    n_load_bytes, n_store_bytes,
    cycles_vector, cycles_load, cycles_store, cycles_shuffle, cycles_issue, cycles_chain, cycles_divider,
    cycles_call, cycles_spill,
    cycles, instructions_run, instructions_text, loop_runs, loop_entries, unknown_loops, hottest_cycles,
    hottest_trips, hottest_instructions, hottest_share,
    machine_cycles, machine_latency_cycles, machine_overlap_cycles, machine_issue_cycles, machine_float_cycles,
    machine_vector_cycles, machine_shuffle_cycles, machine_integer_cycles, machine_load_cycles, machine_store_cycles,
    machine_loads, machine_stores, machine_wide_loads, machine_wide_stores, machine_scalar_loads,
    machine_scalar_stores, machine_masked_loads, machine_masked_stores,
    machine_blocked_loads, machine_masked_waits, machine_aliased_loads, machine_l1_conflicts, machine_l2_conflicts,
    machine_spill_loads, machine_spill_stores, machine_scalar_floats, machine_vector_floats, machine_gather_lanes,
    machine_scatter_lanes, machine_loop_runs, machine_loop_entries,
    machine_is_fma, machine_is_fadd, machine_is_fmax, machine_is_divide, machine_is_gather, machine_is_scatter,
    machine_is_shuffle, machine_is_convert, machine_is_compare, machine_is_vector_multiply, machine_is_move,
    machine_is_vector_int, machine_is_mask, machine_is_call, machine_is_branch, machine_is_int_divide,
    machine_is_int_multiply, machine_is_int, machine_is_int_move, machine_is_transfer,
    machine_text, machine_unmatched_loops, hottest_machine_cycles, hottest_machine_trips,
    hottest_machine_instructions, hottest_machine_spills, hottest_machine_share,
    hottest_total, hottest_machine_total, N
};
}
constexpr int64_t N_CLASSES = 44, N_RESOURCES = 6, N_EXTRA = 3;

// What a core's sheet gives ports and latencies of, and what each is counted as.
namespace op {
enum : int {
    op_fma, op_fadd, op_fmax, op_divide, op_gather, op_scatter, op_light_shuffle, op_shuffle, op_insert, op_convert,
    op_compare, op_multiply_low, op_vector_multiply, op_vector_int, op_mask_transfer, op_mask, op_transfer, op_move,
    op_call, op_branch, op_int_divide, op_int_multiply, op_int, op_int_move
};
}
constexpr int KIND_OF[] = {
    feature::machine_is_fma, feature::machine_is_fadd, feature::machine_is_fmax, feature::machine_is_divide,
    feature::machine_is_gather, feature::machine_is_scatter, feature::machine_is_shuffle,
    feature::machine_is_shuffle, feature::machine_is_shuffle, feature::machine_is_convert,
    feature::machine_is_compare, feature::machine_is_vector_multiply, feature::machine_is_vector_multiply,
    feature::machine_is_vector_int, feature::machine_is_mask, feature::machine_is_mask, feature::machine_is_transfer,
    feature::machine_is_move, feature::machine_is_call, feature::machine_is_branch, feature::machine_is_int_divide,
    feature::machine_is_int_multiply, feature::machine_is_int, feature::machine_is_int_move
};
constexpr int FLOATS[] = {op::op_fma, op::op_fadd, op::op_fmax};
constexpr int SHUFFLES[] = {
    op::op_light_shuffle, op::op_shuffle, op::op_insert, op::op_transfer, op::op_mask_transfer
};
constexpr int INTEGERS[] = {op::op_int, op::op_int_multiply, op::op_int_divide, op::op_branch, op::op_call};

// The IR: classes of instructions by their names, counted by WIDTHS, lanes, or once.
constexpr int64_t WIDTHS[] = {1, 4, 8, 16};
constexpr Text FREE[] = {
    "addrspacecast", "bitcast", "extractvalue", "fence", "freeze", "phi", "poison", "ret", "switch", "unreachable"
};
constexpr Entry BY_REGISTER[] = {
    {"fmul", feature::n_float_1}, {"fadd", feature::n_float_1}, {"fsub", feature::n_float_1},
    {"fneg", feature::n_float_1}, {"fcmp", feature::n_select_1}, {"select", feature::n_select_1},
    {"sitofp", feature::n_convert_1}, {"uitofp", feature::n_convert_1}, {"fptosi", feature::n_convert_1},
    {"fptoui", feature::n_convert_1}, {"fpext", feature::n_convert_1}, {"fptrunc", feature::n_convert_1},
    {"fdiv", feature::n_divide_1}
};
constexpr Entry BY_LANE[] = {
    {"sdiv", feature::n_int_divide}, {"srem", feature::n_int_divide}, {"udiv", feature::n_int_divide},
    {"urem", feature::n_int_divide}, {"frem", feature::n_call}
};
constexpr Entry SCALAR[] = {
    {"sext", feature::n_extend}, {"zext", feature::n_extend}, {"trunc", feature::n_extend},
    {"getelementptr", feature::n_address}
};
constexpr Entry SCALAR_BYTES[] = {{"float", 4}, {"double", 8}, {"half", 2}, {"bfloat", 2}, {"ptr", 8}};
constexpr int64_t VECTOR_BYTES = 64;  // of one register: wider vectors are counted as several

// Cycles of a block of the IR on a wide core, rounded from public tables of recent server cores: a scale for counts, which
// a model that learns from measurements corrects.
constexpr double FLOAT_LATENCY = 4.0, ODD_LANE_CYCLES = 0.4, CALL_CYCLES = 15.0, SPILL_CYCLES = 0.7;
constexpr double DIVIDE_CYCLES[] = {4.0, 5.0, 5.0, 10.0};
constexpr int64_t VECTOR_REGISTERS = 30;

// The simulated core.
constexpr int64_t MOST_TERMS = 4;  // unknowns that the sum of an address is followed for
constexpr int64_t LINE_BYTES = 64, WIDE = 64;
constexpr int64_t ALIAS_BYTES = 4096;  // addresses that far apart are taken for the same at first
constexpr int64_t REPEATED = 1000;     // instructions at least that a loop is followed for: start and end weigh little then
constexpr int64_t LONGEST = 3000;      // of one piece that are followed; a longer one is taken to go on as it began

// x86-64: beginnings of names, and endings that tell bytes of memory where it is not the whole register.
constexpr Text ONLY_READS[] = {
    "bt", "cmp", "j", "kortest", "ktest", "nop", "prefetch", "push", "ret", "test", "vcomis", "vucomis"
};
constexpr Text KEEPS_TARGET[] = {"vfmadd", "vfmsub", "vfnmadd", "vfnmsub", "vpermi2", "vpermt2", "vpternlog"};
constexpr Text OVERWRITES[] = {"k", "lea", "mov", "pop", "set", "v"};
constexpr Text OVERWRITES_IN_SSE[] = {
    "vcvtdq2", "vcvtp", "vcvttp", "vlddqu", "vmov", "vpabs", "vpextr", "vpmovmskb", "vpmovsx", "vpmovzx", "vpshufd",
    "vpshufhw", "vpshuflw", "vrcpps", "vroundp", "vrsqrtps", "vsqrtp"
};
constexpr Text STORES[] = {
    "kmov", "mov", "set", "vextract", "vmaskmov", "vmov", "vpextr", "vpmaskmov", "vpmov", "vpscatter", "vscatter"
};
constexpr Text READS_FLAGS[] = {"adc", "cmov", "j", "sbb", "set"};
constexpr Text SETS_FLAGS[] = {
    "add", "sub", "and", "xor", "cmp", "test", "inc", "dec", "neg", "sh", "sa", "imul", "or", "bt", "adc", "sbb",
    "vucomi", "vcomi", "kortest", "ktest", "vptest"
};
constexpr Text ONE_OPERAND[] = {"call", "div", "idiv", "imul", "j", "mul", "push"};
constexpr Text NAMED[] = {"ax", "bp", "bx", "cx", "di", "dx", "si", "sp"};
constexpr Entry PARTS[] = {
    {"ss", 4}, {"vmovd", 4}, {"vpbroadcastd", 4}, {"vpextrd", 4}, {"vpinsrd", 4}, {"sd", 8}, {"vmovq", 8},
    {"vpbroadcastq", 8}, {"vmovlps", 8}, {"vmovhps", 8}, {"vpextrq", 8}, {"vpinsrq", 8}, {"128", 16}, {"32x4", 16},
    {"64x2", 16}, {"64x4", 32}, {"32x8", 32}
};
// Beginnings of names -> the operation, the first that fits.
constexpr Entry RULES[] = {
    {"vfmadd", op::op_fma}, {"vfnmadd", op::op_fma}, {"vfmsub", op::op_fma}, {"vfnmsub", op::op_fma},
    {"vmulp", op::op_fma}, {"vmuls", op::op_fma},
    {"vaddp", op::op_fadd}, {"vadds", op::op_fadd}, {"vsubp", op::op_fadd}, {"vsubs", op::op_fadd},
    {"vrndscale", op::op_fadd},
    {"vmaxp", op::op_fmax}, {"vmaxs", op::op_fmax}, {"vminp", op::op_fmax}, {"vmins", op::op_fmax},
    {"vdiv", op::op_divide}, {"vsqrt", op::op_divide}, {"vrsqrt", op::op_divide}, {"vrcp", op::op_divide},
    {"vgather", op::op_gather}, {"vpgather", op::op_gather},
    {"vscatter", op::op_scatter}, {"vpscatter", op::op_scatter},
    {"vinsertps", op::op_light_shuffle}, {"vshuf", op::op_light_shuffle}, {"vunpck", op::op_light_shuffle},
    {"vpunpck", op::op_light_shuffle}, {"vpshuf", op::op_light_shuffle}, {"vpermilp", op::op_light_shuffle},
    {"valign", op::op_light_shuffle}, {"vpalign", op::op_light_shuffle}, {"vmovhps", op::op_light_shuffle},
    {"vmovlps", op::op_light_shuffle}, {"vmovs", op::op_light_shuffle}, {"vmovhl", op::op_light_shuffle},
    {"vmovlh", op::op_light_shuffle}, {"vmovdd", op::op_light_shuffle},
    {"vinsert", op::op_shuffle}, {"vextract", op::op_shuffle}, {"vbroadcast", op::op_shuffle},
    {"vpbroadcast", op::op_shuffle}, {"vperm", op::op_shuffle}, {"vpmovs", op::op_shuffle},
    {"vpmovz", op::op_shuffle},
    {"vpinsr", op::op_insert}, {"vpextr", op::op_insert}, {"vpmov", op::op_insert}, {"vcompress", op::op_insert},
    {"vexpand", op::op_insert},
    {"vcvt", op::op_convert},
    {"vcmp", op::op_compare}, {"vpcmp", op::op_compare}, {"vptestm", op::op_compare}, {"vptestnm", op::op_compare},
    {"vfpclass", op::op_compare},
    {"vpmulld", op::op_multiply_low}, {"vpmullq", op::op_multiply_low},
    {"vpmul", op::op_vector_multiply},
    {"vmov", op::op_move}, {"vzero", op::op_move}, {"vmaskmov", op::op_move},
    {"v", op::op_vector_int},
    {"kmov", op::op_mask_transfer}, {"kshift", op::op_mask_transfer}, {"kunpck", op::op_mask_transfer},
    {"k", op::op_mask},
    {"call", op::op_call},
    {"j", op::op_branch}, {"ret", op::op_branch},
    {"idiv", op::op_int_divide}, {"div", op::op_int_divide},
    {"imul", op::op_int_multiply}, {"mul", op::op_int_multiply},
    {"movs", op::op_int}, {"movz", op::op_int},
    {"mov", op::op_int_move}, {"push", op::op_int_move}, {"pop", op::op_int_move},
    {"", op::op_int},
};

}  // namespace cdmpp
