// What decides branches of x86-64 machine code: integer registers, flags, places on the stack, and operands that name them.
#pragma once
#include <map>
#include <optional>
#include "assembly.h"
#include "control.h"

namespace cdmpp {

class X86State {
 public:
  using Byte = std::optional<uint64_t>;  // what single bytes hold that are not on the stack
  Control control;

 protected:
  enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, REGISTERS = 16 };
  // What flags stand for: a - b, a + b, only zero and sign of a, or zero where a is and carry where b is.
  enum Setter : uint8_t { NONE, COMPARED, ADDED, RESULT, TESTED };
  struct Flags { Setter setter = NONE; int width = 64; };
  struct Register { int slot = -1, width = 0, shift = 0; };
  struct Place { bool reads = false, on_stack = false, framed = false; int64_t at = 0; int address = -1; };
  static constexpr uint64_t STACK = (uint64_t(1) << 62) - 8;

  const AsmFunction& function_;
  int left_, right_, zero_, lost_, block_ = 0;
  Role role_;
  Byte byte_;
  bool framed_ = false, with_vectors_;
  std::vector<Text> operands_;  // of the line that is read
  Flags flags_;
  int64_t now_ = 0;  // depth of the stack, in bytes below the entry's
  // By whether they are in the frame, and bytes from its beginning: what integers are read from, and four bytes each.
  std::map<std::pair<bool, int64_t>, int> stack_, words_;

  X86State(const AsmFunction& function, Role role, Byte byte, bool with_vectors)
      : function_(function), role_(role), byte_(byte), with_vectors_(with_vectors) {
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
    for (Text line : function.lines[0]) framed_ |= line == "movq %rsp, %rbp";
  }

  void op(Op one) { control.blocks[block_].ops.push_back(one); }
  int made(Code code, int width, int how, int a, int b = 0, int c = 0) {
    int slot = control.slot();
    op({code, static_cast<uint8_t>(width), static_cast<uint8_t>(how), slot, a, b, c});
    return slot;
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
      if (scan.number(digits) && scan.rest.empty()) return control.constant(unsigned_number(digits) & mask_of(width));
      return lost_;
    }
    if (operand.starts_with('%')) {
      Register name = read_register(operand.substr(1));
      if (name.slot < 0) return lost_;
      return name.shift ? made(Code::LSHR, 64, 0, name.slot, control.constant(8)) : name.slot;
    }
    Place place = read_place(operand, true);
    if (place.on_stack) return stack_slot(place, place.at);
    if (width == 8 && byte_) return control.constant(*byte_);
    if (place.address < 0) return lost_;
    return made(width == 64 && role_ != Role::KERNEL ? Code::FIND : Code::LOAD, width, role_ == Role::THREAD, place.address);
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
    keep_words(place, width, value);
  }
  int word(const Place& place, int64_t at) {
    auto [found, is_new] = words_.try_emplace({place.framed, at}, 0);
    if (is_new) found->second = control.slot();
    return found->second;
  }
  // Of what is stored: what vectors are read from.
  void keep_words(const Place& place, int width, int value) {
    if (!with_vectors_) return;
    if (width < 32) { for (int64_t at = place.at - 3; at <= place.at; ++at) op({Code::LOSE, 64, 0, word(place, at)}); return; }
    for (int64_t at = 0; at < width / 8; at += 4) {
      if (value == lost_) op({Code::LOSE, 64, 0, word(place, place.at + at)});
      else op({at ? Code::LSHR : Code::COPY, static_cast<uint8_t>(at ? 64 : 32), 0, word(place, place.at + at), value, control.constant(32)});
    }
  }
  void lose_stack(const Place& place, int bytes) {
    for (int64_t at = place.at; at < place.at + bytes; at += 4) {
      op({Code::LOSE, 64, 0, stack_slot(place, at)});
      if (with_vectors_) op({Code::LOSE, 64, 0, word(place, at)});
    }
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
    if (flags_.setter == TESTED) return condition_of_tested(test);
    bool inverts = test > POSITIVE;
    if (inverts) test = NEGATIVE;
    int holds = made(flags_.setter == ADDED ? Code::CARRY : Code::TEST, flags_.width, test, left_, right_);
    return inverts ? made(Code::XOR, 1, 0, holds, control.constant(1)) : holds;
  }
  int condition_of_tested(int test) {
    if (test == EQ || test == NE) return made(Code::TEST, flags_.width, test, left_, zero_);
    if (test == ULT || test == UGE) return made(Code::TEST, flags_.width, test == ULT ? EQ : NE, right_, zero_);
    if (test != UGT && test != ULE) return lost_;
    bool either = test == ULE;
    int zero = made(Code::TEST, flags_.width, either ? EQ : NE, left_, zero_), carry = made(Code::TEST, flags_.width, either ? EQ : NE, right_, zero_);
    return made(either ? Code::OR : Code::AND, 1, 0, zero, carry);
  }
};

}  // namespace cdmpp
