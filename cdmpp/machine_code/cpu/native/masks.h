// Bytes that decide branches: masks that a program is given are set, as when it is measured, and what it makes of them.
#pragma once
#include <map>
#include <optional>
#include "ir.h"

namespace cdmpp {

constexpr uint64_t SET = 1;

class Masks {
 public:
  using Known = std::optional<uint64_t>;  // of each lane, where all hold the same

  // `owner` is the function whose pointers the others know by the same names.
  Masks(const std::vector<const Function*>& functions, const Function* owner) : owner_(owner) {
    for (const Function* function : functions) {
      for (const Definition& one : function->definitions) there_ |= one.text.starts_with("load i8, ");
    }
    if (!there_) return;
    for (const Function* function : functions) {
      for (const auto& lines : function->lines) for (Text line : lines) if (line.starts_with("store ") || has(line, "@llvm.m")) find_store(*function, line);
    }
  }

  // Of an instruction that loads one byte.
  Known loaded(const Function& function, Text text) const {
    if (!there_ || !text.starts_with("load i8, ")) return {};
    return value_of(function, text, MOST_DEEP);
  }
  // Of all bytes that a function loads one by one; nothing where they differ.
  Known all(const Function& function) const {
    Known common;
    for (const Definition& one : function.definitions) {
      if (!there_ || !one.text.starts_with("load i8, ")) continue;
      Known value = loaded(function, one.text);
      if (!value || (common && *common != *value)) return {};
      common = value;
    }
    return common;
  }

 private:
  static constexpr int MOST_DEEP = 64;  // values behind each other that are followed
  struct Store { const Function* function; Text value; int bits; };
  const Function* owner_;
  bool there_ = false, anywhere_ = false;  // whether a byte is loaded; whether bytes are stored nobody knows where
  std::map<Text, std::vector<Store>> stores_;  // of bytes, by the name of what they go to
  mutable std::map<Text, Known> contents_;     // of these

  static bool read_lanes(Scan& scan, int& bits) {
    int lanes;
    if (!scan.eat("<")) return scan.type(bits);
    return scan.integer(lanes) && scan.eat(" x ") && scan.type(bits) && scan.eat(">");
  }
  void find_store(const Function& function, Text line) {
    Scan scan{line};
    int bits = 0;
    size_t place = line.rfind(", ptr %");
    if (line.starts_with("store ")) {
      scan.eat("store ");
      if (!read_lanes(scan, bits) || bits != 8 || !scan.eat(" ")) return;
      Text value = scan.rest.substr(0, scan.rest.find(", ptr "));
      Text base = place == NOWHERE ? Text() : base_of(function, line.substr(place + 6));
      anywhere_ |= base.empty();
      stores_[base].push_back({&function, value, bits});
      return;
    }
    if (has(line, "@llvm.masked.")) { anywhere_ |= has(line, " x i8> ") && !has(line, "@llvm.masked.load"); return; }
    if (!has(line, "@llvm.mem")) return;
    size_t target = line.find('%', line.find("@llvm.mem"));  // filled or copied: nobody knows with what type
    Text base = target == NOWHERE ? Text() : base_of(function, line.substr(target));
    anywhere_ |= base.empty();
    stores_[base].push_back({&function, {}, 8});
  }

