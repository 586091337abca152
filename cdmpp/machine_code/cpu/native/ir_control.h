// LLVM IR -> what decides its branches. Vectors of integers, as run-time checks are made of, have a slot for each lane.
#pragma once
#include <map>
#include "control.h"
#include "masks.h"

namespace cdmpp {

struct IrType {
  enum Kind : uint8_t { INTEGER, POINTER, OTHER } kind = OTHER;
  int bits = 0, lanes = 1;
  int64_t bytes = 0;  // of the whole, where it is known
  bool vector = false;
  bool counted() const { return kind != OTHER && bits >= 1 && bits <= 64 && lanes <= 64; }
};

class IrControl {
 public:
  Control control;

  // Counters of threads are those of one task that does all the work.
  IrControl(Function& function, Role role, const Masks& masks) : function_(function), masks_(masks) {
    control.blocks.resize(function.size());
    zero_ = control.constant(0);
    lost_ = control.slot();
    if (role == Role::THREAD) {
      want(GROUP, {IrType::POINTER, 64, 1, 8, false});
      control.memory[control.starts[slots_[function.id(GROUP)][0]].value + TASKS_AT] = 1;
    }
    for (int b = 0; b < function.size(); ++b) read_end(b);
    while (!wanted_.empty()) {
      int id = wanted_.back();
      wanted_.pop_back();
      want_operands(id);
    }
    for (int b = 0; b < function.size(); ++b) {
      for (Text line : function.lines[b]) {
        Scan scan{line};
        Text name;
        if (!line.starts_with('%') || !scan.name(name) || !scan.eat(" = ")) continue;
        int id = function.known_id(name);
        if (id >= 0 && id < static_cast<int>(slots_.size()) && !slots_[id].empty()) emit(b, id, scan.rest);
      }
    }
    for (int b = 0; b < function.size(); ++b) end_block(b);
  }

 private:
  static constexpr Text GROUP = "%0";  // of threads: the argument behind the number of the task
  struct End { Text decider; int bits = 1; };
  Function& function_;
  const Masks& masks_;
  int zero_, lost_;
  std::vector<std::vector<int>> slots_;  // of SSA values by id, one a lane; empty where nothing needs it
  std::vector<IrType> types_;
  std::vector<int> wanted_;
  std::vector<End> ends_;
  std::map<std::pair<int, int>, std::vector<Copy>> copies_;
  std::map<Text, int> globals_;

  // Types and operands.

  static bool read_type(Scan& scan, IrType& type) {
    type = {};
    Scan begin = scan;
    if (scan.eat("<") || scan.eat("[")) {
      bool vector = begin.rest[0] == '<';
      int n;
      IrType element;
      if (!scan.integer(n) || !scan.eat(" x ") || !read_type(scan, element) || !scan.eat(vector ? ">" : "]")) return false;
      type = element;
      type.bytes = element.bytes * n;
      if (vector) {
        type.vector = true;
        type.lanes = n;
        if (element.kind == IrType::INTEGER && element.bits < 8) type.bytes = (element.bits * n + 7) / 8;
      } else {
        type.kind = IrType::OTHER;
      }
      return true;
    }
    if (scan.eat("ptr")) {
      type = {IrType::POINTER, 64, 1, 8, false};
      if (scan.eat(" addrspace(")) { scan.run([](char c) { return c != ')'; }); scan.eat(")"); }
      return true;
    }
    if (Scan at = scan; at.type(type.bits)) {
      scan = at;
      type.kind = IrType::INTEGER;
      type.bytes = (type.bits + 7) / 8;
      return true;
    }
    static constexpr Entry SIZES[] = {{"float", 4}, {"double", 8}, {"half", 2}, {"bfloat", 2}, {"void", 0}};
    for (auto [name, bytes] : SIZES) if (scan.eat(name)) { type.bytes = bytes; return true; }
    if (scan.eat("{")) {  // what an operation with overflow gives
      scan.eat(" ");
      IrType element;
      if (!read_type(scan, element)) return false;
      type = element;
      size_t close = scan.rest.find('}');
      if (close == NOWHERE) return false;
      scan.rest.remove_prefix(close + 1);
      return true;
    }
    return false;
  }

