// Vector and mask registers of x86-64, as far as the program's own constants tell what they hold: a slot for 64 bits.
#pragma once
#include <array>
#include "x86_state.h"

namespace cdmpp {

class X86Vectors : public X86State {
 protected:
  X86Vectors(const AsmFunction& function, Role role, bool with_vectors) : X86State(function, role, with_vectors) {
    if (!with_vectors) return;
    vectors_ = masks_ = static_cast<int>(control.starts.size());
    for (int i = 0; i < VECTORS * CHUNKS; ++i) masks_ = control.slot() + 1;
    for (int i = 0; i < MASKS; ++i) control.slot();
  }

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
  // Calls keep none of them.
  void lose_vectors() {
    if (with_vectors_) for (int slot = vectors_; slot < masks_ + MASKS; ++slot) op({Code::LOSE, 64, 0, slot});
  }

 private:
  static constexpr int VECTORS = 32, CHUNKS = 8, MASKS = 8, LANE = 128;
  using Chunks = std::array<int, CHUNKS>;
  struct Piece { int slot, shift; };
  struct Target { Text place; int mask = -1; bool zeroes = false; };
  int vectors_ = 0, masks_ = 0;

  // Operands.

  static int vector_of(Text operand) {
    bool is = operand.size() > 4 && operand[0] == '%' && operand.substr(2, 2) == "mm" && is_digit(operand[4]);
    return is ? static_cast<int>(to_number(operand.substr(4))) : -1;
  }
  int mask_of_name(Text operand) const {
    return operand.size() == 3 && operand.starts_with("%k") ? masks_ + (operand[2] - '0') : -1;
  }
  static bool in_memory(Text operand) { return !operand.starts_with('%') && !operand.starts_with('$'); }
  static int bytes_of(Text operand) { return operand[1] == 'z' ? 64 : operand[1] == 'y' ? 32 : 16; }
  static int bytes_of(const std::vector<Text>& operands) {
    int most = 0;
    for (Text one : operands) if (vector_of(target_of(one).place) >= 0) most = std::max(most, bytes_of(one));
    return most;
  }
  static int lane_width(Text name) {
    bool one = name[0] != 'p';  // float, not the last letters of such as `pminsd`
    if (name.ends_with("ps") || (one && name.ends_with("ss")) || name.ends_with("32")) return 32;
    if (name.ends_with("pd") || (one && name.ends_with("sd")) || name.ends_with("64")) return 64;
    switch (name.back()) { case 'b': case '8': return 8; case 'w': case '6': return 16; case 'd': return 32; default: return 64; }
  }
  static Target target_of(Text operand) {
    size_t open = operand.find(" {%k");
    if (open == NOWHERE) return {operand};
    return {stripped(operand.substr(0, open)), operand[open + 4] - '0', has(operand, "{z}")};
  }
  static int immediate(Text operand) {
    int64_t number = operand.starts_with('$') ? to_number(operand.substr(1)) : 0;
    return static_cast<int>(number & 0xff);
  }

