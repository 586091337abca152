// Instructions of x86-64 that compute lanes of vectors, and masks.
#pragma once
#include "x86_moves.h"

namespace cdmpp {

class X86Lanes : public X86Moves {
 protected:
  using X86Moves::X86Moves;

  // What moves or computes floats only changes the places that it writes to, which are not known any more.
  void read_vector(Text name, const std::vector<Text>& operands) {
    if (name.ends_with("comiss") || name.ends_with("comisd")) { flags_ = {}; return; }
    if (operands.empty()) return;
    if (with_vectors_ && (name[0] == 'k' ? read_mask(name, operands) : read_lanes(name[0] == 'v' ? name.substr(1) : name, operands))) return;
    bool tests = name.starts_with("kortest") || name.starts_with("ktest") || name.ends_with("ptest") || has(name, "testp");
    if (tests) { flags_ = {}; return; }
    if (with_vectors_ && (has(name, "gather") || has(name, "scatter"))) spend_mask(operands);
    lose(name, operands);
  }

 private:
  // Instructions; false at those that nobody follows. `name` is without the `v` in front.
  bool read_lanes(Text name, const std::vector<Text>& operands) {
    if (operands.size() < 2) return false;
    Target target = target_of(operands.back());
    return read_move(name, operands, target) || read_transfer(name, operands, target) || read_shuffle(name, operands, target) ||
           read_lookup(name, operands, target) ||
           read_blend(name, operands, target) || read_compare(name, operands, target) || read_shift(name, operands, target) ||
           read_resize(name, operands, target) || read_binary(name, operands, target);
  }

  bool read_compare(Text name, const std::vector<Text>& operands, const Target& target) {
    size_t n = operands.size();
    bool compares = name.starts_with("pcmp") && n <= 3;
    bool tests = name.starts_with("ptestm") || name.starts_with("ptestnm");
    if (!compares && !tests) return false;
    int bytes = bytes_of(operands), width = lane_width(name), mask = mask_of_name(target.place);
    Text how = name.substr(tests ? 5 : 4, name.size() - (tests ? 6 : 5));
    bool with_sign = !how.ends_with("u");
    if (!with_sign) how.remove_suffix(1);
    bool inverts = how == "neq" || how == "nlt" || how == "le";
    bool greater = how == "gt" || how == "nle" || how == "le", less = how == "lt" || how == "nlt";
    if (!tests && !greater && !less && how != "eq" && how != "neq") return false;
    if (!tests && operands[0] == second(operands, 3) && (how == "eq" || how == "gt")) {
      Chunks same = filled(how == "eq" ? ones() : zero_);
      if (mask >= 0) set_mask(target, signs(same, bytes, width));
      else store(target, same, bytes, width);
      return true;
    }
    Chunks b = load(operands[0], bytes, width), a = load(second(operands, 3), bytes, width);
    Lanewise relation = with_sign ? PGT : PUGT;
    auto each = [&](int i) {
      if (tests) {
        int zero = packed(PEQ, width, made(Code::AND, 64, 0, a[i], b[i]), zero_);
        return how == "nm" ? zero : inverted(zero);
      }
      int holds = greater ? packed(relation, width, a[i], b[i]) : less ? packed(relation, width, b[i], a[i]) : packed(PEQ, width, a[i], b[i]);
      return inverts ? inverted(holds) : holds;
    };
    Chunks found = mapped(bytes, each);
    if (mask >= 0) set_mask(target, signs(found, bytes, width));
    else store(target, found, bytes, width);
    return true;
  }

  bool read_shift(Text name, const std::vector<Text>& operands, const Target& target) {
    static constexpr Entry SHIFTS[] = {{"psll", PSHL}, {"psrl", PLSHR}, {"psra", PSAR}};
    for (auto [stem, how] : SHIFTS) {
      if (!name.starts_with(stem)) continue;
      int bytes = bytes_of(target.place), width = lane_width(name);
      Text kind = name.substr(stem.size());
      if (kind == "dq") {
        int imm = immediate(operands[0]);
        Chunks a = load(second(operands, 3), bytes);
        auto pick = [&](int i) {
          int at = i % 16 + (how == PSHL ? -imm : imm);
          return at < 0 || at > 15 ? Piece{zero_, 0} : piece(a, 8, i / 16 * 16 + at);
        };
        store(target, shuffled(8, bytes, pick), bytes, 8);
        return true;
      }
      Chunks a = load(second(operands, 3), bytes, width), by;
      if (kind.starts_with('v')) {
        by = load(operands[0], bytes, width);
      } else if (operands[0].starts_with('$')) {
        uint64_t count = std::min(immediate(operands[0]), width), lanes = 0;
        for (int i = 0; i < 64; i += width) lanes |= count << i;
        by = filled(control.constant(lanes));
      } else {
        int count = load_one(operands[0], 64);
        by = shuffled(width, bytes, [&](int) { return Piece{count, 0}; });
      }
      store(target, mapped(bytes, [&](int i) { return packed(static_cast<Lanewise>(how), width, a[i], by[i]); }), bytes, width);
      return true;
    }
    return false;
  }

