// Values of slots, and how they go on over the next iterations of a loop.
#pragma once
#include "control.h"

namespace cdmpp {

// A value that grows by `step` in every iteration to come; `odd` where it changes otherwise.
struct Cell {
  uint64_t value = 0;
  int64_t step = 0;
  bool known = false, odd = false;
};

// Carries out operations; `ahead` is how many more iterations of the loop that is watched go as this one does.
class Arithmetic {
 public:
  std::vector<Cell> cells;
  int64_t ahead = MOST;
  static constexpr int64_t MOST = int64_t(1) << 62;

  explicit Arithmetic(Control& control) : control_(control) {
    for (const auto& start : control.starts) cells.push_back({start.value, 0, start.known, false});
  }

  void run(const Op& op) { cells[op.dst] = result(op); }
  // Of a way: `false` where nobody knows.
  bool decide(int slot, uint64_t& value) {
    const Cell& cell = cells[slot];
    if (cell.step || cell.odd) ahead = 0;
    value = cell.value;
    return cell.known;
  }

 private:
  Control& control_;

  // `value + k * step` has to stay between them.
  void keep(Wide value, Wide step, Wide least, Wide most) {
    if (step == 0) return;
    Wide left = step > 0 ? (most - value) / step : (value - least) / -step;
    if (left < ahead) ahead = left < 0 ? 0 : static_cast<int64_t>(left);
  }
  Cell narrow(const Cell& cell, int width) {
    Cell part = cell;
    part.value &= mask_of(width);
    if (part.step) keep(part.value, part.step, 0, mask_of(width));
    return part;
  }
  Cell stepped(Wide value, Wide step, int width) {
    Cell made{static_cast<uint64_t>(value) & mask_of(width), static_cast<int64_t>(step), true, step != static_cast<int64_t>(step)};
    if (made.step && width < 64) keep(made.value, made.step, 0, mask_of(width));
    return made;
  }
  static Cell fixed(uint64_t value) { return {value, 0, true, false}; }
  static Cell odd(uint64_t value) { return {value, 0, true, true}; }
  static Wide wide(uint64_t value, int width, bool with_sign) {
    return with_sign ? Wide(signed_of(value, width)) : Wide(value & mask_of(width));
  }
  Wide in_range(const Cell& cell, int width, bool with_sign) {
    Wide value = wide(cell.value, width, with_sign);
    if (cell.step) {
      Wide half = Wide(1) << (width - 1);
      keep(value, cell.step, with_sign ? -half : 0, with_sign ? half - 1 : 2 * half - 1);
    }
    return value;
  }
  static bool holds(Wide difference, uint8_t how) {
    switch (how) {
      case EQ: return difference == 0;
      case NE: return difference != 0;
      case UGT: case SGT: case POSITIVE: return difference > 0;
      case UGE: case SGE: return difference >= 0;
      case ULT: case SLT: case NEGATIVE: return difference < 0;
      default: return difference <= 0;
    }
  }
  Cell tested(Wide difference, Wide step, uint8_t how) {
    bool now = holds(difference, how);
    constexpr Wide FAR = Wide(1) << 100;
    if (step != 0) {
      if (how == EQ || how == NE) {
        if (difference == 0) keep(0, step, 0, 0);
        else if (difference % step == 0 && -difference / step > 0) keep(0, 1, 0, -difference / step - 1);
      } else {
        bool below = holds(-1, how), zero = holds(0, how);  // true where the difference is small, or else great
        Wide edge = below ? (zero ? 0 : -1) : (zero ? -1 : 0);  // the last difference of the lower side
        if (now == below) keep(difference, step, -FAR, edge);
        else keep(difference, step, edge + 1, FAR);
      }
    }
    return fixed(now);
  }
  static uint64_t lanewise(const Op& op, uint64_t a, uint64_t b) {
    uint64_t made = 0;
    for (int at = 0; at < 64; at += op.width) {
      uint64_t mask = mask_of(op.width), x = a >> at & mask, y = b >> at & mask, z = 0;
      uint64_t half = mask_of(op.width / 2);
      int64_t sx = signed_of(x, op.width), sy = signed_of(y, op.width), most = half >> 1;
      switch (op.how) {
        case PADD: z = x + y; break;
        case PSUB: z = x - y; break;
        case PEQ: z = x == y ? mask : 0; break;
        case PGT: z = sx > sy ? mask : 0; break;
        case PUMIN: z = std::min(x, y); break;
        case PUMAX: z = std::max(x, y); break;
        case PSMIN: z = std::min(sx, sy); break;
        case PSMAX: z = std::max(sx, sy); break;
        case PSHL: z = y < op.width ? x << y : 0; break;
        case PLSHR: z = y < op.width ? x >> y : 0; break;
        case PANDN: z = ~x & y; break;
        case PTAKE: z = y < 64u / op.width ? a >> y * op.width : 0; break;
        case PUGT: z = x > y ? mask : 0; break;
        case PABS: z = sx < 0 ? -x : x; break;
        case PSAR: z = sx >> std::min<uint64_t>(y, 63); break;
        case PMULL: z = x * y; break;
        case PMULU: z = (x & half) * (y & half); break;
        case PMULS: z = signed_of(x, op.width / 2) * signed_of(y, op.width / 2); break;
        case PSATS: z = std::clamp<int64_t>(sx, -most - 1, most) & half; break;
        case PSATU: z = std::clamp<int64_t>(sx, 0, half); break;
      }
      made |= (z & mask) << at;
    }
    return made;
  }