  // Where constants of the text are, the 64 bits at `at`.
  int constant_at(Text symbol, int64_t at, int width) {
    uint64_t value = 0;
    if (!function_.constants || !function_.constants->read(symbol, at, width / 8, value)) return lost_;
    return control.constant(value);
  }
  // A number of `width` bits, without what is above it.
  int load_one(Text operand, int width) {
    int vector = vector_of(operand);
    if (vector >= 0) return made(Code::COPY, width, 0, vectors_ + CHUNKS * vector);
    if (!in_memory(operand)) return made(Code::COPY, width, 0, read(operand, width));
    if (has(operand, "(%rip)")) return constant_at(before(operand, "("), 0, width);
    Place place = read_place(operand, false);
    if (!place.on_stack) return lost_;
    return width == 64 ? chunk_on_stack(place, 0) : made(Code::COPY, width, 0, word(place, place.at));
  }
  Chunks load(Text operand, int bytes, int width = 64) {
    Chunks found;
    found.fill(lost_);
    int vector = vector_of(operand), n = std::max(1, bytes / 8);
    if (vector >= 0) {
      for (int i = 0; i < CHUNKS; ++i) found[i] = vectors_ + CHUNKS * vector + i;
    } else if (has(operand, "{1to")) {
      int one = load_one(before(operand, "{"), width);
      return shuffled(width, bytes, [&](int) { return Piece{one, 0}; });
    } else if (has(operand, "(%rip)")) {
      for (int i = 0; i < n; ++i) found[i] = constant_at(before(operand, "("), 8 * i, 64);
    } else if (in_memory(operand)) {
      Place place = read_place(operand, false);
      for (int i = 0; i < n && place.on_stack; ++i) found[i] = chunk_on_stack(place, 8 * i);
    }
    return found;
  }
  int chunk_on_stack(const Place& place, int64_t at) {
    return made(Code::JOIN, 32, 32, made(Code::COPY, 32, 0, word(place, place.at + at)), word(place, place.at + at + 4));
  }
  void store(const Target& target, Chunks value, int bytes, int width) {
    int vector = vector_of(target.place), n = std::max(1, bytes / 8);
    if (target.mask >= 0) {
      Chunks old = load(target.place, bytes);
      for (int i = 0; i < n; ++i) {
        int chosen = spread(masks_ + target.mask, i, width), fresh = made(Code::AND, 64, 0, value[i], chosen);
        value[i] = target.zeroes ? fresh : made(Code::OR, 64, 0, fresh, packed(PANDN, 64, chosen, old[i]));
      }
    }
    if (vector >= 0) {
      int first = vectors_ + CHUNKS * vector;
      auto moves = [&](int i) { return value[i] >= first && value[i] < first + CHUNKS && value[i] != first + i; };
      for (int i = 0; i < n; ++i) if (moves(i)) value[i] = made(Code::COPY, 64, 0, value[i]);
      for (int i = 0; i < CHUNKS; ++i) set(first + i, i < n ? value[i] : zero_);
      return;
    }
    Place place = read_place(target.place, false);
    for (int i = 0; i < n && place.on_stack; ++i) store_one(place, 8 * i, value[i], 64);
  }
  void store_one(Place place, int64_t at, int value, int width) {
    place.at += at;
    set(stack_slot(place, place.at), value);
    if (width == 64) set(stack_slot(place, place.at + 4), value == lost_ ? lost_ : made(Code::LSHR, 64, 0, value, control.constant(32)));
    keep_words(place, width, value);
  }
  void set(int slot, int value) {
    if (value == lost_) op({Code::LOSE, 64, 0, slot});
    else if (value != slot) op({Code::COPY, 64, 0, slot, value});
  }
  void set_mask(const Target& target, int value) {
    if (target.mask >= 0) value = made(Code::AND, 64, 0, value, masks_ + target.mask);
    set(mask_of_name(target.place), value);
  }
  // What nobody follows: of a target, the flags stay.
  void lose(Text name, const std::vector<Text>& operands) {
    Text target = target_of(operands.back()).place;
    int vector = vector_of(target), mask = mask_of_name(target);
    if (vector >= 0 || mask >= 0) {
      if (!with_vectors_) return;
      if (mask >= 0) set(mask, lost_);
      else for (int i = 0; i < CHUNKS; ++i) set(vectors_ + CHUNKS * vector + i, lost_);
    } else if (target.starts_with('%')) {
      Register written = read_register(target.substr(1));
      if (written.slot >= 0) op({Code::LOSE, 64, 0, written.slot});
    } else {
      Place place = read_place(target, false);
      if (place.on_stack) lose_stack(place, stored_bytes(name, operands));
    }
  }
  static int stored_bytes(Text name, const std::vector<Text>& operands) {
    static constexpr Entry SIZES[] = {{"movd", 4}, {"extrd", 4}, {"extractps", 4}, {"ss", 4}, {"movq", 8}, {"extrq", 8}, {"lps", 8},
                                      {"hps", 8}, {"lpd", 8}, {"hpd", 8}, {"sd", 8}, {"extrb", 1}, {"extrw", 2}, {"128", 16},
                                      {"32x4", 16}, {"64x2", 16}, {"32x8", 32}, {"64x4", 32}};
    for (auto [ending, bytes] : SIZES) if (name.ends_with(ending)) return bytes;
    int whole = name[0] == 'k' ? lane_width(name) / 8 : std::max(16, bytes_of(operands));
    return has(name, "cvtps2ph") ? whole / 2 : whole;
  }
  // Gathers and scatters end with a mask of zeros.
  void spend_mask(const std::vector<Text>& operands) {
    Target target = target_of(operands.back());
    if (target.mask >= 0) set(masks_ + target.mask, zero_);
    else if (operands.size() == 3 && vector_of(operands[0]) >= 0) store({operands[0]}, filled(zero_), 64, 64);
  }

