// Assembly text, x86-64 (AT&T syntax) or AArch64 (ELF) -> functions of basic blocks.
#pragma once
#include <deque>
#include "graph.h"

namespace cdmpp {

struct Jump { bool jumps = false, always = false; Text target; };

inline Jump jump_of(Text line) {
  Scan scan{line};
  if (!scan.eat("j")) return {};
  Text how = scan.run(is_word), spaces = scan.run([](char c) { return c == ' ' || c == '\t'; });
  Text target = scan.run([](char c) { return c != ' ' && c != '\t'; });
  if (how.empty() || spaces.empty() || target.empty()) return {};
  return {true, how.starts_with("mp"), target};
}

inline Jump arm_jump_of(Text line) {
  Scan scan{line};
  Text name = scan.run([](char c) { return is_word(c) || c == '.'; });
  bool always = name == "b" || name == "br";
  bool jumps = always || name == "cbz" || name == "cbnz" || name == "tbz" || name == "tbnz" ||
               (name.size() > 2 && name.starts_with("b."));
  Text target = stripped(scan.rest);
  if (!jumps || target.empty() || target.size() == scan.rest.size()) return {};
  if (size_t comma = target.rfind(','); comma != NOWHERE) target = stripped(target.substr(comma + 1));
  if (target.empty() || target.find_first_of(" \t") != NOWHERE) return {};
  return {true, always, target};
}

// Data that stand in front of the code, by their labels.
class Constants {
 public:
  // `text` begins behind the label.
  void add(Text label, Text text) { texts_[label] = text; }
  // `n` bytes from byte `at` of what is labelled; false where the text does not tell them.
  bool read(Text symbol, size_t at, size_t n, uint64_t& value) const {
    size_t plus = symbol.find('+');
    if (plus != NOWHERE) { at += static_cast<size_t>(to_number(symbol.substr(plus + 1))); symbol = symbol.substr(0, plus); }
    auto found = texts_.find(symbol);
    if (found == texts_.end()) return false;
    auto [bytes, is_new] = bytes_.try_emplace(symbol);
    if (is_new) bytes->second = bytes_of(found->second);
    if (bytes->second.size() < at + n) return false;
    value = 0;
    for (size_t i = n; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes->second[at + i]);
    return true;
  }

 private:
  std::unordered_map<Text, Text> texts_;
  mutable std::unordered_map<Text, std::string> bytes_;

  static std::string bytes_of(Text text) {
    struct Directive { Text name; int bytes; };
    static constexpr Directive NUMBERS[] = {{"\t.quad\t", 8}, {"\t.long\t", 4}, {"\t.short\t", 2}, {"\t.byte\t", 1}};
    std::string bytes;
    Lines lines{text};
    for (Text line; lines.next(line);) {
      Text digits;
      bool reads = false;
      Scan scan{line};
      if (scan.eat("\t.zero\t") && scan.number(digits)) { bytes.append(static_cast<size_t>(to_number(digits)), 0); continue; }
      for (auto [name, n] : NUMBERS) {
        if (!scan.eat(name)) continue;
        uint64_t number = 0;
        if (scan.eat("0x")) std::from_chars(scan.rest.data(), scan.rest.data() + scan.rest.size(), number, 16);
        else if (scan.number(digits)) number = unsigned_number(digits);
        else return bytes;
        for (int i = 0; i < n; ++i) bytes.push_back(static_cast<char>(number >> 8 * i));
        reads = true;
      }
      if (!reads) return bytes;
    }
    return bytes;
  }
};

class AsmFunction : public BlockGraph {
 public:
  const Constants* constants = nullptr;
  bool arm = false;  // AArch64, not x86-64

  Jump jump(Text line) const { return arm ? arm_jump_of(line) : jump_of(line); }

