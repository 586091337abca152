// The amounts of a code vector, see code_vector.py.
#include "classes.h"
#include "ir_control.h"
#include "machine.h"
#include "nesting.h"
#include "x86_control.h"

namespace cdmpp {

constexpr Text WRAPPER = "__tvm_ffi_main", REFUSAL = "__tvm_set_raised";

// A function of the IR that computes, and how it runs.
struct Computing {
  Function *whole, *part;  // the same, but for the checks of arguments
  Role role;
  double times = 1.0;      // that it is called
  Flow flow;
  Masks::Known byte;       // what all single bytes hold that it loads
};

// How a function runs that is in `part`, by the control of the `whole`.
template <class MakeControl, class Graph, class Bytes>
Flow flow_in(Graph& whole, const Graph& part, Role role, const Bytes& bytes) {
  MakeControl made(whole, role, bytes);
  return role == Role::WRAPPER ? flow_behind_checks(made.control, whole, part) : flow_of(made.control, whole);
}

// Whether a line names a function, not one whose name only begins like it.
bool names_function(Text line, Text name) {
  for (size_t at = line.find(name); at != NOWHERE; at = line.find(name, at + 1)) {
    size_t end = at + name.size();
    if (at > 0 && line[at - 1] == '@' && (end == line.size() || !is_name(line[end]))) return true;
  }
  return false;
}

// Threads run what other functions launch, as often as these do.
void count_launches(std::vector<Computing>& functions) {
  for (Computing& thread : functions) {
    if (thread.role != Role::THREAD) continue;
    double launches = 0.0;
    bool launched = false;
    for (const Computing& other : functions) {
      for (int b = 0; other.role != Role::THREAD && b < other.part->size(); ++b) {
        for (Text line : other.part->lines[b]) {
          if (!names_function(line, thread.whole->name)) continue;
          launched = true;
          launches += other.flow.runs[b];
        }
      }
    }
    if (launched) thread.times = launches;
  }
}

// The functions of a module that compute, with the parts of it that only they need.
class Program {
 public:
  std::vector<Computing> functions;

  explicit Program(Text llvm_ir) : module_(llvm_ir) {
    bool computes = false;
    for (Function& function : module_.functions) {
      bool compute = has(function.name, "compute_"), thread = Text(function.name).starts_with("__tvm_parallel_lambda");
      computes |= compute;
      if (compute || thread) functions.push_back({&function, &function, thread ? Role::THREAD : Role::KERNEL, 1.0, {}, {}});
    }
    for (Function& function : module_.functions) {
      if (!computes && function.name == WRAPPER) functions.push_back({&function, nullptr, Role::WRAPPER, 1.0, {}, {}});
    }
    std::vector<const Function*> all;
    const Function* owner = nullptr;
    for (Computing& one : functions) {
      one.whole->link_labels();
      one.whole->define();
      all.push_back(one.whole);
      if (one.role != Role::THREAD) owner = one.whole;
      if (one.role == Role::WRAPPER) {
        one.part = &parts_.emplace_back(BlockGraph::after_checks(*one.whole, REFUSAL));
        one.part->define();
      }
    }
    Masks masks(all, owner);
    for (Computing& one : functions) {
      one.flow = flow_in<IrControl>(*one.whole, *one.part, one.role, masks);
      one.byte = masks.all(*one.whole);
    }
    count_launches(functions);
  }