  // Slots of an operand of a type, one a lane; `want`: only notes which values it needs.
  bool read_operand(Scan& scan, const IrType& type, std::vector<int>* found) {
    auto all = [&](int slot) { if (found) found->assign(type.lanes, slot); return true; };
    Text name, digits;
    if (scan.rest.starts_with('%')) {
      if (!scan.name(name)) return false;
      if (found) { *found = slots_of(name, type); return true; }
      want(name, type);
      return true;
    }
    if (scan.eat("true")) return all(control.constant(1));
    for (Text word : {"false", "null", "zeroinitializer", "poison", "undef"}) if (scan.eat(word)) return all(zero_);
    if (scan.eat("splat (")) {
      IrType element;
      std::vector<int> one;
      if (!read_type(scan, element) || !scan.eat(" ") || !read_operand(scan, element, &one) || !scan.eat(")")) return false;
      return all(one[0]);
    }
    if (scan.eat("<")) {
      std::vector<int> lanes;
      do {
        IrType element;
        std::vector<int> one;
        if (!read_type(scan, element) || !scan.eat(" ") || !read_operand(scan, element, found ? &one : nullptr)) return false;
        if (found) lanes.push_back(one[0]);
      } while (scan.eat(", "));
      if (found) *found = lanes;
      return scan.eat(">") && (!found || lanes.size() == static_cast<size_t>(type.lanes));
    }
    if (scan.eat("@")) {
      Text global = scan.run(is_name);
      if (!found) return true;
      auto [at, is_new] = globals_.try_emplace(global, 0);
      if (is_new) at->second = control.pointer();
      return all(at->second);
    }
    if (!scan.number(digits)) return false;
    return all(control.constant(static_cast<uint64_t>(to_number(digits)) & mask_of(type.bits)));
  }

  void want(Text name, const IrType& type) {
    int id = function_.id(name);
    if (static_cast<size_t>(id) >= slots_.size()) { slots_.resize(id + 64); types_.resize(id + 64); }
    if (!slots_[id].empty()) return;
    bool defined = function_.definitions[id].block >= 0;
    types_[id] = type;
    for (int lane = 0; lane < std::min(type.lanes, 64); ++lane) {
      slots_[id].push_back(defined ? control.slot() : type.kind == IrType::POINTER ? control.pointer() : given(name));
    }
    if (defined) wanted_.push_back(id);
  }
  // An integer that is an argument: one task does all the work.
  int given(Text name) { return name == "%task_id" || name == "%dev_id" ? zero_ : lost_; }
  std::vector<int> slots_of(Text name, const IrType& type) {
    int id = function_.known_id(name);
    if (id < 0 || static_cast<size_t>(id) >= slots_.size() || slots_[id].empty()) return std::vector<int>(type.lanes, lost_);
    return slots_[id];
  }

  // Ends of blocks.

