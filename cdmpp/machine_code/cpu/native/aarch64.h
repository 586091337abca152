// One AArch64 instruction as LLVM prints it (ELF syntax) -> what it asks of a core. Integers, scalar floats and NEON, by
// the names of Arm's Architecture Reference Manual (DDI 0487); what counts as a move, a shuffle or a transfer follows Arm's
// Neoverse N1 Software Optimization Guide. Scalable vectors (SVE) are not expected.
#pragma once
#include "operation.h"

namespace cdmpp {

namespace arm {

constexpr Text BRANCHES[] = {"b", "br", "ret", "cbz", "cbnz", "tbz", "tbnz"}, CALLS[] = {"bl", "blr"};
constexpr Entry INTEGERS[] = {
    {"bl", op::op_call}, {"blr", op::op_call},
    {"b", op::op_branch}, {"br", op::op_branch}, {"ret", op::op_branch}, {"cbz", op::op_branch},
    {"cbnz", op::op_branch}, {"tbz", op::op_branch}, {"tbnz", op::op_branch},
    {"sdiv", op::op_int_divide}, {"udiv", op::op_int_divide},
    {"mul", op::op_int_multiply}, {"mneg", op::op_int_multiply}, {"madd", op::op_int_multiply},
    {"msub", op::op_int_multiply}, {"smulh", op::op_int_multiply}, {"umulh", op::op_int_multiply},
    {"smull", op::op_int_multiply}, {"umull", op::op_int_multiply}, {"smaddl", op::op_int_multiply},
    {"umaddl", op::op_int_multiply}, {"smsubl", op::op_int_multiply}, {"umsubl", op::op_int_multiply},
    {"smnegl", op::op_int_multiply}, {"umnegl", op::op_int_multiply},
    {"mov", op::op_int_move},
};
// Beginnings of names -> the operation on vectors, the first that fits.
constexpr Entry VECTORS[] = {
    {"fmadd", op::op_fma}, {"fmsub", op::op_fma}, {"fnm", op::op_fma}, {"fmla", op::op_fma}, {"fmls", op::op_fma},
    {"fmul", op::op_fma}, {"fcmla", op::op_fma}, {"bfdot", op::op_fma}, {"bfm", op::op_fma}, {"frecps", op::op_fma},
    {"frsqrts", op::op_fma},
    {"fdiv", op::op_divide}, {"fsqrt", op::op_divide}, {"frecp", op::op_divide}, {"frsqrt", op::op_divide},
    {"urecp", op::op_divide}, {"ursqrt", op::op_divide},
    {"fadd", op::op_fadd}, {"fsub", op::op_fadd}, {"fabd", op::op_fadd}, {"fcadd", op::op_fadd}, {"frint", op::op_fadd},
    {"fmax", op::op_fmax}, {"fmin", op::op_fmax},
    {"scvtf", op::op_convert}, {"ucvtf", op::op_convert}, {"fcvt", op::op_convert}, {"bfcvt", op::op_convert},
    {"fjcvt", op::op_convert},
    {"fcm", op::op_compare}, {"fccmp", op::op_compare}, {"fac", op::op_compare}, {"cm", op::op_compare},
    {"mul", op::op_vector_multiply}, {"mla", op::op_vector_multiply}, {"mls", op::op_vector_multiply},
    {"smul", op::op_vector_multiply}, {"umul", op::op_vector_multiply}, {"smla", op::op_vector_multiply},
    {"umla", op::op_vector_multiply}, {"smls", op::op_vector_multiply}, {"umls", op::op_vector_multiply},
    {"pmul", op::op_vector_multiply}, {"sqdm", op::op_vector_multiply}, {"sqrdm", op::op_vector_multiply},
    {"sdot", op::op_vector_multiply}, {"udot", op::op_vector_multiply}, {"usdot", op::op_vector_multiply},
    {"sudot", op::op_vector_multiply}, {"smmla", op::op_vector_multiply}, {"ummla", op::op_vector_multiply},
    {"usmmla", op::op_vector_multiply},
    {"zip", op::op_light_shuffle}, {"uzp", op::op_light_shuffle}, {"trn", op::op_light_shuffle},
    {"ext", op::op_light_shuffle}, {"rev", op::op_light_shuffle}, {"tb", op::op_light_shuffle},
    {"xtn", op::op_light_shuffle}, {"sqxt", op::op_light_shuffle}, {"uqxt", op::op_light_shuffle},
    {"sxtl", op::op_light_shuffle}, {"uxtl", op::op_light_shuffle}, {"sshll", op::op_light_shuffle},
    {"ushll", op::op_light_shuffle}, {"shll", op::op_light_shuffle},
    {"", op::op_vector_int},
};
constexpr Text MOVES[] = {"mov", "fmov", "dup", "ins", "umov", "smov"}, PAIRS[] = {"ldp", "ldnp", "ldpsw"};
constexpr Text COMPARES[] = {"cmp", "cmn", "tst", "ccmp", "ccmn", "fcmp", "fcmpe", "fccmp", "fccmpe"};
constexpr Text SETS_FLAGS[] = {"adds", "subs", "negs", "ands", "bics", "adcs", "sbcs", "ngcs"};  // comparisons besides
constexpr Text READS_FLAGS[] = {"b.", "cs", "cinc", "cinv", "cneg", "ccm", "fccm", "fcsel", "adc", "sbc", "ngc"};
constexpr Text KEEPS_TARGET[] = {
    "fmla", "fmls", "fcmla", "mla", "mls", "smla", "umla", "smls", "umls", "sqdmla", "sqdmls", "sqrdml", "sdot", "udot",
    "usdot", "sudot", "smmla", "ummla", "usmmla", "bfdot", "bfm", "saba", "uaba", "sadalp", "uadalp", "bsl", "bit", "bif",
    "tbx", "sli", "sri", "ssra", "usra", "srsra", "ursra", "movk", "bfi", "bfx"
};

inline bool all_digits(Text text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

inline bool among(char c, Text letters) { return letters.find(c) != NOWHERE; }

// The canonical name of a register, one for all its widths; empty where a word names none.
inline std::string canonical(Text word) {
  if (word == "sp" || word == "wsp") return "sp";
  if (word.size() < 2 || word.size() > 3 || !among(word[0], "xwvqdshb") || !all_digits(word.substr(1))) return {};
  return (among(word[0], "xw") ? "x" : "v") + std::string(word.substr(1));
}

// Calls visit(word, what follows it) for the words of a text.
template <class Visit>
void each_word(Text text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    if (!is_word(text[at])) { ++at; continue; }
    Scan scan{text.substr(at)};
    Text word = scan.run(is_word);
    at += word.size();
    visit(word, scan.rest);
  }
}

// Whether a word is a register of integers, by itself: x0, w12, xzr.
inline bool is_general(Text word) {
  return word.size() > 1 && among(word[0], "xw") && (word.substr(1) == "zr" || all_digits(word.substr(1)));
}

// A vector register or a part of one: bytes of an element, and lanes, 0 where none or all of them are named.
struct Part { int bytes; int lanes; };

inline std::vector<Part> parts_of(Text text) {
  auto bytes = [](char letter) { return letter == 'q' ? 16 : letter == 'd' ? 8 : letter == 's' ? 4 : letter == 'h' ? 2 : 1; };
  std::vector<Part> found;
  each_word(text, [&](Text word, Text rest) {
    if (word.size() < 2 || !all_digits(word.substr(1))) return;
    if (word[0] == 'v' && rest.starts_with('.')) {
      Scan scan{rest.substr(1)};
      Text element = scan.run(is_word), lanes = element.substr(0, element.size() - !element.empty());
      if (element.empty() || !among(element.back(), "bhsd") || !(lanes.empty() || all_digits(lanes))) return;
      found.push_back({bytes(element.back()), lanes.empty() ? 0 : static_cast<int>(to_number(lanes))});
    } else if (among(word[0], "qdshb")) {
      found.push_back({bytes(word[0]), 0});
    }
  });
  return found;
}

// The number of an immediate such as #-64 or #0x40, where that is all there is.
inline bool immediate(Text text, int64_t& number) {
  Scan scan{text};
  if (!scan.eat("#")) return false;
  bool negative = scan.eat("-");
  int base = scan.eat("0x") ? 16 : 10;
  auto [end, error] = std::from_chars(scan.rest.data(), scan.rest.data() + scan.rest.size(), number, base);
  if (scan.rest.empty() || error != std::errc() || end != scan.rest.data() + scan.rest.size()) return false;
  if (negative) number = -number;
  return true;
}

// What an operand such as `lsl #2` or `sxtw` multiplies the one before by; 0 where it is none.
inline int64_t shift_factor(Text text) {
  Scan scan{text};
  Text name = scan.run(is_word), digits;
  if (name != "lsl" && name != "sxtw" && name != "sxtx" && name != "uxtw" && name != "uxtx") return 0;
  if (scan.rest.empty()) return 1;
  if (!scan.eat(" #") || (digits = scan.run(is_digit)).empty() || !scan.rest.empty()) return 0;
  return int64_t(1) << std::min<int64_t>(62, to_number(digits));
}

}  // namespace arm

class ArmDecoder {
 public:
  RegisterNames registers;

