// x86-64 machine code -> what decides its branches: integer registers, flags and places on the stack.
#pragma once
#include <map>
#include "assembly.h"
#include "control.h"

namespace cdmpp {

class X86Control {
 public:
  Control control;

  X86Control(const AsmFunction& function, Role role) : function_(function), role_(role) {
    bool is_thread = role == Role::THREAD;
    for (int i = 0; i < REGISTERS; ++i) control.slot();
    left_ = control.slot();
    right_ = control.slot();
    zero_ = control.constant(0);
    lost_ = control.slot();
    for (int name : {RDI, RSI, RDX, RCX, R8, R9}) control.starts[name] = {true, control.region()};
    control.starts[RDI] = {true, is_thread ? 0 : control.region()};  // the task, or the device
    if (is_thread) control.memory[control.starts[RSI].value + TASKS_AT] = 1;
    if (is_thread) control.closure = control.starts[RDX].value;
    control.starts[RSP] = {true, STACK};
    control.blocks.resize(function.size());
    find_frame();
    setters_.assign(function.size(), {});
    depth_.assign(function.size(), UNSEEN);
    depth_[0] = 0;
    for (int b : function.order) read_block(b);
  }

 private:
  enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, REGISTERS = 16 };
  enum Setter : uint8_t { NONE, COMPARED, ADDED, RESULT };  // what flags stand for: a - b, a + b, only zero and sign of a
  struct Flags { Setter setter = NONE; int width = 64; };
  struct Register { int slot = -1, width = 0, shift = 0; };
  struct Place { bool reads = false, on_stack = false, framed = false; int64_t at = 0; int address = -1; };
  static constexpr uint64_t STACK = (uint64_t(1) << 62) - 8;
  static constexpr int64_t UNSEEN = INT64_MIN;

  const AsmFunction& function_;
  int left_, right_, zero_, lost_, block_ = 0;
  Role role_;
  bool framed_ = false;
  std::vector<Text> operands_;  // of the line that is read
  Flags flags_;
  std::vector<Flags> setters_;
  std::vector<int64_t> depth_;  // of the stack where a block begins, in bytes below the entry's
  int64_t now_ = 0;
  std::map<std::pair<bool, int64_t>, int> stack_;  // by whether they are in the frame, and bytes from its beginning

  void op(Op one) { control.blocks[block_].ops.push_back(one); }
  int made(Code code, int width, int how, int a, int b = 0, int c = 0) {
    int slot = control.slot();
    op({code, static_cast<uint8_t>(width), static_cast<uint8_t>(how), slot, a, b, c});
    return slot;
  }
  void find_frame() {
    for (Text line : function_.lines[0]) framed_ |= line == "movq %rsp, %rbp";
  }

  // Operands.