  // Lanes of another width.
  bool read_resize(Text name, const std::vector<Text>& operands, const Target& target) {
    static constexpr Entry PACKS[] = {{"packssdw", PSATS}, {"packsswb", PSATS}, {"packusdw", PSATU}, {"packuswb", PSATU}};
    for (auto [pack, how] : PACKS) {
      if (name != pack) continue;
      int bytes = bytes_of(target.place), from = name.ends_with("dw") ? 32 : 16, to = from / 2, half = 64 / to;
      Chunks b = load(operands[0], bytes, from), a = load(second(operands, 3), bytes, from);
      for (int i = 0; i < bytes / 8; ++i) for (Chunks* one : {&a, &b}) (*one)[i] = packed(static_cast<Lanewise>(how), from, (*one)[i], zero_);
      auto pick = [&](int i) {
        int lane = i / (2 * half), at = i % (2 * half);
        return piece(at < half ? a : b, from, lane * half + at % half);
      };
      store(target, shuffled(to, bytes, pick), bytes, to);
      return true;
    }
    if (!name.starts_with("pmov") || operands.size() != 2 || name.size() < 6) return false;
    bool extends = name.size() == 8 && name[5] == 'x' && (name[4] == 's' || name[4] == 'z');
    bool narrows = name.size() == 6 && has("wdq", name.substr(4, 1)) && has("bwd", name.substr(5, 1));
    if (!extends && !narrows) return false;
    Text letters = name.substr(extends ? 6 : 4);
    int from = lane_width(letters.substr(0, 1)), to = lane_width(letters.substr(1, 1));
    int whole = extends ? bytes_of(target.place) : bytes_of(operands[0]), bytes = extends ? whole : whole * to / from;
    int read_bytes = extends ? whole * from / to : whole;
    Chunks a;
    if (extends && read_bytes < 8 && in_memory(operands[0])) a = filled(load_one(operands[0], 8 * read_bytes));
    else a = load(operands[0], read_bytes);
    int lanes = 8 * whole / std::max(from, to);
    auto pick = [&](int i) {
      if (i >= lanes) return Piece{zero_, 0};
      Piece one = piece(a, from, i);
      if (!extends || one.slot == lost_) return one;
      int part = one.shift ? made(Code::LSHR, 64, 0, one.slot, control.constant(one.shift)) : one.slot;
      part = name[4] == 's' ? made(Code::SEXT, from, to, part) : made(Code::COPY, from, 0, part);
      return Piece{part, 0};
    };
    if (bytes >= 8) store(target, shuffled(to, bytes, pick), bytes, to);
    else if (vector_of(target.place) >= 0) store(target, shuffled(to, 16, pick), 16, to);
    else return false;
    return true;
  }