  // What no rule knows counts as an operation on integers or on vectors. Vector registers are 16 bytes wide, however much of
  // them is used. NEON does not gather, scatter or mask.
  Operation decode(Text line) {
    size_t space = line.find(' ');
    Text name = line.substr(0, space), rest = space == NOWHERE ? Text() : line.substr(space + 1);
    auto operands = split_operands(rest);
    size_t place = 0;
    while (place < operands.size() && !operands[place].starts_with('[')) ++place;
    if (name == "ldr" && place == operands.size() && place > 1) --place;  // a constant by its label
    std::vector<Text> values(operands.begin(), operands.begin() + place), after;
    Text memory = place < operands.size() ? operands[place] : Text();
    if (place < operands.size()) after.assign(operands.begin() + place + 1, operands.end());
    std::string joined = join(values);
    auto parts = arm::parts_of(joined);
    bool vector = !parts.empty(), addressed = !memory.empty();
    Operation item;
    item.name = vector ? of_vectors(name, values, addressed) : of_integers(name, addressed);
    item.width = vector ? 16 : 8;
    item.addressed = addressed;
    item.stores = addressed && name.starts_with("st");
    item.loads = addressed && !item.stores;
    item.moved = addressed ? moved_bytes(name, joined, parts) : 0;
    item.scalar = vector && is_scalar(name, parts, addressed);
    use(item, name, values);
    auto based = ids_of(memory);
    for (int id : based) item.address_registers.add(id);
    if (addressed) locate(item, memory);
    if (addressed && !based.empty() && (!after.empty() || memory.ends_with('!'))) {
      // Of an integer that is loaded besides nothing is known: the base alone cannot be told then.
      bool known = std::all_of(item.writes.begin(), item.writes.end(), [&](int id) { return registers.is_vector[id] != 0; });
      if (known) move_base(item, based[0], after);
      item.writes.add(based[0]);
    }
    if (!addressed) assign(item, name, values);
    for (int id : based) {
      item.reads.add(id);
      item.spills |= id == registers.id("sp");
    }
    for (Text operand : after) for (int id : ids_of(operand)) item.reads.add(id);
    return item;
  }

