// One x86-64 instruction in AT&T syntax -> what it asks of a core.
#pragma once
#include "operation.h"

namespace cdmpp {

inline std::string canonical(Text name) {
  auto among = [](char c, Text letters) { return letters.find(c) != NOWHERE; };
  if (name.substr(std::min<size_t>(1, name.size()), 2) == "mm") return "v" + std::string(name.substr(3));
  if (name.size() > 1 && name[0] == 'r' && is_digit(name[1])) {
    Text digits = name.substr(1);
    if (among(digits.back(), "dwb")) digits.remove_suffix(1);
    if (std::all_of(digits.begin(), digits.end(), is_digit)) return "r" + std::string(digits);
  }
  if (name.size() == 2 && among(name[1], "lh") && among(name[0], "abcd")) return {'r', name[0], 'x'};
  Text stem = name;
  if (name.size() == 3 && among(name[0], "re")) stem.remove_prefix(1);
  else if (name.size() == 3 && name[2] == 'l') stem.remove_suffix(1);
  return is_any(stem, NAMED) ? "r" + std::string(stem) : std::string(name);
}

inline Text without_mask(Text operand) { return stripped(before(operand, "{")); }

inline bool is_integer(Text operand) {
  if (!operand.starts_with('%')) return false;
  std::string name = canonical(without_mask(operand.substr(1)));
  return !name.starts_with('v') && !name.starts_with('k');
}

class Decoder {
 public:
  RegisterNames registers;

  Operation decode(Text line) {
    Text mnemonic, rest;
    cut(line, mnemonic, rest);
    if (mnemonic == "rep" || mnemonic == "lock" || mnemonic == "notrack") cut(rest, mnemonic, rest);
    if (mnemonic.empty()) throw Unsupported();
    // Of SSE: the same as what AVX names with a `v`, but that most write to what they read.
    std::string with_v;
    bool vectors = has(rest, "mm");
    bool two_operands = mnemonic[0] != 'v' && ((vectors && has(rest, "%xmm")) || mnemonic.starts_with("cvt"));
    if (two_operands) mnemonic = with_v = "v" + std::string(mnemonic);
    auto operands = split_operands(rest);
    Operation item;
    item.width = !vectors ? 8 : has(rest, "%zmm") ? 64 : has(rest, "%ymm") ? 32 : has(rest, "%xmm") ? 16 : 8;
    Text memory;
    bool touches = operate(item, mnemonic, operands, two_operands, memory);
    for (auto [beginning, name] : RULES) if (starts_with(mnemonic, beginning)) { item.name = name; break; }
    static constexpr Text MOVES[] = {"vmov", "vmaskmov", "vpmaskmov", "vbroadcast", "vpbroadcast", "vextract"};
    bool moves = starts_with_any(mnemonic, MOVES) && mnemonic != "vextractps";
    bool broadcasts = mnemonic.starts_with("vpbroadcast") && !operands.empty() && is_integer(operands[0]);
    bool zeroes = (mnemonic.starts_with("vxorp") || mnemonic.starts_with("vpxor") || mnemonic.starts_with("xor")) &&
                  operands.size() > 1 && is_same(operands);
    if (touches && moves && !(mnemonic == "vmovhps" && item.loads)) {
      item.name = op::op_move;
    } else if (item.name == op::op_shuffle && item.loads && mnemonic.starts_with("vinsert")) {
      item.name = op::op_vector_int;
    } else if ((item.name == op::op_move && (mnemonic == "vmovd" || mnemonic == "vmovq") && !touches) ||
               (item.name == op::op_shuffle && broadcasts)) {
      item.name = op::op_transfer;
    } else if (zeroes) {
      item.name = op::op_move;
      item.reads.n = 0;
    }
    if (item.name == op::op_gather || item.name == op::op_scatter) {
      item.lanes = std::max(1, item.width / (mnemonic.ends_with("dps") || mnemonic == "dd" ? 4 : 8));
    }
    bool masked = mnemonic.starts_with("vmaskmov") || mnemonic.starts_with("vpmaskmov");
    for (Text operand : operands) masked |= !masks_of(operand).empty();
    item.masked = touches && masked && !item.lanes;
    item.moved = moved_bytes(mnemonic, item.width);
    // A double counts as one where it is computed; moves of 64 bits are of two floats as well.
    item.scalar = mnemonic.ends_with("ss") || (mnemonic.ends_with("sd") && is_any_of(item.name, FLOATS));
    for (int name : registers_of(memory)) item.address_registers.add(name);
    if (Text place; displaced(memory, place, item.displacement)) {
      item.addressed = true;
      item.spills = has(place, "%rsp");
      item.terms = terms_of(place);
    }
    assign(item, mnemonic, operands);
    return item;
  }

