// Instructions of x86-64 that only move lanes of vectors: whole ones, to and from integers, in another order, chosen of two.
#pragma once
#include "x86_vectors.h"

namespace cdmpp {

// Each reads an instruction without the `v` in front of its name; false at those that it does not follow.
class X86Moves : public X86Vectors {
 protected:
  using X86Vectors::X86Vectors;

  bool read_move(Text name, const std::vector<Text>& operands, const Target& target) {
    size_t n = operands.size();
    static constexpr Text MOVES[] = {"movaps", "movapd", "movups", "movupd", "movdqa", "movdqu", "lddqu"};
    if (n == 2 && starts_with_any(name, MOVES)) {
      int bytes = bytes_of(operands), width = lane_width(name);
      store(target, load(operands[0], bytes), bytes, width);
      return true;
    }
    bool one = name == "movd" || name == "movq" || name == "movss" || name == "movsd";
    if (!one || target.mask >= 0) return false;
    int width = name == "movd" || name == "movss" ? 32 : 64, vector = vector_of(target.place);
    bool merges = name[3] == 's' && vector_of(operands[0]) >= 0 && vector >= 0;
    if (merges) {
      Chunks low = load(operands[0], 16), rest = load(second(operands, 3), 16);
      store(target, shuffled(width, 16, [&](int i) { return piece(i ? rest : low, width, i); }), 16, width);
      return true;
    }
    if (n != 2) return false;
    int value = load_one(operands[0], width);
    if (vector >= 0) {
      Chunks chunks = filled(zero_);
      chunks[0] = value;
      store(target, chunks, 16, width);
    } else if (target.place.starts_with('%')) {
      write(target.place, width, value);
    } else {
      Place place = read_place(target.place, false);
      if (place.on_stack) store_one(place, 0, value, width);
    }
    return true;
  }

  // Between vectors and what integers or flags are made of.
  bool read_transfer(Text name, const std::vector<Text>& operands, const Target& target) {
    size_t n = operands.size();
    if (name.starts_with("movmsk") || name == "pmovmskb") {
      write(target.place, 32, signs(load(operands[0], 64), bytes_of(operands), lane_width(name)));
      return true;
    }
    if (name == "ptest" || name == "testps" || name == "testpd") {
      int bytes = bytes_of(operands), width = lane_width(name), both = zero_, other = zero_;
      uint64_t bits = name == "ptest" ? ~uint64_t(0) : width == 32 ? 0x8000000080000000 : 0x8000000000000000;
      Chunks a = load(operands[1], bytes), b = load(operands[0], bytes);
      for (int i = 0; i < bytes / 8; ++i) {
        int part = made(Code::AND, 64, 0, b[i], control.constant(bits));
        both = made(Code::OR, 64, 0, both, made(Code::AND, 64, 0, a[i], part));
        other = made(Code::OR, 64, 0, other, packed(PANDN, 64, a[i], part));
      }
      compared(TESTED, 64, both, other);
      return true;
    }
    bool floats = name == "extractps";
    if ((name.starts_with("pextr") || floats) && n == 3) {
      int width = lane_width(name), lane = immediate(operands[0]) % (LANE / width);
      auto [slot, shift] = piece(load(operands[1], 16), width, lane);
      int value = made(Code::COPY, width, 0, shift ? made(Code::LSHR, 64, 0, slot, control.constant(shift)) : slot);
      if (target.place.starts_with('%')) { write(target.place, width == 64 ? 64 : 32, value); return true; }
      Place place = read_place(target.place, false);
      if (place.on_stack) { if (width >= 32) store_one(place, 0, value, width); else write(target.place, width, value); }
      return true;
    }
    if (name.starts_with("pinsr") && n >= 3) {
      int width = lane_width(name), lane = immediate(operands[0]) % (LANE / width), value = load_one(operands[1], width);
      Chunks rest = load(second(operands, 4), 16);
      store(target, shuffled(width, 16, [&](int i) { return i == lane ? Piece{value, 0} : piece(rest, width, i); }), 16, width);
      return true;
    }
    if (name == "insertps" && n >= 3) {
      int imm = immediate(operands[0]);
      bool loads = in_memory(operands[1]);
      Chunks from = load(operands[1], 16), rest = load(second(operands, 4), 16);
      int value = loads ? load_one(operands[1], 32) : 0;
      Piece fresh = loads ? Piece{value, 0} : piece(from, 32, imm >> 6);
      auto pick = [&](int i) { return imm >> i & 1 ? Piece{zero_, 0} : i == (imm >> 4 & 3) ? fresh : piece(rest, 32, i); };
      store(target, shuffled(32, 16, pick), 16, 32);
      return true;
    }
    bool spreads = name.starts_with("pbroadcast") && !name.starts_with("pbroadcastm");
    if ((spreads || name == "broadcastss" || name == "broadcastsd") && n == 2) {
      int bytes = bytes_of(target.place), width = lane_width(name), value = load_one(operands[0], width);
      store(target, shuffled(width, bytes, [&](int) { return Piece{value, 0}; }), bytes, width);
      return true;
    }
    if (name.starts_with("pmovm2")) {
      int bytes = bytes_of(target.place), width = lane_width(name), mask = mask_of_name(operands[0]);
      store(target, mapped(bytes, [&](int i) { return spread(mask, i, width); }), bytes, width);
      return true;
    }
    if (name.starts_with("pmov") && name.ends_with("2m")) {
      set_mask(target, signs(load(operands[0], 64), bytes_of(operands), lane_width(name.substr(0, name.size() - 2))));
      return true;
    }
    return false;
  }