  bool read_binary(Text name, const std::vector<Text>& operands, const Target& target) {
    if (vector_of(target.place) < 0) return false;
    int bytes = bytes_of(target.place), width = lane_width(name);
    size_t n = operands.size();
    if (name.starts_with("pternlog") && n == 4) {
      int imm = immediate(operands[0]);
      Chunks c = load(operands[1], bytes, width), b = load(operands[2], bytes, width), a = load(target.place, bytes);
      auto each = [&](int i) {
        if (imm == 255) return ones();
        int found = zero_;
        for (int row = 0; row < 8; ++row) {
          if (!(imm >> row & 1)) continue;
          int x = row & 4 ? a[i] : inverted(a[i]), y = row & 2 ? b[i] : inverted(b[i]), z = row & 1 ? c[i] : inverted(c[i]);
          found = made(Code::OR, 64, 0, found, made(Code::AND, 64, 0, x, made(Code::AND, 64, 0, y, z)));
        }
        return found;
      };
      store(target, mapped(bytes, each), bytes, width);
      return true;
    }
    if (n > 3) return false;
    struct Bits { Text stem; Code code; };
    static constexpr Bits BITS[] = {{"and", Code::AND}, {"or", Code::OR}, {"xor", Code::XOR}, {"andn", Code::PACKED}};
    Text logic = name[0] == 'p' ? name.substr(1) : name;
    for (Text ending : {"ps", "pd"}) if (name[0] != 'p' && logic.ends_with(ending)) logic.remove_suffix(2);
    if (name[0] == 'p' && (logic.ends_with("d") || logic.ends_with("q")) && !is_any(logic, std::array<Text, 1>{"and"})) logic.remove_suffix(1);
    for (auto [stem, code] : BITS) {
      if (logic != stem) continue;
      if (code == Code::XOR && operands[0] == second(operands, 3)) { store(target, filled(zero_), bytes, width); return true; }
      Chunks b = load(operands[0], bytes, width), a = load(second(operands, 3), bytes, width);
      store(target, mapped(bytes, [&](int i) { return made(code, 64, PANDN, a[i], b[i]); }), bytes, width);
      return true;
    }
    struct Packing { Text stem; Lanewise how; };
    static constexpr Packing ALL[] = {{"padd", PADD}, {"psub", PSUB}, {"pmins", PSMIN}, {"pmaxs", PSMAX}, {"pminu", PUMIN},
                                      {"pmaxu", PUMAX}, {"pmull", PMULL}, {"pmulu", PMULU}, {"pmul", PMULS}, {"pabs", PABS}};
    for (auto [stem, how] : ALL) {
      bool multiplies = how == PMULU || how == PMULS;
      if (!name.starts_with(stem) || name.size() != stem.size() + (multiplies ? 2 : 1)) continue;
      if (multiplies && !name.ends_with("dq")) continue;
      Chunks b = load(operands[0], bytes, width), a = how == PABS ? b : load(second(operands, 3), bytes, width);
      bool plain = width == 64 && (how == PADD || how == PSUB || how == PMULL);
      auto each = [&](int i) {
        if (plain) return made(how == PADD ? Code::ADD : how == PSUB ? Code::SUB : Code::MUL, 64, 0, a[i], b[i]);
        return packed(how, width, a[i], b[i]);
      };
      store(target, mapped(bytes, each), bytes, width);
      return true;
    }
    return false;
  }

  // Masks.

  bool read_mask(Text name, const std::vector<Text>& operands) {
    size_t n = operands.size();
    if (n < 2) return false;
    int width = lane_width(name), mask = mask_of_name(operands.back());
    auto of = [&](size_t i) { return mask_of_name(operands[i]); };
    Text stem = name.substr(0, name.size() - 1);
    int full = control.constant(cdmpp::mask_of(width));
    if (stem == "kmov") {
      int from = of(0) >= 0 ? made(Code::COPY, width, 0, of(0)) : made(Code::COPY, width, 0, read(operands[0], width));
      if (mask >= 0) set(mask, from);
      else write(operands.back(), operands.back().starts_with('%') ? std::max(width, 32) : width, from);
      return true;
    }
    if (stem == "kortest" || stem == "ktest") {
      int a = of(1), b = of(0), first, other;
      if (stem == "ktest") {
        first = made(Code::AND, width, 0, a, b);
        other = made(Code::AND, width, 0, made(Code::XOR, width, 0, a, full), b);
      } else {
        first = made(Code::OR, width, 0, a, b);
        other = made(Code::XOR, width, 0, first, full);
      }
      compared(TESTED, width, first, other);
      return true;
    }
    if (mask < 0) return false;
    struct Binary { Text stem; Code code; bool inverts; };
    static constexpr Binary BINARIES[] = {{"kand", Code::AND, false}, {"kor", Code::OR, false}, {"kxor", Code::XOR, false},
                                          {"kxnor", Code::XOR, true}, {"kadd", Code::ADD, false}, {"kandn", Code::AND, false}};
    for (auto [binary, code, inverts] : BINARIES) {
      if (stem != binary || n != 3) continue;
      if (code == Code::XOR && of(0) == of(1)) { set(mask, inverts ? full : zero_); return true; }
      int a = stem == "kandn" ? made(Code::XOR, width, 0, of(1), full) : of(1), value = made(code, width, 0, a, of(0));
      set(mask, inverts ? made(Code::XOR, width, 0, value, full) : value);
      return true;
    }
    if (stem == "knot") { set(mask, made(Code::XOR, width, 0, of(0), full)); return true; }
    if ((stem == "kshiftl" || stem == "kshiftr") && n == 3) {
      int by = immediate(operands[0]);
      if (by >= width) set(mask, zero_);
      else set(mask, made(stem == "kshiftl" ? Code::SHL : Code::LSHR, width, 0, of(1), control.constant(by)));
      return true;
    }
    if (name.starts_with("kunpck") && n == 3) {
      int half = name == "kunpckbw" ? 8 : name == "kunpckwd" ? 16 : 32;
      set(mask, made(Code::JOIN, half, half, made(Code::COPY, half, 0, of(0)), of(1)));
      return true;
    }
    return false;
  }
};

}  // namespace cdmpp
