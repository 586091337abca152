// Pieces of program text, and a scanner of them.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cdmpp {

using Text = std::string_view;
constexpr size_t NOWHERE = Text::npos;

// The program cannot be read; a reason where the text is not simply strange.
struct Unsupported { std::string reason; };

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_name(char c) { return is_word(c) || c == '.' || c == '$' || c == '-'; }
inline bool has(Text text, Text part) { return text.find(part) != NOWHERE; }

// Most texts differ in their first letter: no need to compare the rest.
inline bool starts_with(Text text, Text beginning) {
  return beginning.empty() || (!text.empty() && text[0] == beginning[0] && text.starts_with(beginning));
}

template <class Beginnings>
bool starts_with_any(Text text, const Beginnings& beginnings) {
  for (Text beginning : beginnings) if (starts_with(text, beginning)) return true;
  return false;
}

template <class Texts>
bool is_any(Text text, const Texts& texts) {
  for (Text other : texts) if (text == other) return true;
  return false;
}

inline Text stripped(Text text, Text marks = " \t") {
  size_t begin = text.find_first_not_of(marks);
  return begin == NOWHERE ? Text() : text.substr(begin, text.find_last_not_of(marks) + 1 - begin);
}

inline Text before(Text text, Text mark) { return text.substr(0, text.find(mark)); }
inline Text unquoted(Text name) { return stripped(name, "\""); }

inline int64_t to_number(Text digits) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) throw Unsupported();
  return number;
}

// Of 64 bits, with or without a sign.
inline uint64_t unsigned_number(Text digits) {
  if (digits.starts_with('-')) return static_cast<uint64_t>(to_number(digits));
  uint64_t number = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) throw Unsupported();
  return number;
}

inline std::vector<Text> split(Text text, char mark) {
  std::vector<Text> parts;
  for (size_t at = 0;;) {
    size_t next = text.find(mark, at);
    parts.push_back(text.substr(at, next - at));
    if (next == NOWHERE) return parts;
    at = next + 1;
  }
}

// Each `next` line, without its end; control characters may end one elsewhere.
struct Lines {
  Text rest;
  explicit Lines(Text text) : rest(text) {
    bool strange = false;
    for (char c : text) strange |= c < ' ' && c != '\t' && c != '\n';
    if (strange) throw Unsupported();
  }
  bool next(Text& line) {
    if (rest.empty()) return false;
    size_t end = rest.find('\n');
    line = rest.substr(0, end);
    rest = end == NOWHERE ? Text() : rest.substr(end + 1);
    return true;
  }
};

// Reads from the left; what was read before a failure is lost.
struct Scan {
  Text rest;

  bool eat(Text literal) {
    if (!rest.starts_with(literal)) return false;
    rest.remove_prefix(literal.size());
    return true;
  }
  template <class Belongs>
  Text run(Belongs belongs) {
    size_t n = 0;
    while (n < rest.size() && belongs(rest[n])) ++n;
    Text found = rest.substr(0, n);
    rest.remove_prefix(n);
    return found;
  }
  bool word(Text& found) { return !(found = run(is_word)).empty(); }
  bool integer(int& found) {
    Text digits = run(is_digit);
    if (!digits.empty()) found = static_cast<int>(to_number(digits));
    return !digits.empty();
  }
  bool number(Text& found) {
    Text begin = rest;
    eat("-");
    size_t digits = run(is_digit).size();
    found = begin.substr(0, begin.size() - rest.size());
    return digits > 0;
  }
  // Of a block: without its percent sign.
  bool label(Text& found) {
    Text begin = rest;
    eat("\"");
    size_t letters = run(is_name).size();
    eat("\"");
    found = begin.substr(0, begin.size() - rest.size());
    return letters > 0;
  }
  bool name(Text& found) {
    Text begin = rest, bare;
    if (!eat("%") || !label(bare)) return false;
    found = begin.substr(0, bare.size() + 1);
    return true;
  }
  bool name_or_number(Text& found) { return rest.starts_with('%') ? name(found) : number(found); }
  bool value(Text& found) {
    for (Text literal : {Text("true"), Text("false")}) if (eat(literal)) { found = literal; return true; }
    return name_or_number(found);
  }
  // An integer type, such as i64.
  bool type(int& bits) { return eat("i") && integer(bits); }
  // Words such as nuw, an integer type, and the spaces around.
  bool flags_and_type(int& bits) {
    for (Text found; eat(" ") && word(found);) {
      Scan inside{found};
      if (rest.starts_with(' ') && inside.type(bits) && inside.rest.empty()) return eat(" ");
    }
    return false;
  }
};

// First vector of a line: its lanes, and the text of their type; none where it has no lanes.
struct VectorType { int64_t lanes = 0; Text element; };

inline VectorType vector_in(Text line) {
  for (size_t at = line.find('<'); at != NOWHERE; at = line.find('<', at + 1)) {
    Scan scan{line.substr(at + 1)};
    Text digits = scan.run(is_digit), element;
    if (!digits.empty() && scan.eat(" x ") && scan.word(element) && scan.eat(">")) return {to_number(digits), element};
  }
  return {};
}

}  // namespace cdmpp