  // Lanes in another order, which the instruction names.
  bool read_shuffle(Text name, const std::vector<Text>& operands, const Target& target) {
    size_t n = operands.size();
    bool to_vector = vector_of(target.place) >= 0;
    int parts = name.ends_with("128") || name.ends_with("32x4") || name.ends_with("64x2") ? 2 : name.ends_with("32x8") || name.ends_with("64x4") ? 4 : 0;
    int width = has(name, "64x") || parts == 0 ? lane_width(name) : 32, imm = immediate(operands[0]);
    if (parts && name.starts_with("broadcast")) {
      Chunks from = load(operands[0], 8 * parts);
      int bytes = bytes_of(target.place);
      store(target, mapped(bytes, [&](int i) { return from[i % parts]; }), bytes, width);
      return true;
    }
    if (parts && name.starts_with("extract") && n == 3) {
      Chunks from = load(operands[1], 64);
      int first = imm * parts % CHUNKS;
      store(target, mapped(8 * parts, [&](int i) { return from[first + i]; }), 8 * parts, width);
      return true;
    }
    if (parts && name.starts_with("insert") && n == 4) {
      int bytes = bytes_of(target.place), first = imm * parts % (bytes / 8);
      Chunks from = load(operands[1], 8 * parts), rest = load(operands[2], bytes);
      store(target, mapped(bytes, [&](int i) { return i >= first && i < first + parts ? from[i - first] : rest[i]; }), bytes, width);
      return true;
    }
    if ((name == "perm2i128" || name == "perm2f128") && n == 4) {
      Chunks high = load(operands[1], 32), low = load(operands[2], 32);
      auto pick = [&](int i) {
        int how = imm >> (i / 2 * 4) & 15;
        return how & 8 ? zero_ : (how & 2 ? high : low)[2 * (how & 1) + i % 2];
      };
      store(target, mapped(32, pick), 32, 64);
      return true;
    }
    if (!to_vector) return false;
    int bytes = bytes_of(target.place);
    auto ordered = [&](int w, auto from) {  // `from`: which operand and which lane
      auto pick = [&](int i) { auto [chunks, lane] = from(i); return piece(*chunks, w, lane); };
      store(target, shuffled(w, bytes, pick), bytes, lane_width(name));
      return true;
    };
    using From = std::pair<const Chunks*, int>;
    if (n == 3 && (name == "pshufd" || name == "permilps" || name == "pshuflw" || name == "pshufhw") && operands[0].starts_with('$')) {
      Chunks a = load(operands[1], bytes, width);
      bool words = name != "pshufd" && name[1] == 's', high = name[5] == 'h';
      if (words) return ordered(16, [&](int i) { return From{&a, (i & 4) != (high ? 4 : 0) ? i : (i & ~3) + (imm >> 2 * (i & 3) & 3)}; });
      return ordered(32, [&](int i) { return From{&a, (i & ~3) + (imm >> 2 * (i & 3) & 3)}; });
    }
    if (n == 3 && (name == "permq" || name == "permpd") && operands[0].starts_with('$')) {
      Chunks a = load(operands[1], bytes, width);
      return ordered(64, [&](int i) { return From{&a, (i & ~3) + (imm >> 2 * (i & 3) & 3)}; });
    }
    if (n == 3 && name == "permilpd" && operands[0].starts_with('$')) {
      Chunks a = load(operands[1], bytes, width);
      return ordered(64, [&](int i) { return From{&a, (i & ~1) + (imm >> i & 1)}; });
    }
    if (n == 2 && (name == "movshdup" || name == "movsldup" || name == "movddup")) {
      Chunks a = load(operands[0], bytes);
      if (name == "movddup") return ordered(64, [&](int i) { return From{&a, i & ~1}; });
      return ordered(32, [&](int i) { return From{&a, (i & ~1) + (name[4] == 'h')}; });
    }
    bool imms = operands[0].starts_with('$');
    if ((n < 2 && !imms) || (n < 3 && imms)) return false;
    bool unpacks = name.starts_with("punpck") || name.starts_with("unpck"), halves = name == "movlhps" || name == "movhlps";
    if (!imms && (unpacks || halves)) {
      Chunks b = load(operands[0], bytes, width), a = load(second(operands, 3), bytes, width);
      if (name == "movhlps") return ordered(64, [&](int i) { return From{i ? &a : &b, 1}; });
      if (name == "movlhps") return ordered(64, [&](int i) { return From{i ? &b : &a, 0}; });
      bool high = name[name[0] == 'p' ? 6 : 5] == 'h';
      int w = width;
      if (name.starts_with("punpck")) w = name.ends_with("bw") ? 8 : name.ends_with("wd") ? 16 : name.ends_with("qdq") ? 64 : 32;
      int per = LANE / w;
      return ordered(w, [&](int i) { return From{i & 1 ? &b : &a, i / per * per + i % per / 2 + (high ? per / 2 : 0)}; });
    }
    if (!imms) return false;
    static constexpr Text PAIRS[] = {"shufps", "shufpd", "palignr", "alignd", "alignq", "shufi32x4", "shufi64x2", "shuff32x4", "shuff64x2"};
    if (!is_any(name, PAIRS)) return false;
    Chunks b = load(operands[1], bytes, width), a = load(second(operands, 4), bytes, width);
    if (name == "shufps") return ordered(32, [&](int i) { return From{i & 2 ? &b : &a, (i & ~3) + (imm >> 2 * (i & 3) & 3)}; });
    if (name == "shufpd") return ordered(64, [&](int i) { return From{i & 1 ? &b : &a, (i & ~1) + (imm >> i & 1)}; });
    if (name == "palignr") {
      if (imm > 16) return false;
      return ordered(8, [&](int i) { int at = i % 16 + imm; return From{at < 16 ? &b : &a, i / 16 * 16 + at % 16}; });
    }
    if (name.starts_with("align")) {
      int lanes = bytes * 8 / width;
      return ordered(width, [&](int i) { int at = i + imm % lanes; return From{at < lanes ? &b : &a, at % lanes}; });
    }
    int lanes = bytes / 16, bits = lanes == 4 ? 2 : 1;
    return ordered(64, [&](int i) {
      int lane = i / 2;
      return From{lane < lanes / 2 ? &a : &b, 2 * (imm >> bits * lane & (lanes - 1)) + i % 2};
    });
  }