  // Lanes.

  Chunks filled(int slot) const { Chunks all; all.fill(slot); return all; }
  int packed(Lanewise how, int width, int a, int b) { return made(Code::PACKED, width, how, a, b); }
  int ones() { return control.constant(~uint64_t(0)); }
  int inverted(int a) { return made(Code::XOR, 64, 0, a, ones()); }
  // Bits of a mask over the lanes of chunk `i`.
  int spread(int mask, int i, int width) { return made(Code::SPREAD, width, i * 64 / width, mask, zero_); }
  static Piece piece(const Chunks& of, int width, int i) { return {of[i * width / 64], i * width % 64}; }
  // Lane `i` of each chunk is what `pick(i)` names.
  template <class Pick>
  Chunks shuffled(int width, int bytes, Pick pick) {
    Chunks found = filled(zero_);
    int lanes = 64 / width;
    for (int chunk = 0; chunk < std::max(1, bytes / 8); ++chunk) {
      std::vector<Piece> pieces;
      bool whole = true, lost = false;
      for (int i = 0; i < lanes; ++i) {
        pieces.push_back(pick(chunk * lanes + i));
        whole &= pieces[i].slot == pieces[0].slot && pieces[i].shift == width * i;
        lost |= pieces[i].slot == lost_;
      }
      if (whole || lost) { found[chunk] = lost ? lost_ : pieces[0].slot; continue; }
      int joined = zero_;
      for (int i = 0; i < lanes; ++i) {
        auto [slot, shift] = pieces[i];
        if (slot == zero_) continue;
        if (shift) slot = made(Code::LSHR, 64, 0, slot, control.constant(shift));
        joined = made(Code::JOIN, width, width * i, joined, slot);
      }
      found[chunk] = joined;
    }
    return found;
  }
  template <class Each>
  Chunks mapped(int bytes, Each each) {
    Chunks found = filled(zero_);
    for (int i = 0; i < std::max(1, bytes / 8); ++i) found[i] = each(i);
    return found;
  }
  // Top bits of all lanes.
  int signs(const Chunks& of, int bytes, int width) {
    int bits = zero_;
    for (int i = 0; i < bytes / 8; ++i) bits = made(Code::SIGNS, width, i * 64 / width, of[i], bits);
    return bits;
  }

  // Instructions; false at those that nobody follows. `name` is without the `v` in front.
  bool read_lanes(Text name, const std::vector<Text>& operands) {
    if (operands.size() < 2) return false;
    Target target = target_of(operands.back());
    return read_move(name, operands, target) || read_transfer(name, operands, target) || read_shuffle(name, operands, target) ||
           read_blend(name, operands, target) || read_compare(name, operands, target) || read_shift(name, operands, target) ||
           read_resize(name, operands, target) || read_binary(name, operands, target);
  }
  // The operand before the target, which is the target itself in the older encoding.
  static Text second(const std::vector<Text>& operands, size_t n) {
    return operands.size() >= n ? operands[n - 2] : target_of(operands.back()).place;
  }

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
