// Integers of a function that are known before it runs: constants.py.
#pragma once
#include "integers.h"
#include "ir.h"

namespace cdmpp {

class Constants {
 public:
  Function& function;
  std::vector<char> reached;

  explicit Constants(Function& of) : function(of), reached(of.size(), 1), branches_(of.size()) {
    given_ = {{function.id("%task_id"), 0}, {function.id("%num_task"), 1}};
    for (int b = 0; b < of.size(); ++b) {
      Branch branch;
      if (of.successors[b].size() != 2 || !read_branch(of.lines[b], branch)) continue;
      int yes = of.find(unquoted(branch.yes)), no = of.find(unquoted(branch.no));
      if (yes < 0 || no < 0) throw Unsupported();
      branches_[b] = {true, of.operand(branch.condition), {yes}, {no}};
    }
    for (int turn = 0; turn < 2; ++turn) {
      fix({});
      std::vector<char> seen(of.size());
      std::vector<std::pair<int, const Blocks*>> queue{{0, &taken(0)}};
      seen[0] = 1;
      for (size_t i = 0; i < queue.size(); ++i) {
        for (int next : *queue[i].second) if (!seen[next]) { seen[next] = 1; queue.push_back({next, &taken(next)}); }
      }
      reached = seen;
    }
    fix({});
  }
  void fix(const std::vector<std::pair<int, int64_t>>& values) {
    ++epoch_;
    for (int id : changed_) fixed_[id].reset();
    changed_.clear();
    fixed_.resize(function.definitions.size());
    auto set = [&](const auto& pairs) { for (auto [id, number] : pairs) { fixed_[id] = number; changed_.push_back(id); } };
    set(given_);
    set(values);
  }
  Number exact(const Operand& value) { return evaluate(value, false); }
  Number at_most(const Operand& value) { return evaluate(value, true); }
  const Blocks& taken(int block) {
    const Fork& fork = branches_[block];
    if (fork.two) if (Number condition = exact(fork.condition)) return *condition ? fork.yes : fork.no;
    return function.successors[block];
  }

 private:
  enum Kind { UNREAD, UNKNOWN, BINARY, CAST, COMPARE, FIXED, SAME, EXTREME, SELECT, PHI };
  struct Form {
    Kind kind = UNREAD;
    Text name;
    int from = 0, to = 0;
    Operand a, b, c;
    std::vector<std::pair<Operand, int>> incoming;
  };
  struct Fork { bool two = false; Operand condition; Blocks yes, no; };
  struct Memo { uint64_t epoch = 0; Number number; };
  std::vector<Fork> branches_;
  std::vector<std::pair<int, int64_t>> given_;
  std::vector<Number> fixed_;
  std::vector<int> changed_;
  std::vector<Memo> memos_;
  std::vector<std::unique_ptr<Form>> forms_;
  uint64_t epoch_ = 0;

  Number evaluate(const Operand& value, bool most) {
    if (value.id < 0) return value.known ? Number(value.number) : std::nullopt;
    size_t id = value.id;
    if (id < fixed_.size() && fixed_[id]) return fixed_[id];
    if (function.overlaps[id]) return 0;
    while (forms_.size() <= id) forms_.push_back(nullptr);
    if (memos_.size() < 2 * forms_.size()) memos_.resize(4 * forms_.size());
    Memo& memo = memos_[2 * id + most];
    if (memo.epoch == epoch_) return memo.number;
    memo = {epoch_, std::nullopt};  // a value that leads back to itself changes from one iteration to the next
    if (!forms_[id]) forms_[id] = std::make_unique<Form>(read(function.definitions[id].text));
    Number number = compute(*forms_[id], function.definitions[id].block, most);
    return memos_[2 * id + most].number = number;
  }