  // Lanes that lanes of another vector number.
  bool read_lookup(Text name, const std::vector<Text>& operands, const Target& target) {
    bool bytes_in_lane = name == "pshufb", in_lane = bytes_in_lane || name.starts_with("permil"), two = name.starts_with("permt2") || name.starts_with("permi2");
    if ((!in_lane && !two && !name.starts_with("perm")) || operands.size() > 3 || operands[0].starts_with('$')) return false;
    int bytes = bytes_of(target.place), width = lane_width(name), lanes = 64 / width, each = in_lane ? 2 : bytes / 8;
    Chunks first = load(operands[0], bytes, width), other = load(second(operands, 3), bytes, width), old = load(target.place, bytes), numbers = first;
    if (!in_lane) numbers = name.starts_with("permi2") ? old : other;
    Chunks source = in_lane || name.starts_with("permi2") ? other : two ? old : first;
    uint64_t most = in_lane ? LANE / width : bytes * 8 / width, bits = bytes_in_lane ? 0x8f : (two ? 2 : 1) * most - 1;
    auto everywhere = [&](uint64_t value) {
      uint64_t all = 0;
      for (int at = 0; at < 64; at += width) all |= (value & cdmpp::mask_of(width)) << at;
      return control.constant(all);
    };
    auto chunk = [&](int i) {
      int number = numbers[i], found = zero_;
      if (name == "permilpd") number = packed(PLSHR, 64, number, control.constant(1));
      number = made(Code::AND, 64, 0, number, everywhere(bits));
      for (int j = 0; j < (two ? 2 : 1) * each; ++j) {
        int part = j ? packed(PSUB, width, number, everywhere(j * lanes)) : number;
        int of = j >= each ? first[j - each] : source[(in_lane ? i / 2 * 2 : 0) + j];
        found = made(Code::OR, 64, 0, found, packed(PTAKE, width, of, part));
      }
      return found;
    };
    store(target, mapped(bytes, chunk), bytes, width);
    return true;
  }

