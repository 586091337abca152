// Vector and mask registers of x86-64, as far as the program's own constants tell what they hold: a slot for 64 bits.
#pragma once
#include <array>
#include "x86_state.h"

namespace cdmpp {

class X86Vectors : public X86State {
 protected:
  static constexpr int VECTORS = 32, CHUNKS = 8, MASKS = 8, LANE = 128;
  using Chunks = std::array<int, CHUNKS>;
  struct Piece { int slot, shift; };
  struct Target { Text place; int mask = -1; bool zeroes = false; };
  int vectors_ = 0, masks_ = 0;

  X86Vectors(const AsmFunction& function, Role role, Byte byte, bool with_vectors) : X86State(function, role, byte, with_vectors) {
    if (!with_vectors) return;
    vectors_ = masks_ = static_cast<int>(control.starts.size());
    for (int i = 0; i < VECTORS * CHUNKS; ++i) masks_ = control.slot() + 1;
    for (int i = 0; i < MASKS; ++i) control.slot();
  }

  // Calls keep none of them.
  void lose_vectors() {
    if (with_vectors_) for (int slot = vectors_; slot < masks_ + MASKS; ++slot) op({Code::LOSE, 64, 0, slot});
  }

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
    if (!place.on_stack) return width == 8 && byte_ ? control.constant(*byte_) : lost_;
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
  // The operand before the target, which is the target itself in the older encoding.
  static Text second(const std::vector<Text>& operands, size_t n) {
    return operands.size() >= n ? operands[n - 2] : target_of(operands.back()).place;
  }
};

}  // namespace cdmpp