 private:
  static void cut(Text line, Text& mnemonic, Text& rest) {
    size_t space = line.find(' ');
    mnemonic = line.substr(0, space);
    rest = space == NOWHERE ? Text() : line.substr(space + 1);
  }
  static bool is_same(const std::vector<Text>& operands) {
    return std::all_of(operands.begin(), operands.end(), [&](Text operand) { return operand == operands[0]; });
  }
  // At commas, but not inside an address.
  static std::vector<Text> split_operands(Text rest) {
    std::vector<Text> operands;
    if (stripped(rest).empty()) return operands;
    size_t begin = 0;
    for (size_t at = rest.find(','); at != NOWHERE; at = rest.find(',', at + 1)) {
      size_t next = rest.find_first_of("()", at + 1);
      if (next != NOWHERE && rest[next] == ')') continue;
      operands.push_back(stripped(rest.substr(begin, at - begin)));
      begin = at + 1;
    }
    operands.push_back(stripped(rest.substr(begin)));
    return operands;
  }
  Registers registers_of(Text text) {
    Registers found;
    for (size_t at = text.find('%'); at != NOWHERE; at = text.find('%', at + 1)) {
      Scan scan{text.substr(at + 1)};
      if (Text name; scan.word(name)) found.add(registers.id(canonical(name)));
    }
    return found;
  }
  static std::vector<Text> masks_of(Text text) {
    std::vector<Text> found;
    for (size_t at = text.find("{%k"); at != NOWHERE; at = text.find("{%k", at + 1)) {
      Text mask = text.substr(at + 2, 3);
      if (mask.size() == 3 && is_digit(mask[1]) && mask[2] == '}') found.push_back(mask.substr(0, 2));
    }
    return found;
  }
  // Number before an address (base,index,scale) at the end of a text.
  static bool displaced(Text text, Text& place, int64_t& number) {
    size_t open = text.find('(');
    if (open == NOWHERE || !text.ends_with(')')) return false;
    place = text.substr(open);
    size_t begin = open;
    while (begin > 0 && is_digit(text[begin - 1])) --begin;
    if (begin > 0 && begin < open && text[begin - 1] == '-') --begin;
    else if (begin == open && open > 0 && text[open - 1] == '-') throw Unsupported();
    number = begin == open ? 0 : to_number(text.substr(begin, open - begin));
    return true;
  }
  Few<Term, 2> terms_of(Text place) {
    auto parts = split(stripped(place, "()"), ',');
    Few<Term, 2> terms;
    auto id = [&](Text name) {
      name = stripped(name);
      return static_cast<int64_t>(registers.id(canonical(name.substr(std::min(name.size(), name.find_first_not_of('%'))))));
    };
    if (!parts[0].empty()) terms.push({id(parts[0]), 1});
    if (parts.size() > 1) terms.push({id(parts[1]), parts.size() == 3 ? to_number(stripped(parts[2])) : 1});
    return terms;
  }