  static Text text_of(const Function& function, Text name) {
    int id = function.known_id(name);
    return id < 0 || function.definitions[id].block < 0 ? Text() : function.definitions[id].text;
  }
  // Name of what a pointer points into; empty where it may be several.
  static Text base_of(const Function& function, Text pointer) {
    for (int deep = 0; deep < MOST_DEEP; ++deep) {
      Scan scan{pointer};
      Text name;
      if (!scan.name(name)) return {};
      Text text = text_of(function, name);
      if (text.starts_with("phi ") || text.starts_with("select ")) return {};
      if (!text.starts_with("getelementptr ")) return name;
      size_t at = text.find(", ptr ");
      if (at == NOWHERE) return {};
      pointer = text.substr(at + 6);
    }
    return {};
  }
  bool is_given(const Function& function, Text name) const {
    if (!owner_) return false;
    auto loads = [&](const Function& one) { return text_of(one, name).starts_with("load ptr, "); };
    auto takes = [&](const Function& one) {
      size_t at = one.header.find(name);
      return at != NOWHERE && has(",)", one.header.substr(at + name.size(), 1));
    };
    return (takes(*owner_) || loads(*owner_)) && (&function == owner_ || loads(function));
  }
  Known held(const Function& function, Text pointer, int deep) const {
    Text base = base_of(function, pointer);
    if (base.empty() || anywhere_) return {};
    auto found = stores_.find(base);
    if (found == stores_.end()) return is_given(function, base) ? Known(SET) : Known();
    auto [told, is_new] = contents_.try_emplace(base);  // unknown to what it is made of itself
    if (!is_new) return told->second;
    Known common;
    for (const Store& store : found->second) {
      Known value = operand(*store.function, store.value, store.bits, deep);
      if (!value || (common && *common != *value)) return {};
      common = value;
    }
    return contents_[base] = common;
  }

  Known operand(const Function& function, Text text, int bits, int deep) const {
    Scan scan{text};
    Text found;
    uint64_t most = bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
    if (scan.eat("zeroinitializer")) return 0;
    if (scan.eat("splat (")) { int inner; return scan.type(inner) && scan.eat(" ") ? operand(function, before(scan.rest, ")"), bits, deep) : Known(); }
    if (scan.eat("true")) return 1;
    if (scan.eat("false")) return 0;
    if (scan.name(found)) return deep > 0 ? value_of(function, text_of(function, found), deep - 1) : Known();
    return scan.number(found) ? Known(static_cast<uint64_t>(to_number(found)) & most) : Known();
  }
  // What an instruction makes; nothing where it is not one of those that masks are computed by.
  Known value_of(const Function& function, Text text, int deep) const {
    Scan scan{text};
    Text name, word;
    int bits;
    if (!scan.word(name) || !scan.eat(" ")) return {};
    static constexpr Text FLAGS[] = {"nuw ", "nsw ", "nneg ", "disjoint ", "samesign "};
    for (Text flag : FLAGS) scan.eat(flag);
    if (name == "icmp" && (!scan.word(word) || !scan.eat(" "))) return {};
    if (!read_lanes(scan, bits)) return {};
    if (name == "load") return bits == 8 && scan.eat(", ptr ") ? held(function, scan.rest, deep) : Known();
    if (!scan.eat(" ")) return {};
    Known first = operand(function, scan.rest, bits, deep);
    if (!first) return {};
    if (name == "freeze" || name == "zext") return first;
    if (name == "trunc" || name == "sext") {
      int to;
      size_t at = scan.rest.find(" to ");
      if (at == NOWHERE) return {};
      scan.rest.remove_prefix(at + 4);
      if (!read_lanes(scan, to) || to > 64) return {};
      bool fills = name == "sext" && *first >> (bits - 1) & 1;
      uint64_t wide = fills ? *first | ~uint64_t(0) << (bits - 1) : *first;
      return to >= 64 ? wide : wide & ((uint64_t(1) << to) - 1);
    }
    size_t comma = scan.rest.find(", ");
    if (comma == NOWHERE) return {};
    scan.rest.remove_prefix(comma + 2);
    if (name == "select") {
      for (bool yes : {true, false}) {
        if (!read_lanes(scan, bits) || !scan.eat(" ")) return {};
        if (yes == (*first & 1)) return operand(function, scan.rest, bits, deep);
        scan.rest.remove_prefix(std::min(scan.rest.find(", "), scan.rest.size() - 2) + 2);
      }
    }
    Known second = operand(function, scan.rest, bits, deep);
    if (!second) return {};
    if (name == "and") return *first & *second;
    if (name == "or") return *first | *second;
    if (name == "xor") return *first ^ *second;
    if (name != "icmp" || (word != "eq" && word != "ne")) return {};
    return (*first == *second) == (word == "eq");
  }
};

}  // namespace cdmpp