  static Register read_register(Text name) {
    static constexpr Text OLD[] = {"ax", "cx", "dx", "bx", "sp", "bp", "si", "di"};
    if (name.size() < 2) return {};
    if (name[0] == 'r' && is_digit(name[1])) {
      int number = name[1] - '0';
      size_t n = 2;
      if (name.size() > 2 && is_digit(name[2])) { number = 10 * number + name[2] - '0'; n = 3; }
      Text size = name.substr(n);
      return {number, size.empty() ? 64 : size == "d" ? 32 : size == "w" ? 16 : 8, 0};
    }
    for (int i = 0; i < 8; ++i) {
      if (name.size() == 3 && name.substr(1) == OLD[i]) return name[0] == 'r' ? Register{i, 64, 0} : name[0] == 'e' ? Register{i, 32, 0} : Register{};
      if (name == OLD[i]) return {i, 16, 0};
      if (i < 4 && name[0] == OLD[i][0] && name.size() == 2 && name[1] == 'l') return {i, 8, 0};
      if (i < 4 && name[0] == OLD[i][0] && name.size() == 2 && name[1] == 'h') return {i, 8, 8};
      if (i >= 4 && name.size() == 3 && name.substr(0, 2) == OLD[i] && name[2] == 'l') return {i, 8, 0};
    }
    return {};
  }
  const std::vector<Text>& split_operands(Text rest) {
    std::vector<Text>& found = operands_;
    found.clear();
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      depth += rest[i] == '(';
      depth -= rest[i] == ')';
      if (rest[i] == ',' && !depth) { found.push_back(stripped(rest.substr(begin, i - begin))); begin = i + 1; }
    }
    if (!stripped(rest).empty()) found.push_back(stripped(rest.substr(begin)));
    return found;
  }
  // Of an operand in memory; its address is computed where the code does not tell that it is on the stack.
  Place read_place(Text text, bool computes) {
    Place place;
    size_t open = text.find('(');
    if (open == NOWHERE) return place;
    Text before = text.substr(0, open);
    int64_t displacement = 0;
    bool symbol = false;
    if (!before.empty()) {
      Scan scan{before};
      Text digits;
      if (scan.number(digits) && scan.rest.empty()) displacement = to_number(digits);
      else symbol = true;
    }
    auto parts = split(stripped(text.substr(open), "()"), ',');
    Register base = parts[0].size() > 1 ? read_register(stripped(parts[0]).substr(1)) : Register{};
    bool indexed = parts.size() > 1 && !stripped(parts[1]).empty();
    place.reads = true;
    if (!indexed && !symbol && (base.slot == RSP || (base.slot == RBP && framed_))) {
      place.on_stack = true;
      place.framed = base.slot == RBP;
      place.at = displacement - (place.framed ? 0 : now_);
      if (!computes) return place;
    }
    if (!computes) return place;
    if (symbol) { place.address = has(text, "%rip") ? symbol_at(before) : lost_; return place; }
    int address = control.constant(static_cast<uint64_t>(displacement));
    if (base.slot >= 0) address = displacement ? made(Code::ADD, 64, 0, base.slot, address) : base.slot;
    if (indexed) {
      Register index = read_register(stripped(parts[1]).substr(1));
      if (index.slot < 0) { place.address = lost_; return place; }
      int64_t scale = parts.size() > 2 ? to_number(stripped(parts[2])) : 1;
      int scaled = scale == 1 ? index.slot : made(Code::MUL, 64, 0, index.slot, control.constant(static_cast<uint64_t>(scale)));
      address = made(Code::ADD, 64, 0, address, scaled);
    }
    place.address = address;
    return place;
  }
  std::map<Text, int> symbols_;
  int symbol_at(Text name) {
    auto [at, is_new] = symbols_.try_emplace(name, 0);
    if (is_new) at->second = control.pointer();
    return at->second;
  }
  // Of what is spilled: it is read where it was written, in the same width or less.
  int stack_slot(const Place& place, int64_t at) {
    auto [found, is_new] = stack_.try_emplace({place.framed, at}, 0);
    if (is_new) {
      found->second = control.slot();
      // Arguments that no register holds, behind the address to return to and the frame before.
      if (at >= (place.framed ? 16 : 8)) control.starts[found->second] = {true, control.region()};
    }
    return found->second;
  }

  int read(Text operand, int width) {
    if (operand.starts_with('$')) {
      Scan scan{operand.substr(1)};
      Text digits;
      if (scan.number(digits) && scan.rest.empty()) return control.constant(static_cast<uint64_t>(wide_number(digits)) & mask_of(width));
      return lost_;
    }
    if (operand.starts_with('%')) {
      Register name = read_register(operand.substr(1));
      if (name.slot < 0) return lost_;
      return name.shift ? made(Code::LSHR, 64, 0, name.slot, control.constant(8)) : name.slot;
    }
    Place place = read_place(operand, true);
    if (place.on_stack) return stack_slot(place, place.at);
    if (place.address < 0) return lost_;
    return made(width == 64 && role_ != Role::KERNEL ? Code::FIND : Code::LOAD, width, role_ == Role::THREAD, place.address);
  }
  static int64_t wide_number(Text digits) {
    int64_t number = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc()) return number;
    uint64_t great = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), great).ec != std::errc()) throw Unsupported();
    return static_cast<int64_t>(great);
  }
  void write(Text operand, int width, int value) {
    if (operand.starts_with('%')) {
      Register name = read_register(operand.substr(1));
      if (name.slot < 0) return;
      if (value == lost_) op({Code::LOSE, 64, 0, name.slot});
      else if (name.shift) op({Code::INSERT, 8, static_cast<uint8_t>(name.shift), name.slot, name.slot, value});
      else op({Code::COPY, static_cast<uint8_t>(width), 0, name.slot, value});  // what compilers leave above is never read
      return;
    }
    Place place = read_place(operand, false);
    if (!place.on_stack) return;
    int slot = stack_slot(place, place.at);
    if (value == lost_) op({Code::LOSE, 64, 0, slot});
    else op({Code::COPY, static_cast<uint8_t>(width), 0, slot, value});
  }
  void lose_stack(const Place& place, int bytes) {
    for (int64_t at = place.at; at < place.at + bytes; at += 4) op({Code::LOSE, 64, 0, stack_slot(place, at)});
  }

  // Flags.

  void compared(Setter setter, int width, int a, int b) {
    op({Code::COPY, 64, 0, left_, a});
    op({Code::COPY, 64, 0, right_, b});
    flags_ = {setter, width};
  }
  // Slot that tells whether a condition such as `ne` holds.
  int condition(Text name) {
    static constexpr Entry TESTS[] = {{"e", EQ}, {"z", EQ}, {"ne", NE}, {"nz", NE}, {"a", UGT}, {"nbe", UGT}, {"ae", UGE}, {"nb", UGE},
                                      {"nc", UGE}, {"b", ULT}, {"c", ULT}, {"nae", ULT}, {"be", ULE}, {"na", ULE}, {"g", SGT}, {"nle", SGT},
                                      {"ge", SGE}, {"nl", SGE}, {"l", SLT}, {"nge", SLT}, {"le", SLE}, {"ng", SLE}, {"s", NEGATIVE}};
    int test = name == "ns" ? POSITIVE + 1 : -1;
    for (auto [text, value] : TESTS) if (text == name) test = value;
    if (test < 0 || flags_.setter == NONE) return lost_;
    if (flags_.setter == RESULT && test != EQ && test != NE && test < NEGATIVE) return lost_;
    bool inverts = test > POSITIVE;
    if (inverts) test = NEGATIVE;
    int holds = made(flags_.setter == ADDED ? Code::CARRY : Code::TEST, flags_.width, test, left_, right_);
    return inverts ? made(Code::XOR, 1, 0, holds, control.constant(1)) : holds;
  }

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
    if (name[0] == 'v' || name[0] == 'k') { read_vector(name, rest); return; }
    if (has(rest, "%xmm")) { read_vector(name, rest); return; }
    read_integer(name, split_operands(rest));
  }

  // Those that only move or compute floats change nothing here but the places on the stack that they store to.
  void read_vector(Text name, Text rest) {
    bool compares = has(name, "comis") || has(name, "test");
    if (compares) { flags_ = {}; return; }
    bool masks = name[0] == 'k';
    size_t last = rest.rfind(rest.ends_with(')') ? '(' : ',');
    if (rest.ends_with(')')) last = rest.rfind(',', last);
    Text target = stripped(rest.substr(last == NOWHERE ? 0 : last + 1));
    if (masks && name.starts_with("kortest")) { flags_ = {}; return; }
    if (target.starts_with('%')) {
      Register written = read_register(target.substr(1));
      if (written.slot >= 0) op({Code::LOSE, 64, 0, written.slot});
      return;
    }
    if (!has(target, "(%rsp") && !(framed_ && has(target, "(%rbp"))) return;
    Place place = read_place(before(target, "{"), false);
    if (!place.on_stack) return;
    lose_stack(place, stored_bytes(name, rest));
  }
  static int stored_bytes(Text name, Text rest) {
    static constexpr Entry SIZES[] = {{"movd", 4}, {"extrd", 4}, {"extractps", 4}, {"ss", 4}, {"movq", 8}, {"extrq", 8}, {"lps", 8},
                                      {"hps", 8}, {"lpd", 8}, {"hpd", 8}, {"sd", 8}, {"extrb", 1}, {"extrw", 2}, {"128", 16},
                                      {"32x4", 16}, {"64x2", 16}, {"32x8", 32}, {"64x4", 32}};
    for (auto [ending, bytes] : SIZES) if (name.ends_with(ending)) return bytes;
    int whole = has(rest, "%zmm") ? 64 : has(rest, "%ymm") ? 32 : 16;
    return has(name, "cvtps2ph") ? whole / 2 : whole;
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
    flags_ = {};
  }
};

}  // namespace cdmpp