  // Registers read and written, and whether memory is loaded from and stored to.
  bool operate(Operation& item, Text name, const std::vector<Text>& operands, bool two_operands, Text& memory) {
    if (name == "cltd" || name == "cqto") { item.reads.add(registers.id("rax")); item.writes.add(registers.id("rdx")); }
    if (name == "cltq" || name == "cwtl") { item.reads.add(registers.id("rax")); item.writes.add(registers.id("rax")); }
    bool touches = false, one = operands.size() == 1;
    bool only_reads = starts_with_any(name, ONLY_READS) || (one && starts_with_any(name, ONE_OPERAND));
    for (size_t i = 0; i < operands.size(); ++i) {
      auto masks = masks_of(operands[i]);
      for (Text mask : masks) item.reads.add(registers.id(std::string(mask)));
      Text operand = without_mask(operands[i]);
      bool target = i + 1 == operands.size() && !only_reads;
      if (has(operand, "(")) {
        for (int used : registers_of(operand)) item.reads.add(used);
        if (name.starts_with("lea") || name.starts_with("nop")) continue;
        memory = operand;
        touches = true;
        item.loads |= !(target && starts_with_any(name, STORES));
        item.stores |= target;
      } else if (operand.starts_with('%')) {
        int id = registers.id(canonical(operand.substr(1)));
        if (!target) { item.reads.add(id); continue; }
        item.writes.add(id);
        bool three = name.starts_with("imul") && operands.size() == 3;
        bool merged = !masks.empty() && !has(operands[i], "{z}");
        bool overwrites = two_operands ? writes_alone(name, operands) : starts_with_any(name, OVERWRITES) || three;
        if (starts_with_any(name, KEEPS_TARGET) || merged || !overwrites) {
          item.reads.add(id);
        }
      }
    }
    if (name.starts_with("idiv") || name.starts_with("div") ||
        (one && (name.starts_with("imul") || name.starts_with("mul")))) {
      for (const char* half : {"rax", "rdx"}) { item.reads.add(registers.id(half)); item.writes.add(registers.id(half)); }
    }
    if (starts_with_any(name, READS_FLAGS) && name != "jmp") item.reads.add(registers.id("flags"));
    if (starts_with_any(name, SETS_FLAGS)) item.writes.add(registers.id("flags"));
    return touches;
  }

  // Whether an instruction of SSE, named with a `v`, writes all of its target without reading it.
  static bool writes_alone(Text name, const std::vector<Text>& operands) {
    static constexpr Text MERGE[] = {"vmovhps", "vmovlps", "vmovhpd", "vmovlpd", "vmovhl", "vmovlh"};
    if (starts_with_any(name, MERGE)) return false;
    if (name == "vmovss" || name == "vmovsd") return has(operands[0], "(");
    return starts_with_any(name, OVERWRITES_IN_SSE);
  }
  static int moved_bytes(Text name, int width) {
    static constexpr Text LANES[] = {"vpabsd", "vpminsd", "vpmaxsd"};
    if (name.starts_with("vp") && is_any(name, LANES)) return width;
    if (!name.starts_with('v')) return name.ends_with('b') ? 1 : name.ends_with('w') ? 2 : name.ends_with('l') ? 4 : 8;
    for (auto [ending, bytes] : PARTS) if (name.ends_with(ending)) return bytes;
    int part = name.ends_with("bq") ? 8 : name.ends_with("bd") || name.ends_with("wq") ? 4 : 2;
    return name.starts_with("vpmovz") || name.starts_with("vpmovs") ? width / part : width;
  }

  // Of an instruction whose result is a sum of registers and a constant.
  void assign(Operation& item, Text name, const std::vector<Text>& operands) {
    if (operands.empty() || operands.size() > 2 || !is_integer(operands.back())) return;
    auto is = [&](Text one, Text other) { return name == one || name == other; };
    int target = registers.id(canonical(operands.back().substr(1)));
    auto becomes = [&](Few<Term, 2> terms, int64_t offset) {
      item.assigned = target;
      item.assigned_terms = terms;
      item.assigned_offset = offset;
    };
    Few<Term, 2> itself, terms;
    itself.push({target, 1});
    if (operands.size() == 1) {
      if (is("incq", "incl")) becomes(itself, 1);
      if (is("decq", "decl")) becomes(itself, -1);
      return;
    }
    Text source = operands[0], place;
    Scan scan{source};
    bool constant = scan.eat("$") && scan.number(place) && scan.rest.empty(), adds = is("addq", "addl");
    int64_t number = 0;
    auto from = [&] { return Term{registers.id(canonical(source.substr(1))), 1}; };
    if (is("leaq", "leal") && displaced(source, place, number) && !has(source, "%rip")) {
      becomes(terms_of(place), number);
    } else if ((adds || is("subq", "subl")) && constant) {
      becomes(itself, to_number(place) * (adds ? 1 : -1));
    } else if (adds && is_integer(source)) {
      itself.push(from());
      becomes(itself, 0);
    } else if (is("movq", "movl") && constant) {
      becomes(terms, to_number(place));
    } else if ((is("movq", "movl") || name == "movslq") && is_integer(source)) {
      terms.push(from());
      becomes(terms, 0);
    } else if (is("shlq", "shll") && constant) {
      number = to_number(place);
      if (number < 0 || number > 62) throw Unsupported();
      terms.push({target, int64_t(1) << number});
      becomes(terms, 0);
    }
  }
};

}  // namespace cdmpp