 private:
  // At commas, but not inside an address or a list of registers.
  static std::vector<Text> split_operands(Text rest) {
    std::vector<Text> operands;
    if (stripped(rest).empty()) return operands;
    size_t begin = 0;
    for (size_t at = rest.find(','); at != NOWHERE; at = rest.find(',', at + 1)) {
      size_t next = rest.find_first_of("[{]}", at + 1);
      if (next != NOWHERE && (rest[next] == ']' || rest[next] == '}')) continue;
      operands.push_back(stripped(rest.substr(begin, at - begin)));
      begin = at + 1;
    }
    operands.push_back(stripped(rest.substr(begin)));
    return operands;
  }
  static std::string join(const std::vector<Text>& texts) {
    std::string all;
    for (Text text : texts) all += std::string(all.empty() ? "" : " ") + std::string(text);
    return all;
  }
  std::vector<int> ids_of(Text text) {
    std::vector<int> found;
    arm::each_word(text, [&](Text word, Text) {
      if (std::string name = arm::canonical(word); !name.empty()) found.push_back(registers.id(name));
    });
    return found;
  }
  static bool any_general(Text text) {
    bool found = false;
    arm::each_word(text, [&](Text word, Text) { found |= arm::is_general(word); });
    return found;
  }

  static int of_integers(Text name, bool memory) {
    if (memory) return name.starts_with("prf") ? op::op_int : op::op_int_move;
    for (auto [other, operation] : arm::INTEGERS) if (before(name, ".") == other) return operation;
    return op::op_int;
  }
  static int of_vectors(Text name, const std::vector<Text>& values, bool memory) {
    if (memory) {
      if (std::any_of(values.begin(), values.end(), [](Text value) { return has(value, "}["); })) return op::op_insert;
      bool rearranges = name.size() > 2 && (name.starts_with("ld") || name.starts_with("st")) && arm::among(name[2], "234");
      return rearranges || repeats(name) ? op::op_light_shuffle : op::op_move;
    }
    if (is_any(name, arm::MOVES)) {
      Text target = values[0], source = values.size() > 1 ? values[1] : Text();
      if (any_general(target) || any_general(source)) return op::op_transfer;
      if (has(target, "[")) return op::op_insert;
      if (has(source, "[") || name == "dup") return op::op_light_shuffle;
      return source.starts_with('#') ? op::op_vector_int : op::op_move;
    }
    if (name == "movi" && values.back().starts_with("#0") && values.back().find_first_not_of("0x", 1) == NOWHERE) {
      return op::op_move;  // known without executing anything
    }
    bool words = values[0].ends_with(".2s") || values[0].ends_with(".4s");
    if (words && (name == "mul" || name == "mla" || name == "mls")) return op::op_multiply_low;
    for (auto [beginning, operation] : arm::VECTORS) if (starts_with(name, beginning)) return operation;
    throw Unsupported();
  }
  // A load of one element to all lanes.
  static bool repeats(Text name) {
    return name.size() > 3 && name.starts_with("ld") && is_digit(name[2]) && name[3] == 'r';
  }

