// x86-64 machine code -> what decides its branches, block by block.
#pragma once
#include "x86_lanes.h"

namespace cdmpp {

class X86Control : public X86Lanes {
 public:
  X86Control(const AsmFunction& function, Role role, Byte byte, bool with_vectors = false)
      : X86Lanes(function, role, byte, with_vectors) {
    setters_.assign(function.size(), {});
    depth_.assign(function.size(), UNSEEN);
    depth_[0] = 0;
    for (int b : function.order) read_block(b);
  }

 private:
  static constexpr int64_t UNSEEN = INT64_MIN;

  std::vector<Flags> setters_;
  std::vector<int64_t> depth_;  // of the stack where a block begins

  // Blocks.

  void read_block(int b) {
    block_ = b;
    now_ = depth_[b] == UNSEEN ? 0 : depth_[b];
    flags_ = entering(b);
    const auto& lines = function_.lines[b];
    for (Text line : lines) read_line(line);
    setters_[b] = flags_;
    ControlBlock& body = control.blocks[b];
    for (int next : function_.successors[b]) {
      if (depth_[next] == UNSEEN) depth_[next] = now_;
    }
    Jump jump = lines.empty() ? Jump{} : jump_of(lines.back());
    int target = jump.jumps ? function_.find(jump.target) : -1;
    bool ends = !lines.empty() && lines.back().starts_with("ret");
    if (jump.jumps && jump.always) {
      if (target >= 0) body.ways.push_back({target, 0, {}});
      control.complete &= target >= 0 || !jump.target.starts_with('*');
      return;
    }
    if (ends) return;
    if (jump.jumps && target >= 0) {
      Text how = before(lines.back(), " ").substr(1);
      body.decider = condition(how);
      body.ways.push_back({target, 1, {}});
    }
    if (b + 1 < function_.size()) body.ways.push_back({b + 1, 0, {}});
  }
  // Flags that hold behind all blocks before, where they are set in the same way.
  Flags entering(int b) const {
    Flags common;
    bool first = true;
    for (int before : function_.predecessors[b]) {
      if (function_.place[before] < 0) continue;
      if (function_.place[before] >= function_.place[b]) return {};
      if (!first && (setters_[before].setter != common.setter || setters_[before].width != common.width)) return {};
      common = setters_[before];
      first = false;
    }
    return common;
  }

  static int width_of(Text name) {
    switch (name.back()) { case 'b': return 8; case 'w': return 16; case 'l': return 32; default: return 64; }
  }

  void read_line(Text line) {
    size_t space = line.find(' ');
    Text name = line.substr(0, space), rest = space == NOWHERE ? Text() : line.substr(space + 1);
    if (name == "rep" || name == "lock" || name == "notrack") {
      for (int slot : {RCX, RSI, RDI}) op({Code::LOSE, 64, 0, slot});
      return;
    }
    bool vector = name[0] == 'v' || name[0] == 'k' || has(rest, "%xmm");
    if (vector && !with_vectors_ && only_vectors(name, rest)) return;
    if (vector) read_vector(name, split_operands(rest));
    else read_integer(name, split_operands(rest));
  }

  // Whether nothing but a vector or a mask changes, as most do: told without reading all operands.
  static bool only_vectors(Text name, Text rest) {
    size_t last = rest.rfind('%');
    if (last == NOWHERE || rest.ends_with(')') || rest.ends_with('}')) return false;
    char kind = rest[std::min(last + 1, rest.size() - 1)];
    bool written = kind == 'x' || kind == 'y' || kind == 'z' || kind == 'k';
    return written && !has(name, "comis") && !has(name, "test");
  }