  void read_end(int b) {
    ends_.push_back({});
    const auto& lines = function_.lines[b];
    ControlBlock& block = control.blocks[b];
    auto way = [&](Text label, uint64_t value) {
      int target = function_.find(unquoted(label));
      if (target < 0) return;
      block.ways.push_back({target, value, {}});
    };
    for (size_t i = lines.size(); i-- > 0;) {
      Scan scan{lines[i]};
      Branch branch;
      Text label, value, number;
      if (scan.eat("br label %")) {
        if (scan.label(label)) way(label, 0);
        return;
      }
      if (read_branch({lines[i]}, branch)) {
        if (branch.condition.starts_with('%')) {
          ends_[b] = {branch.condition, 1};
          want(branch.condition, {IrType::INTEGER, 1, 1, 1, false});
          way(branch.yes, 1);
          way(branch.no, 0);
        } else {
          way(branch.condition == "true" || branch.condition == "1" ? branch.yes : branch.no, 0);
        }
        return;
      }
      IrType type;
      if (scan.eat("switch ")) {
        if (!read_type(scan, type) || !scan.eat(" ") || !scan.value(value) || !scan.eat(", label %") || !scan.label(label)) throw Unsupported();
        for (size_t j = i; j < lines.size(); ++j) {
          Text rest = j == i ? scan.rest : lines[j];
          for (size_t at = rest.find("label %"); at != NOWHERE; at = rest.find("label %", at + 1)) {
            Scan to{rest.substr(at + 7)};
            Text target, before = rest.substr(0, at);
            while (!before.empty() && (before.back() == ' ' || before.back() == ',')) before.remove_suffix(1);
            size_t space = before.rfind(' ');
            Scan digits{space == NOWHERE ? before : before.substr(space + 1)};
            if (!to.label(target) || !digits.number(number)) continue;
            way(target, static_cast<uint64_t>(to_number(number)) & mask_of(type.bits));
          }
        }
        way(label, 0);
        if (value.starts_with('%')) { ends_[b] = {value, type.bits}; want(value, type); }
        return;
      }
      if (scan.eat("ret ") || scan.eat("unreachable")) return;
    }
  }
  void end_block(int b) {
    ControlBlock& block = control.blocks[b];
    if (!ends_[b].decider.empty()) block.decider = slots_of(ends_[b].decider, {IrType::INTEGER, ends_[b].bits, 1, 1, false})[0];
    for (Way& way : block.ways) {
      auto found = copies_.find({b, way.target});
      if (found != copies_.end()) way.copies = found->second;
    }
  }

  // Instructions.

  struct Reader {
    IrControl& owner;
    Scan scan;
    bool emits;
    std::vector<int> slots;
    bool type(IrType& type) { return read_type(scan, type); }
    bool operand(const IrType& type) { slots.clear(); return owner.read_operand(scan, type, emits ? &slots : nullptr); }
  };

  void want_operands(int id) {
    std::vector<int> none;
    const Definition& definition = function_.definitions[id];
    read(definition.text, definition.block, id, false);
  }
  void emit(int block, int id, Text text) {
    block_ = block;
    if (!read(text, block, id, true)) for (int slot : slots_[id]) op({Code::LOSE, 64, 0, slot});
  }
  int block_ = 0;
  void op(Op op) { control.blocks[block_].ops.push_back(op); }
  int made(Code code, int width, int how, int a, int b = 0, int c = 0) {
    int slot = control.slot();
    op({code, static_cast<uint8_t>(width), static_cast<uint8_t>(how), slot, a, b, c});
    return slot;
  }

  static int predicate(Text name) {
    static constexpr Entry TESTS[] = {{"eq", EQ}, {"ne", NE}, {"ugt", UGT}, {"uge", UGE}, {"ult", ULT}, {"ule", ULE},
                                      {"sgt", SGT}, {"sge", SGE}, {"slt", SLT}, {"sle", SLE}};
    for (auto [text, test] : TESTS) if (text == name) return test;
    return -1;
  }
  static bool skip_flags(Scan& scan) {
    static constexpr Text FLAGS[] = {"nuw", "nsw", "exact", "disjoint", "samesign", "inbounds", "nusw", "nneg", "volatile"};
    while (scan.eat(" ")) {
      Scan at = scan;
      Text word;
      if (!at.word(word) || !is_any(word, FLAGS)) return true;
      scan = at;
    }
    return false;
  }