  // What its jumps lead to, and the next block of the text where a block may go on.
  void link_jumps() {
    std::vector<std::vector<Text>> targets(size());
    for (int b = 0; b < size(); ++b) {
      Text last = lines[b].empty() ? Text() : lines[b].back();
      Jump jump = this->jump(last);
      if (jump.jumps) targets[b].push_back(jump.target);
      if (!last.starts_with("ret") && !jump.always && b + 1 < size()) targets[b].push_back(names[b + 1]);
    }
    link(targets);
  }
};

class Assembly {
 public:
  explicit Assembly(Text text) {
    bool arm = !is_x86(text);
    if (arm && !is_arm(text)) return;  // of another processor: no function is found
    Text comment = arm ? "//" : "#";
    static constexpr Text NO_CODE[] = {".Ltmp", ".Lfunc_begin", ".Ldebug", ".Linfo"};
    AsmFunction* function = nullptr;
    int current = 0, splits = 0;
    Lines lines{text};
    for (Text raw; lines.next(raw);) {
      Scan scan{raw};
      Text label = scan.run([](char c) { return is_word(c) || c == '.' || c == '$'; });
      if (!label.empty() && scan.eat(":")) {
        if (label.starts_with(".Lfunc_end")) {
          function = nullptr;
        } else if (label.starts_with(".LBB")) {
          if (function) current = function->add(label);
        } else if (label.starts_with(".LCPI")) {
          constants_.add(label, lines.rest);
        } else if (!starts_with_any(label, NO_CODE)) {
          function = &functions_.emplace_back();
          function->constants = &constants_;
          function->arm = arm;
          function->name = label.substr(label.starts_with(".L") ? 2 : 0);
          current = function->add("entry");
        }
        continue;
      }
      if (!function || !raw.starts_with('\t') || raw.starts_with("\t.") || (raw.substr(1).starts_with(comment))) continue;
      if (!function->lines[current].empty() && function->jump(function->lines[current].back()).jumps) {
        current = function->add(function->names[current] + "+" + std::to_string(++splits));
      }
      function->lines[current].push_back(with_space(stripped(before(raw, comment))));
    }
  }
  // The last of that name that has any instruction; none where there is no such.
  AsmFunction* find(Text name) {
    for (auto function = functions_.rbegin(); function != functions_.rend(); ++function) {
      if (function->name != name) continue;
      bool empty = std::all_of(function->lines.begin(), function->lines.end(), [](auto& l) { return l.empty(); });
      return empty ? nullptr : &*function;
    }
    return nullptr;
  }

 private:
  Constants constants_;
  std::deque<AsmFunction> functions_;
  std::deque<std::string> texts_;

  static bool is_x86(Text text) {
    for (size_t at = text.find('%'); at != NOWHERE; at = text.find('%', at + 1)) {
      Text name = text.substr(at + 1, 3), after = text.substr(std::min(text.size(), at + 4), 1);
      bool wide = name.starts_with('r') || name.starts_with('e');
      if (wide && (name.ends_with("sp") || name.ends_with("ax") || name.ends_with("di")) &&
          (after.empty() || !is_word(after[0]))) return true;
    }
    return false;
  }
  // Whether an instruction names a register of integers, x0 to x30, or a vector such as v0.4s.
  static bool is_arm(Text text) {
    for (Text line : split(text, '\n')) {
      Scan scan{line};
      if (!scan.eat("\t") || scan.rest.empty() || scan.rest[0] < 'a' || scan.rest[0] > 'z') continue;
      scan.run([](char c) { return is_word(c) || c == '.'; });
      if (!scan.eat("\t")) continue;
      Text operands = before(scan.rest, "/");
      for (size_t at = 0; at < operands.size();) {
        Scan words{operands.substr(at)};
        Text word = words.run(is_word);
        at += std::max<size_t>(1, word.size());
        if (word.size() < 2 || word.size() > 3 || !std::all_of(word.begin() + 1, word.end(), is_digit)) continue;
        int64_t number = to_number(word.substr(1));
        bool plain = word.size() == 2 || word[1] != '0';
        if ((word[0] == 'x' || word[0] == 'w') && plain && number <= 30) return true;
        Text element = words.eat(".") ? words.run(is_word) : Text();
        bool named = !element.empty() && Text("bhsd").find(element.back()) != NOWHERE &&
                     std::all_of(element.begin(), element.end() - 1, is_digit);
        if (word[0] == 'v' && number <= 39 && named) return true;
      }
    }
    return false;
  }
  // A space for the tab behind the name.
  Text with_space(Text line) {
    size_t tab = line.find('\t');
    if (tab == NOWHERE) return line;
    std::string& text = texts_.emplace_back(line);
    text[tab] = ' ';
    return text;
  }
};

}  // namespace cdmpp