  Form read(Text text) {
    static constexpr Text BINARIES[] = {"add", "sub", "mul", "sdiv", "udiv", "srem", "urem",
                                        "and", "or", "xor", "shl", "lshr", "ashr"};
    Form form;
    Text a, b, c;
    Scan scan{text};
    auto operands = [&] {
      form.a = function.operand(a);
      if (!b.empty()) form.b = function.operand(b);
      if (!c.empty()) form.c = function.operand(c);
      return form;
    };
    form.kind = UNKNOWN;
    if (!scan.word(form.name)) return form;
    if (is_any(form.name, BINARIES)) {
      bool fits = scan.flags_and_type(form.from) && scan.value(a) && scan.eat(", ") && scan.value(b);
      if (!fits || !scan.rest.empty()) return form;
      form.kind = BINARY;
      return operands();
    }
    if (form.name == "zext" || form.name == "sext" || form.name == "trunc") {
      bool fits = scan.flags_and_type(form.from) && scan.value(a) && scan.eat(" to ") && scan.type(form.to);
      if (!fits || !scan.rest.empty()) return form;
      form.kind = CAST;
      return operands();
    }
    if (form.name == "icmp") {
      scan.eat(" samesign");
      int bits;
      if (!scan.eat(" ") || !scan.word(form.name) || !scan.eat(" ")) return form;
      if (scan.eat("ptr ")) {
        if (!scan.name(a) || scan.rest != ", null" || (form.name != "eq" && form.name != "ne")) return form;
        if (has(text, "samesign")) return form;
        form.kind = FIXED;
        form.a = {-1, true, form.name == "ne"};
        return form;
      }
      bool fits = scan.type(bits) && scan.eat(" ") && scan.value(a) && scan.eat(", ") && scan.value(b);
      if (!fits || !scan.rest.empty()) return form;
      form.kind = COMPARE;
      return operands();
    }
    if (form.name == "freeze") {
      int bits;
      if (!(scan.eat(" ") && scan.type(bits) && scan.eat(" ") && scan.value(a) && scan.rest.empty())) return form;
      form.kind = SAME;
      return operands();
    }
    if (form.name == "phi") {
      int bits;
      if (!(scan.eat(" ") && scan.type(bits) && scan.eat(" "))) return form;
      form.kind = PHI;
      for (auto [value, block] : cdmpp::incoming(scan.rest)) {
        Scan whole{value};
        if (Text found; !whole.value(found) || !whole.rest.empty()) continue;
        form.incoming.push_back({function.operand(value), function.find(unquoted(block))});
      }
      return form;
    }
    if (form.name == "select") {
      int bits;
      bool fits = scan.eat(" i1 ") && scan.value(a) && scan.eat(", ") && scan.type(bits) && scan.eat(" ") &&
                  scan.value(b) && scan.eat(", ") && scan.type(bits) && scan.eat(" ") && scan.value(c);
      if (!fits || !scan.rest.empty()) return form;
      form.kind = SELECT;
      return operands();
    }
    Scan call{text};
    call.eat("tail ") || call.eat("musttail ") || call.eat("notail ");
    if (call.eat("call i32 ") && !call.rest.starts_with("@llvm")) {
      form.kind = FIXED;
      form.a = {-1, true, 0};
      return form;
    }
    for (size_t at = text.find("@llvm."); at != NOWHERE; at = text.find("@llvm.", at + 1)) {
      Scan inside{text.substr(at + 6)};
      int bits;
      form.name = inside.rest.substr(0, 4);
      if (form.name != "smin" && form.name != "smax" && form.name != "umin" && form.name != "umax") continue;
      inside.rest.remove_prefix(4);
      if (inside.eat(".") && inside.type(bits) && inside.eat("(") && inside.type(bits) && inside.eat(" ") &&
          inside.value(a) && inside.eat(", ") && inside.type(bits) && inside.eat(" ") && inside.value(b) &&
          inside.eat(")")) {
        form.kind = EXTREME;
        return operands();
      }
    }
    return form;
  }

  Number compute(const Form& form, int block, bool most) {
    switch (form.kind) {
      case FIXED: return form.a.number;
      case SAME: return evaluate(form.a, most);
      case BINARY: {
        Number a = evaluate(form.a, most), b = evaluate(form.b, most);
        return a && b ? wrapped(binary(form.name, *a, *b), form.from) : std::nullopt;
      }
      case CAST: {
        Number a = evaluate(form.a, most);
        if (!a) return std::nullopt;
        if (form.from > 64) throw Unsupported();
        Wide number = *a;
        if (form.name == "zext" && *a < 0) number &= (Wide(1) << form.from) - 1;
        return wrapped(number, form.to);
      }
      case COMPARE: {
        Number a = evaluate(form.a, most), b = evaluate(form.b, most);
        return a && b ? compared(form.name, *a, *b) : std::nullopt;
      }
      case EXTREME: {
        Number a = evaluate(form.a, most), b = evaluate(form.b, most);
        bool smallest = form.name.ends_with("min");
        if (a && b && (form.name[0] == 's' || std::min(*a, *b) >= 0)) {
          return smallest ? std::min(*a, *b) : std::max(*a, *b);
        }
        return most && smallest ? (a ? a : b) : std::nullopt;
      }
      case SELECT: {
        Number chosen = evaluate(form.a, most);
        return chosen ? evaluate(*chosen ? form.b : form.c, most) : std::nullopt;
      }
      case PHI: {
        std::vector<Number> numbers;
        for (const auto& [value, source] : form.incoming) {
          if (source < 0 || !reached[source]) continue;
          const Blocks& next = taken(source);
          if (std::find(next.begin(), next.end(), block) == next.end()) continue;
          Number number = evaluate(value, most);
          if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
        }
        return numbers.size() == 1 ? numbers[0] : std::nullopt;
      }
      default: return std::nullopt;
    }
  }
};

}  // namespace cdmpp