  // Registers read and written, those of the address apart.
  void use(Operation& item, Text name, const std::vector<Text>& values) {
    bool compares = is_any(name, arm::COMPARES), calls = is_any(name, arm::CALLS);
    bool only_reads = name.starts_with("st") || name.starts_with("prf") || name.starts_with("b.") || compares || calls ||
                      is_any(name, arm::BRANCHES);
    size_t targets = only_reads ? 0 : is_any(name, arm::PAIRS) ? 2 : 1;
    for (size_t i = 0; i < values.size(); ++i) {
      for (int id : ids_of(values[i])) i < targets ? item.writes.add(id) : item.reads.add(id);
    }
    bool narrows_to_upper_half = name.ends_with("n2") && name != "trn2";
    bool changes_bits = name == "bfc" || ((name == "orr" || name == "bic") && values.size() > 1 && values[1].starts_with('#'));
    bool one_element = targets > 0 && !values.empty() && has(values[0], "[");
    if (starts_with_any(name, arm::KEEPS_TARGET) || narrows_to_upper_half || changes_bits || one_element) {
      for (int id : item.writes) item.reads.add(id);
    }
    if (calls) item.writes.add(registers.id("x30"));
    if (name == "ret") item.reads.add(registers.id("x30"));
    if (compares || is_any(name, arm::SETS_FLAGS)) item.writes.add(registers.id("flags"));
    if (starts_with_any(name, arm::READS_FLAGS)) item.reads.add(registers.id("flags"));
  }

