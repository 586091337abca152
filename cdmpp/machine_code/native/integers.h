// Arithmetic of integers whose value may be unknown, as LLVM names it: constants.py.
#pragma once
#include <algorithm>
#include <optional>
#include "text.h"

namespace cdmpp {

using Number = std::optional<int64_t>;
using Wide = __int128;

inline int64_t narrow(Wide number) {
  if (number != static_cast<int64_t>(number)) throw Unsupported();
  return static_cast<int64_t>(number);
}

inline Number compared(Text how, int64_t a, int64_t b) {
  if (how[0] == 'u' && std::min(a, b) < 0) return std::nullopt;
  Text which = how.substr(how.size() - std::min<size_t>(how.size(), 2));
  if (which == "eq") return a == b;
  if (which == "ne") return a != b;
  if (which == "gt") return a > b;
  if (which == "ge") return a >= b;
  if (which == "lt") return a < b;
  if (which == "le") return a <= b;
  throw Unsupported();
}

inline std::optional<Wide> binary(Text name, Wide a, Wide b) {
  bool shifts = b >= 0 && b < 64;
  if (name == "add") return a + b;
  if (name == "sub") return a - b;
  if (name == "mul") return a * b;
  if (name == "and") return a & b;
  if (name == "or") return a | b;
  if (name == "xor") return a ^ b;
  if (name == "sdiv" && b != 0) return a / b;
  if (name == "srem" && b != 0) return a % b;
  if (name == "udiv" && a >= 0 && b > 0) return a / b;
  if (name == "urem" && a >= 0 && b > 0) return a % b;
  if (name == "shl" && shifts) return a * (Wide(1) << b);
  if (name == "lshr" && a >= 0 && shifts) return a >> b;
  if (name == "ashr" && shifts) return a >> b;
  return std::nullopt;
}

inline Number wrapped(std::optional<Wide> number, int bits) {
  if (!number) return std::nullopt;
  if (bits < 1 || bits > 64) throw Unsupported();
  Wide part = *number & ((Wide(1) << bits) - 1);
  return narrow(bits > 1 && part >> (bits - 1) ? part - (Wide(1) << bits) : part);
}

}  // namespace cdmpp