 private:
  Module module_;
  std::deque<Function> parts_;
};

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

// The smallest loop around each block; -1 where there is none.
Blocks innermost_loops(const Flow& flow, int blocks) {
  Blocks found(blocks, -1);
  for (size_t i = 0; i < flow.loops.size(); ++i) {
    for (int b = 0; b < blocks; ++b) {
      if (flow.loops[i].has[b] && (found[b] < 0 || flow.loops[found[b]].size > flow.loops[i].size)) found[b] = static_cast<int>(i);
    }
  }
  return found;
}

// The code of a function, block by block.
void add_ir_amounts(const Function& function, const Flow& flow, double times, Totals totals) {
  for (size_t i = 0; i < flow.loops.size(); ++i) {
    totals[feature::loop_runs] += times * flow.runs[flow.loops[i].header];
    totals[feature::loop_entries] += times * flow.entries[i];
  }
  if (flow.unknown > 0) totals[feature::unknown_loops] = 1.0;
  Blocks innermost = innermost_loops(flow, function.size());
  for (int b = 0; b < function.size(); ++b) {
    int around = innermost[b];
    double runs = times * flow.runs[b];
    double counts[N_CLASSES] = {}, size = static_cast<double>(function.lines[b].size());
    for (Text line : function.lines[b]) for (auto [name, amount] : classify(line)) counts[name] += amount;
    double chain = around >= 0 && flow.loops[around].size == 1 ? chain_cycles(function.lines[b], counts) : 0.0;
    auto resources = cycles_by_resource(counts, chain, around >= 0 ? spilled_values(function, b) : 0.0);
    double cycles = *std::max_element(resources.begin(), resources.begin() + N_RESOURCES), extra = 0.0;
    for (int i = 0; i < N_EXTRA; ++i) extra += resources[N_RESOURCES + i];
    cycles += extra;
    for (int i = 0; i < N_CLASSES; ++i) if (counts[i] != 0) totals[i] += runs * counts[i];
    for (size_t i = 0; i < resources.size(); ++i) totals[feature::cycles_vector + i] += runs * resources[i];
    totals[feature::cycles] += runs * cycles;
    totals[feature::instructions_run] += runs * size;
    totals[feature::instructions_text] += size;
    if (runs * cycles > totals[feature::hottest_total]) {
      totals[feature::hottest_total] = runs * cycles;
      totals[feature::hottest_cycles] = cycles;
      totals[feature::hottest_trips] = around >= 0 ? flow.trips(around) : 1.0;
      totals[feature::hottest_instructions] = size;
    }
  }
}

// Machine code of a function, without checks of arguments, and how it runs.
struct Assembled {
  AsmFunction* part;
  Flow flow;
  std::optional<AsmFunction> kept;

  Assembled(Assembly& machine, const Computing& one) : part(machine.find(one.whole->name)) {
    if (!part) {
      throw Unsupported{"no machine code of " + one.whole->name + " that can be read: code vectors are of x86-64 and AArch64 "
                        "programs, others are predicted from their ASTs alone"};
    }
    part->link_jumps();
    AsmFunction& whole = *part;
    if (one.role == Role::WRAPPER) {
      part = &kept.emplace(BlockGraph::after_checks(whole, REFUSAL));
      part->arm = whole.arm;
    }
    if (whole.arm) {
      flow = matched_flow(*part, *one.part, one.flow);
      return;
    }
    flow = flow_in<X86Control>(whole, *part, one.role, one.byte);
    bool again = flow.before_much && X86VectorControl::may_decide(whole);
    if (again) flow = flow_in<X86VectorControl>(whole, *part, one.role, one.byte);
  }
};

void add_amounts(Text llvm_ir, Text assembly, const Core& core, Totals totals) {
  Assembly machine(assembly);
  for (const Computing& one : Program(llvm_ir).functions) {
    Assembled assembled(machine, one);
    add_machine_amounts(core, *assembled.part, assembled.flow, one.times, totals);
    add_ir_amounts(*one.part, one.flow, one.times, totals);
  }
}

// Runs of blocks with their text and entries of loops, a line each, of the IR (I) and of machine code (M) where there is any.
void tell(const char* kind, const BlockGraph& graph, const Flow& flow, double times, std::string& out) {
  char number[64];
  auto line = [&](const char* what, const std::string& name, double value) {
    snprintf(number, sizeof number, "%.17g", value);
    out += std::string(what) + "\t" + name + "\t" + number;
  };
  line(kind, graph.name, times);
  snprintf(number, sizeof number, "\t%.17g\n", flow.unknown);
  out += number;
  for (int b = 0; b < graph.size(); ++b) {
    line("B", graph.names[b], flow.runs[b]);
    for (Text text : graph.lines[b]) { out += "\t"; out += text; }
    out += "\n";
  }
  for (size_t i = 0; i < flow.loops.size(); ++i) {
    line("L", graph.names[flow.loops[i].header], flow.entries[i]);
    for (int b = 0; b < graph.size(); ++b) if (flow.loops[i].has[b]) out += "\t" + graph.names[b];
    out += "\n";
  }
}

std::string flows(Text llvm_ir, Text assembly) {
  std::string out;
  std::optional<Assembly> machine;
  if (!assembly.empty()) machine.emplace(assembly);
  for (const Computing& one : Program(llvm_ir).functions) {
    tell("I", *one.part, one.flow, one.times, out);
    if (!machine) continue;
    Assembled assembled(*machine, one);
    tell("M", *assembled.part, assembled.flow, one.times, out);
  }
  return out;
}

// What instructions are taken for: of each line the operation, its numbers, and registers by their names.
template <class Decoder>
std::string operations(Text lines) {
  Decoder decoder;
  std::string out;
  for (Text line : split(lines, '\n')) {
    Operation item = decoder.decode(line);
    auto number = [&](const char* name, int64_t value) { out += std::string(name) + "=" + std::to_string(value) + "\t"; };
    auto registers = [&](const char* name, const auto& ids) {
      out += std::string(name) + "=";
      for (int id : ids) out += decoder.registers.names[id] + ",";
      out += "\t";
    };
    auto sum = [&](const char* name, const auto& terms) {
      out += std::string(name) + "=";
      for (const Term& term : terms) out += decoder.registers.names[term.unknown] + "*" + std::to_string(term.factor) + ",";
      out += "\t";
    };
    number("operation", item.name);
    number("width", item.width);
    number("moved", item.moved);
    number("lanes", item.lanes);
    number("addressed", item.addressed);
    number("loads", item.loads);
    number("stores", item.stores);
    number("scalar", item.scalar);
    number("masked", item.masked);
    number("spills", item.spills);
    number("displacement", item.displacement);
    registers("reads", item.reads);
    registers("writes", item.writes);
    registers("address_registers", item.address_registers);
    sum("terms", item.terms);
    if (item.assigned >= 0) {
      out += "target=" + decoder.registers.names[item.assigned] + "\t";
      number("offset", item.assigned_offset);
      sum("sum", item.assigned_terms);
    }
    out += "\n";
  }
  return out;
}

// What a run of the x86-64 instructions `lines` costs, repeated until `trips` are done.
Steady cost(Text lines, const Core& core, double trips) {
  Decoder decoder;
  std::vector<Operation> items;
  for (Text line : split(lines, '\n')) items.push_back(decoder.decode(line));
  Piece piece;
  for (const Operation& item : items) piece.push_back(&item);
  const auto& is_vector = decoder.registers.is_vector;
  return run(core, piece, trips, Addresses(is_vector.size()), is_vector);
}

// `text` where it fits into `room` bytes; its length, or -1 where it cannot be told.
template <class Tell>
int64_t told(const Tell& tell, char* out, int64_t room) {
  try {
    std::string text = tell();
    if (static_cast<int64_t>(text.size()) <= room) text.copy(out, text.size());
    return static_cast<int64_t>(text.size());
  } catch (...) {
    return -1;
  }
}

}  // namespace cdmpp