  // Bytes that a load or store of these registers moves.
  static int moved_bytes(Text name, Text values, const std::vector<arm::Part>& parts) {
    int sum = 0;
    for (const arm::Part& part : parts) sum += part.bytes * (part.lanes && !repeats(name) ? part.lanes : 1);
    if (!parts.empty()) return sum;
    int part = name.ends_with('b') ? 1 : name.ends_with('h') ? 2 : name.ends_with('w') ? 4 : 0;
    arm::each_word(values, [&](Text word, Text) {
      if (arm::is_general(word)) sum += part ? part : word[0] == 'x' ? 8 : 4;
    });
    return sum ? sum : 8;
  }
  static bool is_scalar(Text name, const std::vector<arm::Part>& parts, bool memory) {
    const arm::Part& first = parts[0];
    if (memory) return parts.size() == 1 && first.bytes <= 4 && (!first.lanes || name == "ld1r");
    return !first.lanes && (first.bytes <= 4 || (first.bytes == 8 && name.starts_with('f')));
  }

  // Registers of an address with their factors and a displacement; what is no such sum is an unknown by its text.
  void locate(Operation& item, Text memory) {
    std::vector<Text> parts;
    for (Text part : split(stripped(memory, "[]!"), ',')) parts.push_back(stripped(part));
    if (arm::immediate(parts.back(), item.displacement)) parts.pop_back();
    if (!sum_of(parts, item.terms) || item.terms.n == 0) {
      item.terms.n = 0;
      item.terms.push({registers.id("[" + join(parts)), 1});
    }
  }
  // Registers with their factors in `x0`, or `x0, x1, lsl #2`; false for anything else.
  bool sum_of(std::vector<Text> parts, Few<Term, 2>& terms) {
    terms.n = 0;
    int64_t factor = parts.empty() ? 0 : arm::shift_factor(parts.back());
    if (factor) parts.pop_back(); else factor = 1;
    if (parts.size() > 2) return false;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string name = arm::canonical(parts[i]);
      if (name.empty()) return false;
      terms.push({registers.id(name), parts.size() == 2 && i == 0 ? 1 : factor});
    }
    return true;
  }
  // A base that is moved after its use, or before it by the displacement.
  void move_base(Operation& item, int base, const std::vector<Text>& after) {
    item.assigned = base;
    item.assigned_terms.push({base, 1});
    item.assigned_offset = item.displacement;
    if (after.empty() || arm::immediate(after[0], item.assigned_offset)) return;
    item.assigned_offset = 0;
    for (int id : ids_of(after[0])) item.assigned_terms.push({id, 1});
  }
  // Of an instruction whose result is a sum of registers and a constant.
  void assign(Operation& item, Text name, const std::vector<Text>& values) {
    if (values.size() < 2 || !(arm::is_general(values[0]) || values[0] == "sp")) return;
    std::string target = arm::canonical(values[0]);
    if (target.empty()) return;
    Text source = values[1];
    Few<Term, 2> terms;
    int64_t number = 0, offset = 0;
    bool constant = arm::immediate(values.size() > 2 ? values[2] : source, number), known = false;
    if (name == "mov") {
      known = constant || source == "xzr" || source == "wzr" || sum_of({source}, terms);
      offset = number;
    } else if (name == "add" || name == "adds" || name == "sub" || name == "subs") {
      int64_t sign = name.starts_with("add") ? 1 : -1;
      if (constant) {
        known = sum_of({source}, terms);
        offset = sign * number * std::max<int64_t>(1, values.size() > 3 ? arm::shift_factor(values[3]) : 1);
      } else {
        known = sum_of({values.begin() + 1, values.end()}, terms) && terms.n == 2;
        if (known) terms.values[1].factor *= sign;
      }
    } else if ((name == "lsl" || name == "sbfiz" || name == "ubfiz") && constant) {
      known = number >= 0 && number < 63 && sum_of({source}, terms);
      if (known) terms.values[0].factor <<= number;
    } else if (name == "sxtw") {
      known = sum_of({source}, terms);
    }
    if (!known) return;
    item.assigned = registers.id(target);
    item.assigned_terms = terms;
    item.assigned_offset = offset;
  }
};

}  // namespace cdmpp