  // Lanes of two, as an immediate, a mask or the top bits of lanes choose.
  bool read_blend(Text name, const std::vector<Text>& operands, const Target& target) {
    size_t n = operands.size();
    if (!has(name, "blend") || vector_of(target.place) < 0) return false;
    int bytes = bytes_of(target.place), width = lane_width(name);
    if (operands[0].starts_with('$') && n >= 3) {
      int imm = immediate(operands[0]);
      Chunks b = load(operands[1], bytes), a = load(second(operands, 4), bytes);
      store(target, shuffled(width, bytes, [&](int i) { return piece(imm >> (i % 8) & 1 ? b : a, width, i); }), bytes, width);
      return true;
    }
    if (name.starts_with("pblendm") || name.starts_with("blendm")) {
      if (n != 3 || target.mask < 0) return false;
      Chunks b = load(operands[0], bytes, width), a = load(operands[1], bytes, width);
      auto chosen = [&](int i) {
        int mask = spread(masks_ + target.mask, i, width);
        int other = target.zeroes ? zero_ : packed(PANDN, 64, mask, a[i]);
        return made(Code::OR, 64, 0, made(Code::AND, 64, 0, mask, b[i]), other);
      };
      store({target.place}, mapped(bytes, chosen), bytes, width);
      return true;
    }
    if (n < 3) return false;
    if (name == "pblendvb") width = 8;
    else width = name == "blendvps" ? 32 : 64;
    Chunks how = load(operands[0], bytes), b = load(operands[1], bytes), a = load(second(operands, 4), bytes);
    auto chosen = [&](int i) {
      int mask = packed(PGT, width, zero_, how[i]);
      return made(Code::OR, 64, 0, made(Code::AND, 64, 0, mask, b[i]), packed(PANDN, 64, mask, a[i]));
    };
    store(target, mapped(bytes, chosen), bytes, width);
    return true;
  }
};

}  // namespace cdmpp