  Cell result(const Op& op) {
    const Cell& a = cells[op.a];
    if (op.code == Code::LOSE) return {};
    if (op.code == Code::SELECT) {
      const Cell &yes = cells[op.b], &no = cells[op.c];
      if (!a.known) return yes.known && no.known && yes.value == no.value && !yes.step && !no.step ? yes : Cell();
      Cell chosen = a.value & 1 ? yes : no;
      chosen.odd |= a.odd || a.step;
      return chosen;
    }
    if (op.code == Code::COPY) {
      if (!a.known) return a;
      return op.width >= 64 ? a : narrow(a, op.width);
    }
    if (op.code == Code::LOAD || op.code == Code::FIND) {
      if (!a.known || a.step || a.odd) return {};
      auto stored = control_.memory.find(a.value);
      if (stored != control_.memory.end()) return fixed(stored->second & mask_of(op.width));
      if (op.code == Code::LOAD || (op.how && a.value - control_.closure >= REGION)) return {};
      return fixed(control_.memory[a.value] = control_.region());
    }
    if (op.code == Code::SEXT) {
      if (!a.known) return {};
      Wide value = wide(a.value, op.width, true), half = Wide(1) << (op.width - 1);
      if (a.step) keep(value, a.step, value < 0 ? -half : Wide(0), value < 0 ? Wide(-1) : half - 1);
      return {static_cast<uint64_t>(value) & mask_of(op.how), a.step, true, a.odd};
    }
    if (op.code == Code::COUNT) {
      if (!a.known) return {};
      uint64_t bits = static_cast<uint64_t>(std::popcount(a.value & mask_of(op.width)));
      return a.step || a.odd ? odd(bits) : fixed(bits);
    }
    return binary(op, a, cells[op.b]);
  }

  Cell binary(const Op& op, const Cell& a, const Cell& b) {
    int width = op.width;
    uint64_t mask = mask_of(width);
    if (!a.known || !b.known) {
      auto is = [&](const Cell& cell, uint64_t value) {
        return cell.known && !cell.step && !cell.odd && (cell.value & mask) == value;
      };
      if (op.code == Code::AND && (is(a, 0) || is(b, 0))) return fixed(0);
      if (op.code == Code::OR && (is(a, mask) || is(b, mask))) return fixed(mask);
      if (op.code == Code::INSERT && b.known) return {(b.value & mask) << op.how, 0, true, b.odd || b.step};
      return {};
    }
    bool moves = a.step || b.step;
    Cell made = moves ? moving(op, a, b) : fixed(plain(op, a.value & mask, b.value & mask, a.value, b.value));
    made.odd |= a.odd || b.odd;
    return made;
  }

