// One LLVM instruction -> classes of work, and cycles of a block of them.
#pragma once
#include <cmath>
#include <set>
#include "ir.h"

namespace cdmpp {

struct Amount { int feature; double amount; };
using Amounts = std::vector<Amount>;

inline int64_t element_bytes(Text kind) {
  for (auto [name, bytes] : SCALAR_BYTES) if (kind == name) return bytes;
  Scan scan{kind};
  int bits;
  return scan.type(bits) && scan.rest.empty() ? std::max(1, bits / 8) : 4;
}

inline int64_t registers(const VectorType& vector) {
  if (!vector.element.data()) return 1;
  return std::max<int64_t>(1, (vector.lanes * element_bytes(vector.element) + VECTOR_BYTES - 1) / VECTOR_BYTES);
}

inline int of_width(int first, int64_t lanes) {
  int i = 0;
  while (i + 1 < static_cast<int>(std::size(WIDTHS)) && lanes > WIDTHS[i]) ++i;
  return first + i;
}

// Registers that the elements at `chosen` places of a list lie in.
template <class Chosen>
std::pair<int64_t, int64_t> used(Text list, int64_t element, Chosen chosen) {
  int64_t i = 0, n = 0;
  std::set<int64_t> pieces;
  for (Text word : split(list, ',')) {
    if (chosen(word)) { ++n; pieces.insert(i * element / VECTOR_BYTES); }
    ++i;
  }
  return {n, static_cast<int64_t>(pieces.size())};
}

inline Amounts of_call(Text text, const VectorType& vector, int64_t lanes, double pieces) {
  static constexpr Text STEPS[] = {"maxnum", "minnum", "maximum", "minimum", "fabs", "llvm.smax", "llvm.smin",
                                   "llvm.umax", "llvm.umin", "llvm.floor", "llvm.ceil", "llvm.rint", "llvm.round",
                                   "llvm.trunc"};
  static constexpr Text FREE_CALLS[] = {"llvm.dbg", "llvm.lifetime", "llvm.assume", "llvm.experimental"};
  auto has_any = [&](const auto& parts) {
    return std::any_of(std::begin(parts), std::end(parts), [&](Text part) { return has(text, part); });
  };
  if (has(text, "llvm.fma") || has(text, "llvm.fmuladd")) {
    return {{of_width(feature::n_float_1, lanes), pieces}, {feature::n_fused_lanes, static_cast<double>(lanes)}};
  }
  if (has(text, "llvm.masked.gather")) return {{feature::n_gather, static_cast<double>(lanes)}};
  if (has(text, "llvm.masked.scatter")) return {{feature::n_scatter, static_cast<double>(lanes)}};
  bool loads = has(text, "llvm.masked.load");
  if (loads || has(text, "llvm.masked.store")) {
    if (!vector.element.data()) throw Unsupported();
    int64_t element = element_bytes(vector.element), moved = lanes;
    for (size_t at = text.find(" x i1> <"); at != NOWHERE; at = text.find(" x i1> <", at + 1)) {
      Text mask = text.substr(at + 8);
      size_t digits = text.find_last_not_of("0123456789", at - 1);
      if (digits == NOWHERE || digits + 1 == at || text[digits] != '<' || !has(mask, ">")) continue;
      auto [n, used_pieces] = used(before(mask, ">"), element, [](Text word) { return word.ends_with("true"); });
      moved = n;
      pieces = static_cast<double>(used_pieces);
      break;
    }
    return {{of_width(loads ? feature::n_load_1 : feature::n_store_1, lanes), pieces},
            {feature::n_masked, pieces},
            {loads ? feature::n_load_bytes : feature::n_store_bytes, static_cast<double>(moved * element)}};
  }
  if (has(text, "llvm.memset") || has(text, "llvm.memcpy")) {
    double copied = VECTOR_BYTES;
    for (size_t at = text.find("i64 "); at != NOWHERE; at = text.find("i64 ", at + 1)) {
      Scan scan{text.substr(at + 4)};
      Text digits = scan.run(is_digit);
      if (digits.empty() || !scan.eat(", i1")) continue;
      copied = static_cast<double>(to_number(digits));
      break;
    }
    return {{feature::n_store_16, std::max(1.0, copied / VECTOR_BYTES)}, {feature::n_store_bytes, copied}};
  }
  if (has(text, "llvm.sqrt")) return {{of_width(feature::n_divide_1, lanes), pieces}};
  if (has_any(STEPS)) return {{of_width(feature::n_float_1, lanes), pieces}};
  if (has(text, "vector.reduce")) return {{feature::n_shuffle, std::log2(static_cast<double>(std::max<int64_t>(2, lanes)))}};
  return has_any(FREE_CALLS) ? Amounts{} : Amounts{{feature::n_call, 1.0}};
}

inline Amounts of_shuffle(Text text, double pieces) {
  Amounts whole{{feature::n_shuffle, pieces}};
  bool listed = text.ends_with('>');
  size_t begin = listed ? text.rfind('>', text.size() - 2) + 2 : text.size();  // behind the type
  while (!listed && begin > 0 && is_word(text[begin - 1])) --begin;
  if (begin >= text.size() || (listed && text[begin] != '<')) return whole;
  Text type = text.substr(0, begin), list = text.substr(begin);
  if (!type.ends_with(" x i32> ")) return whole;
  type.remove_suffix(8);
  size_t digits = type.find_last_not_of("0123456789");
  if (digits == NOWHERE || digits + 1 == type.size() || type[digits] != '<') return whole;
  if (!listed) {
    int64_t bytes = to_number(type.substr(digits + 1)) * 4;
    return {{feature::n_broadcast, static_cast<double>(std::max<int64_t>(1, (bytes + VECTOR_BYTES - 1) / VECTOR_BYTES))}};
  }
  auto [n, filled] = used(list.substr(1, list.size() - 2), 4, [](Text word) { return !word.ends_with("poison"); });
  return {{feature::n_shuffle, static_cast<double>(std::max<int64_t>(1, filled))}};
}

inline Amounts of_memory(bool loads, Text text, const VectorType& vector, int64_t lanes, double pieces) {
  auto words = split(text, ' ');
  if (words.size() < 3) throw Unsupported();
  Text kind = words[1] == "volatile" ? words[2] : words[1];
  while (kind.ends_with(',')) kind.remove_suffix(1);
  Text element = lanes > 1 ? vector.element : kind;
  Amount moved{loads ? feature::n_load_bytes : feature::n_store_bytes, static_cast<double>(lanes * element_bytes(element))};
  if (lanes == 1 && element != "float" && element != "double" && element != "half" && element != "bfloat") {
    return {{loads ? feature::n_load_int : feature::n_store_int, 1.0}, moved};
  }
  return {{of_width(loads ? feature::n_load_1 : feature::n_store_1, lanes), pieces}, moved};
}

inline Amounts of_line(Text text, const VectorType& vector, double pieces) {
  Text operation = before(text, " ");
  if (operation == "tail" || operation == "musttail" || operation == "notail") {
    text.remove_prefix(std::min(text.size(), operation.size() + 1));
    operation = "call";
  }
  int64_t lanes = vector.element.data() ? vector.lanes : 1;
  if (operation == "call") return of_call(text, vector, lanes, pieces);
  if (operation == "load" || operation == "store") return of_memory(operation == "load", text, vector, lanes, pieces);
  if (is_any(operation, FREE)) return {};
  if (operation == "shufflevector") return of_shuffle(text, pieces);
  for (auto [name, first] : BY_REGISTER) if (operation == name) return {{of_width(first, lanes), pieces}};
  for (auto [name, one] : BY_LANE) if (operation == name) return {{one, static_cast<double>(lanes)}};
  if (operation == "br") return {{feature::n_branch, 1.0}};
  if (operation == "insertelement" || operation == "extractelement") return {{feature::n_insert, 1.0}};
  if (lanes > 1) return {{feature::n_vector_int, pieces}};
  for (auto [name, one] : SCALAR) if (operation == name) return {{one, 1.0}};
  return {{feature::n_scalar_int, 1.0}};
}

// Classes of one instruction with their amounts; none where it costs nothing.
inline Amounts classify(Text line) {
  size_t equals = line.find(" = ");
  Text behind = equals == NOWHERE ? line : line.substr(equals + 3);
  Text text = line.starts_with('%') ? behind : line;
  VectorType vector = vector_in(line);
  double pieces = static_cast<double>(registers(vector));
  Amounts classes = of_line(text, vector, pieces);
  static constexpr Text MOVES[] = {"shufflevector", "insertelement", "extractelement"};
  if (classes.empty() || !(vector.lanes & (vector.lanes - 1)) || starts_with_any(behind, MOVES)) return classes;
  if (has(line, "llvm.masked.")) return classes;
  bool floats = classes[0].feature >= feature::n_float_1 && classes[0].feature <= feature::n_float_16;
  classes.push_back({feature::n_odd_vector, pieces});
  if (vector.lanes > WIDTHS[3] && floats) classes.push_back({feature::n_odd_wide_lanes, static_cast<double>(vector.lanes)});
  return classes;
}

// Vector registers of the float value that an instruction makes; 0 where it makes none.
inline int64_t float_registers(Text text) {
  static constexpr Text MAKERS[] = {"fmul", "fadd", "fsub", "fneg", "load", "phi", "call", "tail call",
                                    "shufflevector", "insertelement"};
  for (Text maker : MAKERS) {
    if (!text.starts_with(maker) || (text.size() > maker.size() && is_word(text[maker.size()]))) continue;
    Text type = text.substr(maker.size());
    type = type.substr(0, type.find_first_of(",("));
    return has(type, "float") || has(type, "double") ? registers(vector_in(text)) : 0;
  }
  return 0;
}

// Vector registers that the float values alive at one place of a block lack.
inline double spilled_values(const Function& function, int block) {
  std::vector<int> last_use(function.definitions.size(), -1), used_ids;
  const auto& lines = function.lines[block];
  for (size_t i = 0; i < lines.size(); ++i) {
    Text line = lines[i];
    for (size_t at = line.find('%'); at != NOWHERE; at = line.find('%', at + 1)) {
      Scan scan{line.substr(at)};
      Text name;
      int id = scan.name(name) ? function.known_id(name) : -1;
      if (id < 0) continue;
      if (last_use[id] < 0) used_ids.push_back(id);
      last_use[id] = static_cast<int>(i);
    }
  }
  std::vector<int64_t> change(lines.size(), 0);
  for (size_t i = 0; i < lines.size(); ++i) {
    size_t equals = lines[i].find(" = ");
    int64_t made = equals == NOWHERE ? 0 : float_registers(lines[i].substr(equals + 3));
    if (!made) continue;
    int id = function.known_id(lines[i].substr(0, equals));
    if (id < 0 || last_use[id] < 0) throw Unsupported();
    change[i] += made;
    change[last_use[id]] -= made;
  }
  int64_t alive = 0, most = 0, outside = 0;
  for (int64_t by : change) most = std::max(most, alive += by);
  for (int id : used_ids) {
    const Definition& definition = function.definitions[id];
    if (definition.block >= 0 && definition.block != block) outside += float_registers(definition.text);
  }
  return static_cast<double>(std::max<int64_t>(0, most + outside - VECTOR_REGISTERS));
}

inline bool is_float_phi(Text line) {
  size_t at = line.find("= phi ");
  if (at == NOWHERE) return false;
  Scan scan{line.substr(at + 6)};
  if (!scan.eat("<")) return scan.eat("float") || scan.eat("double");
  int lanes;
  return scan.integer(lanes) && scan.eat(" x ") && (scan.eat("float>") || scan.eat("double>"));
}

}  // namespace cdmpp