  void read_integer(Text name, const std::vector<Text>& operands) {
    size_t n = operands.size();
    auto is = [&](Text stem) { return name.size() == stem.size() + 1 && name.starts_with(stem) && has("bwlq", name.substr(stem.size())); };
    if (name[0] == 'j' || name.starts_with("nop") || name.starts_with("ret") || name == "ud2" || name.starts_with("prefetch")) return;
    if (name.starts_with("call")) { call(); return; }
    int width = width_of(name);
    if (is("push")) {
      int value = read(operands[0], 64);
      now_ += 8;
      op({Code::SUB, 64, 0, RSP, RSP, control.constant(8)});
      write("0(%rsp)", 64, value);
      return;
    }
    if (is("pop")) {
      int value = read("0(%rsp)", 64);
      write(operands[0], 64, value);
      now_ -= 8;
      op({Code::ADD, 64, 0, RSP, RSP, control.constant(8)});
      return;
    }
    if (name == "cltq") { op({Code::SEXT, 32, 64, RAX, RAX}); return; }
    if (name == "cwtl") { write("%eax", 32, made(Code::SEXT, 16, 32, RAX)); return; }
    if (name == "cqto") { op({Code::ASHR, 64, 0, RDX, RAX, control.constant(63)}); return; }
    if (name == "cltd") { write("%edx", 32, made(Code::ASHR, 32, 0, RAX, control.constant(31))); return; }
    if (n == 0) return;
    Text target = operands.back();
    if (is("mov") || name == "movabsq") { write(target, width, read(operands[0], width)); return; }
    if (n == 2 && name.starts_with("mov") && name.size() == 6 && (name[3] == 'z' || name[3] == 's')) {
      int from = width_of(name.substr(0, 5)), to = width;
      int value = read(operands[0], from);
      write(target, to, name[3] == 'z' ? made(Code::COPY, from, 0, value) : made(Code::SEXT, from, to, value));
      return;
    }
    if (is("lea")) {
      Place place = read_place(operands[0], true);
      write(target, width, place.address < 0 ? lost_ : place.address);
      return;
    }
    if (name.starts_with("set") && n == 1) { write(target, 8, condition(name.substr(3))); return; }
    if (name.starts_with("cmov") && n == 2) {
      Text how = name.substr(4);
      Register to = read_register(target.substr(1));
      how.remove_suffix(1);
      int value = read(operands[0], to.width), holds = condition(how);
      write(target, to.width, holds == lost_ ? lost_ : made(Code::SELECT, 64, 0, holds, value, to.slot));
      return;
    }
    struct Binary { Text name; Code code; };
    static constexpr Binary BINARIES[] = {{"add", Code::ADD}, {"sub", Code::SUB}, {"and", Code::AND}, {"or", Code::OR}, {"xor", Code::XOR}};
    for (auto [stem, code] : BINARIES) {
      if (!is(stem) || n != 2) continue;
      if (code == Code::XOR && operands[0] == operands[1]) {
        write(target, width, zero_);
        compared(COMPARED, width, zero_, zero_);
        return;
      }
      Register to = target.starts_with('%') ? read_register(target.substr(1)) : Register{};
      if (to.slot == RSP && operands[0].starts_with('$')) move_stack(code, operands[0]);
      int value = read(operands[0], width), old = read(target, width);
      int result = made(code, width, 0, old, value);
      if (code == Code::ADD || code == Code::SUB) compared(code == Code::ADD ? ADDED : COMPARED, width, old, value);
      else compared(COMPARED, width, result, zero_);
      write(target, width, result);
      return;
    }
    if (is("cmp") && n == 2) { int b = read(operands[0], width), a = read(target, width); compared(COMPARED, width, a, b); return; }
    if (is("test") && n == 2) {
      int b = read(operands[0], width), a = read(target, width);
      compared(COMPARED, width, operands[0] == target ? a : made(Code::AND, width, 0, a, b), zero_);
      return;
    }
    if ((is("inc") || is("dec")) && n == 1) {
      bool up = name[0] == 'i';  // the carry stays, but nothing asks for it behind them
      int old = made(Code::COPY, 64, 0, read(target, width)), one = control.constant(1);
      compared(up ? ADDED : COMPARED, width, old, one);
      write(target, width, made(up ? Code::ADD : Code::SUB, width, 0, old, one));
      return;
    }
    if (is("neg") && n == 1) {
      int old = read(target, width);
      compared(COMPARED, width, zero_, old);
      write(target, width, made(Code::SUB, width, 0, zero_, old));
      return;
    }
    if (is("not") && n == 1) { write(target, width, made(Code::XOR, width, 0, read(target, width), control.constant(mask_of(width)))); return; }
    static constexpr Binary SHIFTS[] = {{"shl", Code::SHL}, {"sal", Code::SHL}, {"shr", Code::LSHR}, {"sar", Code::ASHR}};
    for (auto [stem, code] : SHIFTS) {
      if (is(stem) && n <= 2) {
        int old = read(target, width), by = n == 1 ? control.constant(1) : made(Code::AND, 8, 0, read(operands[0], 8), control.constant(width == 64 ? 63 : 31));
        if (n == 2 && operands[0].starts_with('$')) by = read(operands[0], 8);
        int result = made(code, width, 0, old, by);
        compared(RESULT, width, result, zero_);
        write(target, width, result);
        return;
      }
      if (n == 3 && name.size() == 5 && name.starts_with(stem) && name[3] == 'x') {  // shlxq
        int by = made(Code::AND, 8, 0, read(operands[0], 8), control.constant(width == 64 ? 63 : 31));
        write(target, width, made(code, width, 0, read(operands[1], width), by));
        return;
      }
    }
    if (is("imul") && n >= 2) {
      int a = read(operands[0], width), b = read(operands[1], width);
      write(target, width, made(Code::MUL, width, 0, a, b));
      flags_ = {};
      return;
    }
    if ((is("mul") || is("imul")) && n == 1 && width >= 32) {
      int a = read(operands[0], width), high = made(name[0] == 'i' ? Code::HIGHS : Code::HIGH, width, 0, a, RAX), low = made(Code::MUL, width, 0, a, RAX);
      write(width == 64 ? "%rax" : "%eax", width, low);
      write(width == 64 ? "%rdx" : "%edx", width, high);
      flags_ = {};
      return;
    }
    if (is("mulx") && n == 3) {
      int a = read(operands[0], width), high = made(Code::HIGH, width, 0, a, RDX), low = made(Code::MUL, width, 0, a, RDX);
      write(operands[1], width, low);
      write(operands[2], width, high);
      return;
    }
    if ((is("div") || is("idiv")) && n == 1 && width >= 32) {  // of what has been extended, as compilers do
      bool with_sign = name[0] == 'i';
      int by = read(operands[0], width), of = made(Code::COPY, width, 0, RAX);
      int quotient = made(with_sign ? Code::SDIV : Code::UDIV, width, 0, of, by), rest = made(with_sign ? Code::SREM : Code::UREM, width, 0, of, by);
      write(width == 64 ? "%rax" : "%eax", width, quotient);
      write(width == 64 ? "%rdx" : "%edx", width, rest);
      flags_ = {};
      return;
    }
    if (is("bt") && n == 2) {
      int by = made(Code::AND, 8, 0, read(operands[0], 8), control.constant(width == 64 ? 63 : 31));
      int bit = made(Code::AND, 64, 0, made(Code::LSHR, width, 0, read(target, width), by), control.constant(1));
      compared(COMPARED, 64, zero_, bit);  // below tells the bit
      return;
    }
    if ((is("adc") || is("sbb")) && n == 2) {
      int carry = condition("b");
      int a = read(target, width), b = read(operands[0], width);
      Code code = name[0] == 'a' ? Code::ADD : Code::SUB;
      flags_ = {};
      write(target, width, carry == lost_ ? lost_ : made(code, width, 0, made(code, width, 0, a, b), carry));
      return;
    }
    if (is("andn") && n == 3) {
      int inverse = made(Code::XOR, width, 0, read(operands[1], width), control.constant(mask_of(width)));
      int result = made(Code::AND, width, 0, inverse, read(operands[0], width));
      compared(COMPARED, width, result, zero_);
      write(target, width, result);
      return;
    }
    if (is("bzhi") && n == 3) {
      int by = made(Code::COPY, 8, 0, read(operands[0], 64)), one = control.constant(1);
      int kept = made(Code::SUB, width, 0, made(Code::SHL, width, 0, one, by), one);
      int result = made(Code::AND, width, 0, read(operands[1], width), kept);
      compared(RESULT, width, result, zero_);
      write(target, width, result);
      return;
    }
    if (is("popcnt") && n == 2) { write(target, width, made(Code::COUNT, width, 0, read(operands[0], width))); flags_ = {}; return; }
    if (is("xchg") && n == 2) {
      int a = made(Code::COPY, 64, 0, read(operands[0], width)), b = made(Code::COPY, 64, 0, read(target, width));
      write(target, width, a);
      write(operands[0], width, b);
      return;
    }
    // Anything else: its last operand and the flags are not known any more.
    flags_ = {};
    write(target, width, lost_);
  }
  void move_stack(Code code, Text amount) {
    Scan scan{amount.substr(1)};
    Text digits;
    if (!scan.number(digits)) return;
    if (code == Code::ADD) now_ -= to_number(digits);
    if (code == Code::SUB) now_ += to_number(digits);
  }

  // Calls succeed: what they return is zero as an integer of 32 bits, and a place of its own as a pointer.
  void call() {
    op({Code::COPY, 64, 0, RAX, control.pointer()});
    for (int slot : std::initializer_list<int>{RCX, RDX, RSI, RDI, R8, R9, 10, 11}) op({Code::LOSE, 64, 0, slot});
    lose_vectors();
    flags_ = {};
  }
};

// The same where vectors may decide: they are followed as well, which takes longer.
class X86VectorControl : public X86Control {
 public:
  X86VectorControl(const AsmFunction& function, Role role, Byte byte) : X86Control(function, role, byte, true) {}

  // Whether anything of a vector or mask gets into an integer or flags.
  static bool may_decide(const AsmFunction& function) {
    static constexpr Text WAYS[] = {"kmov", "kortest", "ktest", "vmovmsk", "vpmovmskb", "vptest", "vtestp", "vmovd", "vmovq",
                                    "vpextr", "vextractps", "movmsk", "pmovmskb", "ptest", "movd", "movq", "pextr", "extractps"};
    for (const auto& lines : function.lines) for (Text line : lines) if (starts_with_any(line, WAYS)) return true;
    return false;
  }
};

}  // namespace cdmpp