  uint64_t plain(const Op& op, uint64_t a, uint64_t b, uint64_t whole_a, uint64_t whole_b) {
    int width = op.width;
    uint64_t mask = mask_of(width);
    Wide sa = wide(a, width, true), sb = wide(b, width, true);
    switch (op.code) {
      case Code::ADD: return (a + b) & mask;
      case Code::SUB: return (a - b) & mask;
      case Code::MUL: return (a * b) & mask;
      case Code::AND: return a & b;
      case Code::OR: return a | b;
      case Code::XOR: return a ^ b;
      case Code::SHL: return b < static_cast<uint64_t>(width) ? (a << b) & mask : 0;
      case Code::LSHR: return b < static_cast<uint64_t>(width) ? a >> b : 0;
      case Code::ASHR: return static_cast<uint64_t>(static_cast<int64_t>(sa) >> std::min<uint64_t>(b, 63)) & mask;
      case Code::UDIV: return b ? a / b : 0;
      case Code::UREM: return b ? a % b : 0;
      case Code::SDIV: return b ? static_cast<uint64_t>(sa / sb) & mask : 0;
      case Code::SREM: return b ? static_cast<uint64_t>(sa % sb) & mask : 0;
      case Code::HIGH: return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> width) & mask;
      case Code::HIGHS: return static_cast<uint64_t>((sa * sb) >> width) & mask;
      case Code::TEST:
        if (op.how >= NEGATIVE) return holds(wide(a - b, width, true), op.how);
        return holds(wide(a, width, op.how >= SGT) - wide(b, width, op.how >= SGT), op.how);
      case Code::CARRY: return carried(op, a, b);
      case Code::INSERT:
      case Code::JOIN: return (whole_a & ~(mask << op.how)) | b << op.how;
      case Code::PACKED: return lanewise(op, whole_a, whole_b);
      case Code::SPREAD: {
        uint64_t lanes = 0;
        for (int at = 0, i = op.how; at < 64; at += width, ++i) lanes |= (whole_a >> i & 1 ? mask : 0) << at;
        return lanes;
      }
      case Code::SIGNS: {
        uint64_t bits = 0;
        for (int at = 0, i = 0; at < 64; at += width, ++i) bits |= (whole_a >> (at + width - 1) & 1) << i;
        return whole_b | bits << op.how;
      }
      default: throw Unsupported();
    }
  }
  static uint64_t carried(const Op& op, uint64_t a, uint64_t b) {
    if (op.how == EQ || op.how == NE) return (((a + b) & mask_of(op.width)) == 0) == (op.how == EQ);
    if (op.how >= NEGATIVE) return holds(wide(a + b, op.width, true), op.how);
    if (op.how >= SGT) return holds(wide(a, op.width, true) + wide(b, op.width, true), op.how);
    bool carry = Wide(a) + Wide(b) > Wide(mask_of(op.width)), zero = ((a + b) & mask_of(op.width)) == 0;
    switch (op.how) {  // as behind a comparison: below is the carry
      case ULT: return carry;
      case UGE: return !carry;
      case UGT: return !carry && !zero;
      default: return carry || zero;
    }
  }