extern "C" int64_t code_flows(const char* llvm_ir, int64_t ir_bytes, const char* assembly, int64_t assembly_bytes,
                              char* out, int64_t room) {
  cdmpp::Text ir(llvm_ir, ir_bytes), machine(assembly, assembly_bytes);
  return cdmpp::told([&] { return cdmpp::flows(ir, machine); }, out, room);
}

extern "C" int64_t code_operations(const char* lines, int64_t bytes, int arm, char* out, int64_t room) {
  cdmpp::Text text(lines, bytes);
  auto tell = [&] { return arm ? cdmpp::operations<cdmpp::ArmDecoder>(text) : cdmpp::operations<cdmpp::Decoder>(text); };
  return cdmpp::told(tell, out, room);
}

// Writes the six numbers of Steady; 0 where an instruction cannot be read.
extern "C" int code_cost(const char* lines, int64_t bytes, const double* core, double trips, double* out) {
  try {
    cdmpp::Steady cost = cdmpp::cost({lines, static_cast<size_t>(bytes)}, cdmpp::Core(core), trips);
    for (double number : {cost.cycles, cost.blocked_loads, cost.masked_waits, cost.aliased_loads, cost.l1_conflicts,
                          cost.l2_conflicts}) *out++ = number;
    return 1;
  } catch (...) {
    return 0;
  }
}

// Adds the amounts of a program to `totals`; 0 where it cannot be read, with the `reason` of at most `room` bytes if any.
extern "C" int code_amounts(const char* llvm_ir, int64_t ir_bytes, const char* assembly, int64_t assembly_bytes,
                            const double* core, double* totals, char* reason, int64_t room) {
  using cdmpp::Text;
  try {
    Text ir(llvm_ir, ir_bytes), machine(assembly, assembly_bytes);
    cdmpp::add_amounts(ir, machine, cdmpp::Core(core), totals);
    return 1;
  } catch (const cdmpp::Unsupported& error) {
    error.reason.copy(reason, static_cast<size_t>(room));
    return 0;
  } catch (...) {
    return 0;
  }
}