  // What `text` makes of which values: notes these, or emits operations; false where it is not known.
  bool read(Text text, int block, int id, bool emits) {
    static constexpr Entry BINARIES[] = {
        {"add", static_cast<int>(Code::ADD)}, {"sub", static_cast<int>(Code::SUB)}, {"mul", static_cast<int>(Code::MUL)},
        {"and", static_cast<int>(Code::AND)}, {"or", static_cast<int>(Code::OR)}, {"xor", static_cast<int>(Code::XOR)},
        {"shl", static_cast<int>(Code::SHL)}, {"lshr", static_cast<int>(Code::LSHR)}, {"ashr", static_cast<int>(Code::ASHR)},
        {"udiv", static_cast<int>(Code::UDIV)}, {"sdiv", static_cast<int>(Code::SDIV)}, {"urem", static_cast<int>(Code::UREM)},
        {"srem", static_cast<int>(Code::SREM)}};
    Reader reader{*this, Scan{text}, emits, {}};
    Scan& scan = reader.scan;
    Text name;
    IrType type, other;
    const std::vector<int> out = slots_[id];
    if (scan.eat("tail ") || scan.eat("notail ") || scan.eat("musttail ")) {}
    if (!scan.word(name)) return false;
    if (name == "call") return read_call(reader, out, types_[id]);
    if (name == "phi") {
      if (!scan.eat(" ") || !reader.type(type) || !type.counted() || type.lanes != static_cast<int>(out.size())) return false;
      while (scan.rest.find("[ ") != NOWHERE) {
        scan.rest.remove_prefix(scan.rest.find("[ ") + 2);
        Reader one{*this, scan, emits, {}};
        Text label;
        if (!one.operand(type) || !one.scan.eat(", %") || !one.scan.label(label)) return false;
        scan = one.scan;
        int from = function_.find(unquoted(label));
        if (from < 0 || !emits) continue;
        auto& copies = copies_[{from, block}];
        for (size_t i = 0; i < out.size(); ++i) copies.push_back({out[i], one.slots[i]});
      }
      return true;
    }
    for (auto [binary, code] : BINARIES) {
      if (name != binary) continue;
      if (!skip_flags(scan) || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
      auto left = reader.slots;
      if (!scan.eat(", ") || !reader.operand(type)) return false;
      if (emits) each(out, [&](size_t i) { op({static_cast<Code>(code), width(type), 0, out[i], left[i], reader.slots[i]}); });
      return true;
    }
    if (name == "icmp") {
      if (!skip_flags(scan) || !scan.word(name) || !scan.eat(" ") || !reader.type(type) || !type.counted() || !scan.eat(" ")) return false;
      int test = predicate(name);
      if (test < 0 || !reader.operand(type)) return false;
      auto left = reader.slots;
      if (!scan.eat(", ") || !reader.operand(type)) return false;
      if (emits) each(out, [&](size_t i) { op({Code::TEST, width(type), static_cast<uint8_t>(test), out[i], left[i], reader.slots[i]}); });
      return true;
    }
    if (name == "zext" || name == "sext" || name == "trunc" || name == "ptrtoint" || name == "inttoptr" || name == "freeze") {
      if (!skip_flags(scan) || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
      if (name == "freeze") other = type;
      else if (!scan.eat(" to ") || !reader.type(other) || !other.counted()) return false;
      if (!emits) return true;
      each(out, [&](size_t i) {
        if (name == "sext") op({Code::SEXT, width(type), width(other), out[i], reader.slots[i]});
        else op({Code::COPY, width(other), 0, out[i], reader.slots[i]});
      });
      return true;
    }
    if (name == "bitcast") return read_bitcast(reader, out);
    if (name == "select") {
      IrType condition;
      if (!skip_flags(scan) || !reader.type(condition) || !scan.eat(" ") || !reader.operand(condition)) return false;
      auto chooses = reader.slots;
      if (!scan.eat(", ") || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
      auto yes = reader.slots;
      if (!scan.eat(", ") || !reader.type(type) || !scan.eat(" ") || !reader.operand(type)) return false;
      if (emits) each(out, [&](size_t i) { op({Code::SELECT, 64, 0, out[i], chooses[chooses.size() == 1 ? 0 : i], yes[i], reader.slots[i]}); });
      return true;
    }
    if (name == "getelementptr") return read_place(reader, out);
    if (name == "load") {
      if (Masks::Known byte = masks_.loaded(function_, text)) {
        if (emits) op({Code::COPY, 64, 0, out[0], control.constant(*byte)});
        return true;
      }
      if (!skip_flags(scan) || !reader.type(type) || type.lanes != 1 || !scan.eat(", ") || !reader.type(other) || !scan.eat(" ") || !reader.operand(other)) return false;
      if (emits) op({type.kind == IrType::POINTER ? Code::FIND : Code::LOAD, width(type), 0, out[0], reader.slots[0]});
      return true;
    }
    if (name == "alloca") {
      if (emits) op({Code::COPY, 64, 0, out[0], control.pointer()});
      return true;
    }
    if (name == "extractelement") {
      if (!scan.eat(" ") || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
      auto lanes = reader.slots;
      Text place;
      if (!scan.eat(", ") || !reader.type(other) || !scan.eat(" ") || !scan.number(place)) return false;
      if (emits) op({Code::COPY, 64, 0, out[0], lanes.at(to_number(place))});
      return true;
    }
    if (name == "insertelement") {
      if (!scan.eat(" ") || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
      auto lanes = reader.slots;
      Text place;
      if (!scan.eat(", ") || !reader.type(other) || !scan.eat(" ") || !reader.operand(other)) return false;
      auto element = reader.slots;
      if (!scan.eat(", ") || !reader.type(other) || !scan.eat(" ") || !scan.number(place)) return false;
      if (emits) each(out, [&](size_t i) {
        op({Code::COPY, 64, 0, out[i], static_cast<int64_t>(i) == to_number(place) ? element[0] : lanes[i]});
      });
      return true;
    }
    if (name == "shufflevector") return read_shuffle(reader, out);
    if (name == "extractvalue") {
      IrType pair;
      if (!scan.eat(" ") || !reader.type(type) || !scan.eat(" ")) return false;
      pair = type;
      pair.lanes = 2;  // the value, and whether it went over
      if (!reader.operand(pair)) return false;
      Text place;
      if (!scan.eat(", ") || !scan.number(place)) return false;
      if (emits) op({Code::COPY, 64, 0, out[0], reader.slots.at(to_number(place))});
      return true;
    }
    return false;
  }
  static uint8_t width(const IrType& type) { return static_cast<uint8_t>(type.bits); }
  template <class Each>
  static void each(const std::vector<int>& lanes, Each visit) { for (size_t i = 0; i < lanes.size(); ++i) visit(i); }

  bool read_place(Reader& reader, const std::vector<int>& out) {
    Scan& scan = reader.scan;
    IrType element, type;
    if (!skip_flags(scan)) return false;
    Text element_text = scan.rest;
    if (!reader.type(element)) return false;
    element_text = element_text.substr(0, element_text.size() - scan.rest.size());
    if (!scan.eat(", ") || !reader.type(type) || !scan.eat(" ") || !reader.operand(type)) return false;
    auto place = reader.slots;
    bool first = true;
    int64_t bytes = element.bytes;
    while (scan.eat(", ")) {
      IrType index;
      if (!reader.type(index) || !index.counted() || !scan.eat(" ") || !reader.operand(index)) return false;
      if (!first) {  // into an array
        Scan inner{element_text};
        int n;
        if (!inner.eat("[") || !inner.integer(n) || !inner.eat(" x ")) return false;
        element_text = inner.rest;
        if (!reader.emits) continue;
        IrType part;
        if (!read_type(inner, part)) return false;
        bytes = part.bytes;
        element_text = element_text.substr(0, element_text.size() - inner.rest.size());
      }
      first = false;
      if (!reader.emits) continue;
      auto indices = reader.slots;
      std::vector<int> next;
      each(out, [&](size_t i) {
        int step = indices[indices.size() == 1 ? 0 : i], base = place[place.size() == 1 ? 0 : i];
        if (index.bits < 64) step = made(Code::SEXT, index.bits, 64, step);
        if (bytes != 1) step = made(Code::MUL, 64, 0, step, control.constant(static_cast<uint64_t>(bytes)));
        next.push_back(made(Code::ADD, 64, 0, base, step));
      });
      place = next;
    }
    if (reader.emits) each(out, [&](size_t i) { op({Code::COPY, 64, 0, out[i], place[place.size() == 1 ? 0 : i]}); });
    return true;
  }

  bool read_bitcast(Reader& reader, const std::vector<int>& out) {
    Scan& scan = reader.scan;
    IrType from, to;
    if (!scan.eat(" ") || !reader.type(from) || !from.counted() || !scan.eat(" ") || !reader.operand(from)) return false;
    auto lanes = reader.slots;
    if (!scan.eat(" to ") || !reader.type(to) || !to.counted()) return false;
    if (!reader.emits) return true;
    if (from.lanes == to.lanes) {
      each(out, [&](size_t i) { op({Code::COPY, 64, 0, out[i], lanes[i]}); });
    } else if (to.lanes == 1 && from.bits * from.lanes <= 64) {
      int whole = zero_;
      each(lanes, [&](size_t i) {
        int part = made(Code::SHL, 64, 0, lanes[i], control.constant(i * from.bits));
        whole = made(Code::OR, 64, 0, whole, part);
      });
      op({Code::COPY, 64, 0, out[0], whole});
    } else if (from.lanes == 1) {
      each(out, [&](size_t i) {
        int part = made(Code::LSHR, 64, 0, lanes[0], control.constant(i * to.bits));
        op({Code::COPY, width(to), 0, out[i], part});
      });
    } else {
      return false;
    }
    return true;
  }

  bool read_shuffle(Reader& reader, const std::vector<int>& out) {
    Scan& scan = reader.scan;
    IrType type, mask;
    if (!scan.eat(" ") || !reader.type(type) || !type.counted() || !scan.eat(" ") || !reader.operand(type)) return false;
    auto lanes = reader.slots;
    if (!scan.eat(", ") || !reader.type(type) || !scan.eat(" ") || !reader.operand(type)) return false;
    lanes.insert(lanes.end(), reader.slots.begin(), reader.slots.end());
    if (!reader.emits) return true;
    if (!scan.eat(", ") || !reader.type(mask) || !scan.eat(" ")) return false;
    std::vector<int64_t> chosen(out.size(), 0);
    if (scan.eat("<")) {
      for (size_t i = 0; i < out.size(); ++i) {
        Text number;
        if (i) scan.eat(", ");
        if (!scan.eat("i32 ")) return false;
        if (scan.eat("poison") || scan.eat("undef")) continue;
        if (!scan.number(number)) return false;
        chosen[i] = to_number(number);
      }
    }
    each(out, [&](size_t i) { op({Code::COPY, 64, 0, out[i], lanes.at(chosen[i])}); });
    return true;
  }

  // Intrinsics on integers; other calls succeed: they return zero, or a place of their own.
  bool read_call(Reader& reader, const std::vector<int>& out, const IrType& result) {
    Scan& scan = reader.scan;
    Text text = scan.rest;
    size_t at = text.find("@llvm.");
    if (at == NOWHERE) {
      if (result.kind == IrType::OTHER || result.vector) return false;
      if (reader.emits) op({Code::COPY, 64, 0, out[0], result.kind == IrType::POINTER ? control.pointer() : zero_});
      return true;
    }
    scan.rest = text.substr(at + 6);
    Text name = scan.run([](char c) { return c != '('; });
    scan.eat("(");
    std::vector<std::vector<int>> arguments;
    IrType type, first;
    while (!scan.rest.empty() && scan.rest[0] != ')') {
      if (!reader.type(type) || !type.counted()) return false;
      if (arguments.empty()) first = type;
      while (scan.eat(" ")) {
        static constexpr Text WORDS[] = {"noundef", "nonnull", "immarg", "signext", "zeroext"};
        Scan word = scan;
        Text found;
        if (!word.word(found) || !is_any(found, WORDS)) break;
        scan = word;
      }
      if (!reader.operand(type)) return false;
      arguments.push_back(reader.slots);
      scan.eat(", ");
    }
    auto is = [&](Text beginning) { return name.starts_with(beginning); };
    size_t n = arguments.size();
    int bits = first.bits;
    static constexpr Entry PICKS[] = {{"umin.", ULT}, {"umax.", UGT}, {"smin.", SLT}, {"smax.", SGT}};
    for (auto [pick, test] : PICKS) {
      if (!is(pick) || n != 2) continue;
      if (reader.emits) each(out, [&](size_t i) { choose(test, bits, out[i], arguments[0][i], arguments[1][i]); });
      return true;
    }
    if (is("abs.") && n == 2) {
      if (reader.emits) each(out, [&](size_t i) {
        int minus = made(Code::SUB, bits, 0, zero_, arguments[0][i]);
        int below = made(Code::TEST, bits, SLT, arguments[0][i], zero_);
        op({Code::SELECT, 64, 0, out[i], below, minus, arguments[0][i]});
      });
      return true;
    }
    if (is("ctpop.") && n == 1) {
      if (reader.emits) each(out, [&](size_t i) { op({Code::COUNT, width(first), 0, out[i], arguments[0][i]}); });
      return true;
    }
    if (is("cttz.") && n == 2) {  // bits set below the lowest
      if (reader.emits) each(out, [&](size_t i) {
        int less = made(Code::SUB, bits, 0, arguments[0][i], control.constant(1));
        int flipped = made(Code::XOR, bits, 0, arguments[0][i], control.constant(mask_of(bits)));
        op({Code::COUNT, width(first), 0, out[i], made(Code::AND, bits, 0, less, flipped)});
      });
      return true;
    }
    if (is("usub.sat.") && n == 2) {
      if (reader.emits) each(out, [&](size_t i) {
        int less = made(Code::SUB, bits, 0, arguments[0][i], arguments[1][i]);
        int above = made(Code::TEST, bits, UGT, arguments[0][i], arguments[1][i]);
        op({Code::SELECT, 64, 0, out[i], above, less, zero_});
      });
      return true;
    }
    if (name.find(".with.overflow.") != NOWHERE && n == 2 && first.lanes == 1 && out.size() == 2) {
      if (reader.emits) overflow(name, bits, out, arguments[0][0], arguments[1][0]);
      return true;
    }
    static constexpr Entry REDUCTIONS[] = {{"or", static_cast<int>(Code::OR)}, {"and", static_cast<int>(Code::AND)}, {"add", static_cast<int>(Code::ADD)},
                                           {"xor", static_cast<int>(Code::XOR)}, {"mul", static_cast<int>(Code::MUL)}};
    if (is("vector.reduce.") && n == 1) {
      Text how = before(name.substr(14), ".");
      int whole = reader.emits ? arguments[0][0] : 0;
      for (auto [reduction, code] : REDUCTIONS) {
        if (how != reduction) continue;
        if (!reader.emits) return true;
        for (size_t i = 1; i < arguments[0].size(); ++i) whole = made(static_cast<Code>(code), bits, 0, whole, arguments[0][i]);
        op({Code::COPY, 64, 0, out[0], whole});
        return true;
      }
      for (auto [pick, test] : PICKS) {
        if (how != pick.substr(0, 4)) continue;
        if (!reader.emits) return true;
        for (size_t i = 1; i < arguments[0].size(); ++i) {
          int next = control.slot();
          choose(test, bits, next, whole, arguments[0][i]);
          whole = next;
        }
        op({Code::COPY, 64, 0, out[0], whole});
        return true;
      }
    }
    return false;
  }
  void choose(int test, int bits, int out, int a, int b) {
    int first = made(Code::TEST, bits, test, a, b);
    op({Code::SELECT, 64, 0, out, first, a, b});
  }
  void overflow(Text name, int bits, const std::vector<int>& out, int a, int b) {
    bool with_sign = name[0] == 's';
    Text kind = name.substr(1, 3);
    Code code = kind == "add" ? Code::ADD : kind == "sub" ? Code::SUB : Code::MUL;
    op({code, static_cast<uint8_t>(bits), 0, out[0], a, b});
    if (code == Code::MUL) {
      int high = made(with_sign ? Code::HIGHS : Code::HIGH, bits, 0, a, b), usual = zero_;
      if (with_sign) usual = made(Code::ASHR, bits, 0, out[0], control.constant(bits - 1));
      op({Code::TEST, static_cast<uint8_t>(bits), NE, out[1], high, usual});
    } else if (!with_sign) {
      op({Code::TEST, static_cast<uint8_t>(bits), ULT, out[1], code == Code::ADD ? out[0] : a, code == Code::ADD ? a : b});
    } else {  // both operands are on one side of the result, where the second is negated for a difference
      int falls = made(Code::TEST, bits, SLT, out[0], a), down = made(Code::TEST, bits, code == Code::ADD ? SLT : SGT, b, zero_);
      op({Code::XOR, 1, 0, out[1], falls, down});
    }
  }
};

}  // namespace cdmpp