  // Where one of them grows.
  Cell moving(const Op& op, const Cell& a, const Cell& b) {
    int width = op.width;
    uint64_t mask = mask_of(width), x = a.value & mask, y = b.value & mask;
    uint64_t value = plain(op, x, y, a.value, b.value);
    bool by_constant = b.step == 0;
    int64_t step = a.step;
    switch (op.code) {
      case Code::ADD: return stepped(value, Wide(a.step) + b.step, width);
      case Code::SUB: return stepped(value, Wide(a.step) - b.step, width);
      case Code::MUL:
        if (a.step && b.step) return odd(value);
        return stepped(value, by_constant ? Wide(step) * signed_of(y, width) : Wide(b.step) * signed_of(x, width), width);
      case Code::SHL:
        if (!by_constant || y >= static_cast<uint64_t>(width)) return odd(value);
        return stepped(value, Wide(step) << y, width);
      case Code::TEST:
        if (op.how >= NEGATIVE) {
          Wide difference = wide(x - y, width, true), half = Wide(1) << (width - 1), by = Wide(a.step) - b.step;
          keep(difference, by, -half, half - 1);
          return tested(difference, by, op.how);
        } else {
          bool with_sign = op.how >= SGT;
          Wide left = in_range(a, width, with_sign), right = in_range(b, width, with_sign);
          return tested(left - right, Wide(a.step) - b.step, op.how);
        }
      case Code::CARRY: {
        if (op.how != EQ && op.how != NE && op.how < SGT) return odd(value);
        bool with_sign = op.how >= SGT;
        Wide left = in_range(a, width, with_sign), right = in_range(b, width, with_sign), half = Wide(1) << (width - 1);
        if (with_sign) return tested(left + right, Wide(a.step) + b.step, op.how);
        return tested(wide(x + y, width, false) == 0 ? 0 : left + right - 2 * half, Wide(a.step) + b.step, op.how);
      }
      case Code::LSHR:
      case Code::UDIV: {
        if (!by_constant || (op.code == Code::LSHR ? y >= static_cast<uint64_t>(width) : y == 0)) return odd(value);
        Wide by = op.code == Code::LSHR ? Wide(1) << y : Wide(y), from = in_range(a, width, false);
        if (step % by == 0) return {value, static_cast<int64_t>(step / by), true, false};
        keep(from % by, step, 0, by - 1);
        return fixed(value);
      }
      case Code::ASHR:
      case Code::SDIV: {
        if (!by_constant || (op.code == Code::ASHR ? y >= static_cast<uint64_t>(width) : signed_of(y, width) <= 0)) return odd(value);
        Wide by = op.code == Code::ASHR ? Wide(1) << y : Wide(y), from = wide(x, width, true), half = Wide(1) << (width - 1);
        keep(from, step, from < 0 ? -half : Wide(0), from < 0 ? Wide(-1) : half - 1);
        if (from < 0 && (op.code == Code::SDIV || step % by)) return odd(value);
        if (step % by == 0) return {value, static_cast<int64_t>(step / by), true, false};
        keep(from % by, step, 0, by - 1);
        return fixed(value);
      }
      case Code::SREM:
      case Code::UREM: {
        if (!by_constant || y == 0) return odd(value);
        bool with_sign = op.code == Code::SREM;
        Wide by = wide(y, width, with_sign), from = in_range(a, width, with_sign);
        if (by <= 0 || from < 0) return odd(value);
        if (with_sign) keep(from, step, 0, Wide(1) << 100);
        if (step % by == 0) return fixed(value);
        keep(from % by, step, 0, by - 1);
        return {value, step, true, false};
      }
      case Code::AND: {
        const Cell& grows = by_constant ? a : b;
        uint64_t bits = by_constant ? y : x, from = grows.value & mask;
        if (a.step && b.step) return odd(value);
        if (bits == mask) return narrow(grows, width);
        int low = std::countr_zero(bits);  // zeros below the ones, which have to go on to the top or start at the bottom
        if (bits == 0) return fixed(0);
        bool bottom = (bits & (bits + 1)) == 0, top = bits == (mask & ~mask_of(low));
        if (!bottom && !top) return odd(value);
        Wide by = Wide(1) << (bottom ? std::popcount(bits) : low);
        Wide part = Wide(from) % by;
        if (bottom && grows.step % by == 0) return fixed(value);
        if (top && grows.step % by == 0) { narrow(grows, width); return {value, grows.step, true, false}; }
        keep(part, grows.step, 0, by - 1);
        return bottom ? Cell{value, grows.step, true, false} : fixed(value);
      }
      case Code::OR: {
        const Cell& grows = by_constant ? a : b;
        uint64_t bits = by_constant ? y : x;
        if (a.step && b.step) return odd(value);
        if (bits == 0) return narrow(grows, width);
        bool apart = !((grows.value & mask) & bits) && grows.step % (Wide(1) << std::bit_width(bits)) == 0;
        if (!apart) return odd(value);
        narrow(grows, width);
        return {value, grows.step, true, false};
      }
      case Code::XOR: {
        const Cell& grows = by_constant ? a : b;
        if ((a.step && b.step) || (by_constant ? y : x) != mask) return odd(value);
        return stepped(value, -Wide(grows.step), width);
      }
      default: return odd(value);
    }
  }
};

}  // namespace cdmpp
