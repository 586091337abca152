// The amounts of a code vector, the same as code_vector.py's; machine_code/native.py compiles it.
#include "machine.h"

namespace cdmpp {

constexpr Text WRAPPER = "__tvm_ffi_main", REFUSAL = "__tvm_set_raised";

// The functions that compute, without checks of arguments.
std::vector<Function> computing(const std::vector<Function>& functions) {
  std::vector<Function> found;
  bool computes = false;
  for (const Function& function : functions) {
    bool compute = has(function.name, "compute_");
    if (compute || Text(function.name).starts_with("__tvm_parallel_lambda")) found.push_back(function);
    computes |= compute;
  }
  for (const Function& function : functions) {
    if (!computes && function.name == WRAPPER) found.push_back(BlockGraph::after_checks(function, REFUSAL));
  }
  return found;
}

// Of a loop of one block: its float operations over the accumulators they are spread on.
double chain_cycles(const std::vector<Text>& block, const double* counts) {
  auto accumulators = std::count_if(block.begin(), block.end(), is_float_phi);
  double floats = 0.0;
  for (int i = feature::n_float_1; i <= feature::n_float_16; ++i) floats += counts[i];
  return accumulators ? FLOAT_LATENCY * std::max(1.0, floats / static_cast<double>(accumulators)) : 0.0;
}

// Cycles of one run of a block by RESOURCES and EXTRA, from amounts of its classes.
std::array<double, N_RESOURCES + N_EXTRA> cycles_by_resource(const double* n, double chain, double spilled) {
  using namespace feature;
  auto all_widths = [&](int first) {
    double sum = 0.0;
    for (size_t i = 0; i < std::size(WIDTHS); ++i) sum += n[first + i];
    return sum;
  };
  double arithmetic = all_widths(n_float_1) + 0.5 * all_widths(n_select_1) + all_widths(n_convert_1);
  double loads = all_widths(n_load_1) + n[n_load_int], stores = all_widths(n_store_1) + n[n_store_int];
  double scattered = 1.3 * n[n_gather] + 2.0 * n[n_scatter];
  double shuffles = n[n_shuffle] + 1.5 * n[n_insert] + ODD_LANE_CYCLES * n[n_odd_wide_lanes];
  double integers = n[n_scalar_int] + n[n_vector_int] + 6.0 * n[n_int_divide];
  integers += 0.3 * (n[n_address] + n[n_extend]) + 0.5 * (n[n_branch] + n[n_broadcast]);
  double issued = arithmetic + 0.6 * loads + stores + 2.0 * scattered + shuffles + integers + 40.0 * n[n_call];
  double divider = 0.0;
  for (size_t i = 0; i < std::size(WIDTHS); ++i) divider += DIVIDE_CYCLES[i] * n[n_divide_1 + i];
  return {arithmetic / 2, loads / 2 + scattered, stores, shuffles, issued / 4, chain,
          divider, CALL_CYCLES * n[n_call], SPILL_CYCLES * spilled};
}

// The code of `function`, block by block; `classes` of each instruction.
void add_ir_amounts(const Function& function, const std::vector<std::vector<Amounts>>& classes,
                    const std::vector<Loop>& loops, const std::vector<double>& runs, Totals totals) {
  for (const Loop& loop : loops) {
    double runs_of_header = runs[loop.body.header];
    totals[feature::loop_runs] += runs_of_header;
    totals[feature::loop_entries] += runs_of_header / (loop.trips != 0 ? loop.trips : 1.0);
    totals[feature::unknown_loops] += loop.trips == 0;
  }
  auto innermost = innermost_loops(loops, function.size());
  for (int b = 0; b < function.size(); ++b) {
    double counts[N_CLASSES] = {}, size = static_cast<double>(function.lines[b].size());
    for (const Amounts& line : classes[b]) for (auto [name, amount] : line) counts[name] += amount;
    const Loop* around = innermost[b];
    double chain = around && around->body.size == 1 ? chain_cycles(function.lines[b], counts) : 0.0;
    auto resources = cycles_by_resource(counts, chain, around ? spilled_values(function, b) : 0.0);
    double cycles = *std::max_element(resources.begin(), resources.begin() + N_RESOURCES), extra = 0.0;
    for (int i = 0; i < N_EXTRA; ++i) extra += resources[N_RESOURCES + i];
    cycles += extra;
    for (int i = 0; i < N_CLASSES; ++i) if (counts[i] != 0) totals[i] += runs[b] * counts[i];
    for (size_t i = 0; i < resources.size(); ++i) totals[feature::cycles_vector + i] += runs[b] * resources[i];
    totals[feature::cycles] += runs[b] * cycles;
    totals[feature::instructions_run] += runs[b] * size;
    totals[feature::instructions_text] += size;
    if (runs[b] * cycles > totals[feature::hottest_total]) {
      totals[feature::hottest_total] = runs[b] * cycles;
      totals[feature::hottest_cycles] = cycles;
      totals[feature::hottest_trips] = around ? around->trips : 1.0;
      totals[feature::hottest_instructions] = size;
    }
  }
}

void add_amounts(Text llvm_ir, Text assembly, const Core& core, Assign assign, Totals totals) {
  Assembly machine(assembly);
  Module module(llvm_ir);
  for (Function& function : module.functions) function.link_labels();
  for (Function& function : computing(module.functions)) {
    AsmFunction* whole = machine.find(function.name);
    if (!whole) throw Unsupported();
    whole->link_jumps();
    bool wraps = function.name == WRAPPER;
    AsmFunction assembled = wraps ? BlockGraph::after_checks(*whole, REFUSAL) : *whole;
    function.define();
    Constants constants(function);
    auto natural = function.natural_loops();
    auto loops = LoopReader(constants).loops(natural);
    auto runs = frequencies(constants, loops);
    std::vector<std::vector<Amounts>> classes(function.size());
    std::vector<Size> sizes(function.size());
    for (int b = 0; b < function.size(); ++b) {
      for (Text line : function.lines[b]) {
        classes[b].push_back(classify(line));
        sizes[b] = sizes[b] + size_of_ir(classes[b].back());
      }
    }
    MachineFlow flow(assembled, function, natural, std::move(sizes), loops, runs, assign);
    add_machine_amounts(core, assembled, flow, totals);
    add_ir_amounts(function, classes, loops, runs, totals);
  }
}

}  // namespace cdmpp

// Adds the amounts of a program to `totals`; 0 where only the readable version can tell, or says what is wrong.
extern "C" int code_amounts(const char* llvm_ir, int64_t ir_bytes, const char* assembly, int64_t assembly_bytes,
                            const double* core, cdmpp::Assign assign, double* totals) {
  using cdmpp::Text;
  try {
    Text ir(llvm_ir, ir_bytes), machine(assembly, assembly_bytes);
    cdmpp::add_amounts(ir, machine, cdmpp::Core(core), assign, totals);
    return 1;
  } catch (...) {
    return 0;
  }
}
